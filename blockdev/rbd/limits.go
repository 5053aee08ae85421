package rbd

import "time"

const (
	// DefaultTimeout is how long a request waits for the cluster. Initiators give a command 30 s (Linux, ESXi) or 60 s (Windows): it has ended
	// before, and is sent again.
	DefaultTimeout = 20 * time.Second

	// monTimeout bounds what opening asks of the monitors: a volume whose cluster is away is left out after that, and looked for again.
	monTimeout = 10 * time.Second

	lockPause = 500 * time.Millisecond

	// workers serve what blocks: compare-and-writes, questions about what is there, and requests in very many pieces.
	workers = 4

	// ringBatch is how many requests wait for the owner of a connection to start them together.
	ringBatch = 8

	// bounceSize is one worker's buffer for requests in more pieces than a ring's slot has place for.
	bounceSize = 1 << 20

	// maxCompareWrite bounds what a compare-and-write reads into a worker's buffer.
	maxCompareWrite = bounceSize

	// stripeShift is log2 of the bytes of one lock stripe.
	stripeShift = 20

	// maxDiscard bounds one discard, and one piece of zeroes: 256 objects of 4 MiB at a time.
	maxDiscard = 1 << 30

	// maxOptimalIO bounds OptimalIO: objects are of up to 32 MiB, which no initiator sends at once.
	maxOptimalIO = 4 << 20
)

// lockPatience is how long Open asks for an image's lock. A client that was killed is heard of for 30 s (osd_client_watch_timeout), and keeps
// the lock so long. A test has less.
var lockPatience = 45 * time.Second
