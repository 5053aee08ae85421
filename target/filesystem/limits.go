package filesystem

import "time"

const (
	// MaxTransfer bounds a read or a write in bytes: the payload that the RPC layer carries.
	MaxTransfer = 1 << 20
	// MaxExportPath bounds the name of an export, bytes: what MOUNT carries (RFC 1813 section 5.1.4, MNTPATHLEN).
	MaxExportPath = 1024
	// MaxName is the longest name that Linux file systems take, bytes (NAME_MAX).
	MaxName = 255
	// maxGroups bounds a caller's groups: what AUTH_SYS has room for.
	maxGroups = 16
	// nodeShards spreads the lock of the handle cache.
	nodeShards = 16
	// maxNodes bounds cached handles, each with a descriptor and a few open files; RLIMIT_NOFILE is usually higher by far.
	maxNodes = 8192
	// maxOpens bounds the open files of one node: readers and writers of a few users.
	maxOpens = 8
	// nodeIdle is how long an unused node keeps its descriptors. It bounds how long a file that was removed behind our
	// back keeps its space.
	nodeIdle = 10 * time.Second
	// decisionAge is how long a client's address is taken to have the rights, and the name, that it had.
	decisionAge = time.Minute
	// nameAge is how long a name service's answer is taken for true, nameRetry when one that did not answer is asked again,
	// and nameTime how long it is waited for: what resolvers take with a second server.
	nameAge   = 30 * time.Second
	nameRetry = time.Second
	nameTime  = 5 * time.Second
	// maxAsking bounds questions to the name service at one time, maxWaiting the workers that wait for them, of 64, and
	// maxNames the answers that are remembered.
	maxAsking  = 256
	maxWaiting = 8
	maxNames   = 8192
	// maxSeen bounds the names of files that are remembered for fallback handles, maxFound those of files that were looked
	// for, and maxGone the handles whose files are not there, for goneAge: a client asks often.
	maxSeen  = 1 << 20
	maxFound = 1 << 16
	maxGone  = 1 << 14
	goneAge  = 10 * time.Second
	// maxLooking bounds workers, of 64, that look for files of fallback handles in one export.
	maxLooking = 8
	// maxInExport bounds the calls of the exports of one file system that workers execute: below what a stream may have in
	// flight, so that one whose medium hangs leaves room for others. gateTime is how long a call waits for room.
	maxInExport = 96
	gateTime    = 2 * time.Second
	// maxOfHost bounds the calls that one host has in all media: WRITEs of that many leave a quarter of the room that a host gets for
	// its requests (maxRequests in target/rpcserver).
	maxOfHost = 192
	// fewOfHost are what it has in each medium where others have taken those, as long as it has fewer than mostOfHost in all: still
	// below the room that it gets.
	fewOfHost  = 16
	mostOfHost = 244
	// maxSeats is how many media a connection or a host may have had calls in before those that it has none in are forgotten.
	maxSeats = 16
	// maxAside is how many files of a medium may wait to be closed before the cache keeps the rest of them.
	maxAside = 256
	// maxOverData bounds the blocks of a WRITE that are asked for before it (overData): 128 KiB of most file systems.
	maxOverData = 32
	// maxExtents bounds the extents of such a WRITE that are looked at; most lie in one.
	maxExtents = 8
	// openTime is how long an export's directory may take to be opened: a disk that sleeps takes ten seconds.
	openTime = 30 * time.Second
	// maxDepth bounds the way from a directory up to its export's root: names of one byte in a path of PATH_MAX.
	maxDepth = 2048
)
