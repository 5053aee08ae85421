package nfs

import "time"

const (
	// lockPoll and lockPollMax are the pauses of a lock that waits for another one's end: short at first, for locks that
	// are held for moments.
	lockPoll    = 10 * time.Millisecond
	lockPollMax = time.Second
	// lockCheck is how often a server is asked whether it is still the one that granted our locks. The grace period in
	// which it takes them again is 45 s or more where we know it.
	lockCheck = 5 * time.Second
	// laterFirst and laterMost are the pauses before a request that the server cannot serve now is made again. Linux waits 5 s.
	laterFirst = 50 * time.Millisecond
	laterMost  = 5 * time.Second
	// maxTransfer bounds one READ or WRITE in bytes, whatever the server would take.
	maxTransfer = 1 << 20
	// parallel is how many READs or WRITEs one ReadAt or WriteAt has in flight.
	parallel = 8
	// streamDepth is how many READs or WRITEs io.Copy has in flight.
	streamDepth = 4
	// streamFirst is its first piece, bytes.
	streamFirst = 256 << 10
	// readFirst is the most that ReadFile reads at first, bytes, whatever size the server names.
	readFirst = parallel * maxTransfer
	// maxDirty is how many bytes of unsynced data a file keeps before it asks the server to commit.
	maxDirty = 32 << 20
	// maxMemory bounds Memory of a mount that is not over RDMA, bytes: the same as over it.
	maxMemory = 128 << 20
	// maxLinks bounds the symbolic links followed on one path, as Linux does.
	maxLinks = 40
	// maxResend bounds how often unsynced data is sent again for one Sync: a server that loses it every time is broken.
	maxResend = 5
	// listReply bounds one answer of READDIRPLUS in bytes.
	listReply = 64 << 10
)
