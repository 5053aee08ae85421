package scsi

import "time"

// Every bound of the package.
const (
	// pieceSize is how much of a transfer is one device request and one move: large enough that a system call and a
	// work request cost nothing beside it, small enough that medium and wire overlap within one command.
	pieceSize = 256 << 10
	// pieces is how many of them one command has in flight.
	pieces = 4
	// minPiece is what a transfer falls back to when memory is short: the smallest buffer there is.
	minPiece = 4 << 10
	// maxTransfer bounds READ, WRITE and their kin (VPD B0, MAXIMUM TRANSFER LENGTH), in bytes. It is a promise to the
	// initiator and keeps one command from occupying a connection for seconds.
	maxTransfer = 64 << 20
	// maxCompare bounds COMPARE AND WRITE and ORWRITE in bytes: all of it is in memory at once, twice.
	maxCompare = 64 << 10
	// maxAtomic bounds WRITE ATOMIC in bytes, whatever the device could do: all of it is in memory at once.
	maxAtomic = 1 << 20
	// maxParameter bounds every parameter list an initiator sends.
	maxParameter = 64 << 10
	// maxUnmapDescriptors and maxUnmapBytes bound one UNMAP (VPD B0): a million blocks of 512 bytes, beyond which
	// libiscsi takes the figure for a mistake.
	maxUnmapDescriptors = 256
	maxUnmapBytes       = 512 << 20
	// maxWriteSame bounds one WRITE SAME in bytes (VPD B0); a zero NUMBER OF LOGICAL BLOCKS is refused (WSNZ). No more
	// than maxTransfer: libiscsi writes and reads as much in one command beside it.
	maxWriteSame = maxTransfer
	// maxAttentions is how many unit attentions wait for one I_T nexus; the oldest go first, duplicates are merged.
	maxAttentions = 16
	// maxMet is how many I_T nexuses a unit remembers to have met: initiators choose their names themselves.
	maxMet = 1024
	// heirTime is how long a new name of a host inherits what the host's others are owed (lossdebt.go): longer than a host that has lost
	// its session keeps writes that it has not flushed, and comes back by another name.
	heirTime = 24 * time.Hour
	// doubtTime is how long each LUN may be another than a host knows, where it is lost what hosts took them for: longer than a host
	// tries to recover a session.
	doubtTime = 10 * time.Minute
	// settleAgain is the time between two attempts to write down what a unit that is erased has to wait for.
	settleAgain = time.Second
	// noteAgain is the longest time between two attempts to write down what a later start wants to know.
	noteAgain = time.Minute
	// maxTasks bounds one task set; a session's command window is far smaller.
	maxTasks = 4096
	// maxLUN is the largest LUN number (SAM-5 flat space addressing).
	maxLUN = 0x3FFF
	// maxRegistrations bounds persistent reservation keys of one logical unit.
	maxRegistrations = 1024
	// senseLen is the longest sense data made here; iSER initiators offer 128 bytes for the whole data segment.
	senseLen = 96
)
