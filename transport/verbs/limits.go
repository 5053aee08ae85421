package verbs

import "time"

const (
	// maxPrivate is what an InfiniBand connection request has left for the upper protocol: 92 bytes (InfiniBand Architecture
	// 12.7.2), of which librdmacm's header takes 36. A reply has 196 and a refusal 148.
	maxPrivate = 56

	maxSGE     = 16        // a 16 MiB I/O in buffers of 1 MiB; an adapter may have fewer
	maxReads   = 128       // as software iWARP; an adapter's limit is 255 at most (a byte in the messages), mlx5's 16
	maxMessage = 1<<31 - 1 // InfiniBand Architecture 9.3.3; a port may have less

	defaultSends = 256     // work requests, when QPOptions says nothing
	defaultRecvs = 256     // receives, likewise
	maxQueue     = 1 << 15 // work requests or receives of a queue pair; adapters have as much

	// marker is the one request that the provider adds to a send queue: behind it nothing is outstanding.
	marker = 1

	pollBatch = 32 // completions of one call into the library

	backlog      = 128 // connection requests that a listener keeps unanswered; more are refused
	resolveTime  = 5 * time.Second
	establish    = 10 * time.Second      // for the peer's last message of a set-up
	dialTime     = 30 * time.Second      // for a reply; the connection manager's own timers end before
	requestTime  = dialTime              // for the upper protocol to answer: a peer that still waits is not refused for slowness here
	unusedTime   = 15 * time.Second      // for which requests by an adapter that is not used cost no look at all adapters, and no line
	drainTime    = 2 * time.Second       // without one more flushed completion; the queue pair is destroyed then all the same
	shortestAsk  = 10 * time.Millisecond // until the library is asked for an event again that it could not hand out
	longestAsk   = 10 * time.Second
	relistenMin  = 250 * time.Millisecond
	relistenMax  = 10 * time.Second
	maxCMPending = 8 // events of one connection that its set-up has not looked at
)
