package lock

import "time"

const (
	// maxHosts bounds clients in the state file, and ports of clients that are remembered.
	maxHosts = 10_000
	// maxOwner bounds an owner handle in bytes: a netobj's bound (RFC 1813 appendix II, LM_MAXSTRLEN).
	maxOwner = 1024
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
	// maxCallbacks bounds callbacks on their way at a time, each with a socket, and maxHostCallbacks those to one client: there are some for others
	// where dozens do not answer.
	maxCallbacks     = 256
	maxHostCallbacks = 4
	// maxNotices bounds notifications of a restart on their way at a time. They have slots of their own: most clients of the last life may be gone,
	// and those that have come back wait for their locks.
	maxNotices = 64
	// maxAnswers bounds answers to asynchronous procedures that wait to be sent, and maxHostAnswers those to one client; what comes beyond them is
	// dropped.
	maxAnswers     = 256
	maxHostAnswers = 32
)
