package lock

import "time"

const (
	// maxLocks bounds ranges held over all files; each takes some 100 bytes.
	maxLocks = 100_000
	// maxFileLocks bounds ranges and waiters of one file: every lock looks at all of them.
	maxFileLocks = 4096
	// maxHosts bounds clients in the state file, and ports of clients that are remembered.
	maxHosts = 10_000
	// defaultGrace is how long clients have to reclaim after a restart: Linux's.
	defaultGrace = 90 * time.Second
	// callTime bounds one attempt of a callback; callTries and callPause how often it is made.
	callTime  = 5 * time.Second
	callTries = 10
	callPause = 2 * time.Second
	// resend is when a datagram of a callback is sent once more, twice as long each time.
	resend = 500 * time.Millisecond
	// maxReply bounds what a client's lock manager answers, bytes.
	maxReply = 4096
	// maxCallbacks bounds callbacks on their way at a time.
	maxCallbacks = 64
	// maxAnswers bounds answers to asynchronous procedures that wait to be sent; what comes beyond them is dropped.
	maxAnswers = 256
)
