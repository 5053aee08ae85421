package filelock

const (
	// maxLocks bounds ranges held, waiters, shares and grants that have not ended, over all files; each takes some 100 bytes, the last
	// what its Waiter takes to tell a client.
	maxLocks = 100_000
	// maxHostLocks bounds those of one host, by its address, so that it leaves some to others.
	maxHostLocks = maxLocks / 4
	// maxFileLocks bounds the ranges, the waiters and the shares of one file: every lock looks at all of them, and copies the ranges.
	maxFileLocks = 4096
)
