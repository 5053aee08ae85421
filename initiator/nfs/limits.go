package nfs

const (
	// maxTransfer bounds one READ or WRITE in bytes, whatever the server would take.
	maxTransfer = 1 << 20
	// parallel is how many READs or WRITEs one ReadAt or WriteAt has in flight.
	parallel = 8
	// maxDirty is how many bytes of unsynced data a file keeps before it asks the server to commit.
	maxDirty = 32 << 20
	// maxLinks bounds the symbolic links followed on one path, as Linux does.
	maxLinks = 40
	// maxResend bounds how often unsynced data is sent again for one Sync: a server that loses it every time is broken.
	maxResend = 5
	// listReply bounds one answer of READDIRPLUS in bytes.
	listReply = 64 << 10
)
