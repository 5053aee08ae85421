package file

import "time"

const (
	// defaultWorkers serve what would block. Enough to keep a disk's queue busy; each is one thread while it waits.
	defaultWorkers = 8
	maxWorkers     = 256

	// ringDepth is how many requests the kernel has at a time. More wait here, in order: beyond what the disk's queue takes, the kernel
	// would only put them on threads of its own.
	ringDepth = 256

	// ringBatch is how many requests wait for the owner of a connection to submit them together. The disk may be idle meanwhile, and
	// a system call for 8 costs each of them little.
	ringBatch = 8

	// claimTime is how long Open tries for a file that is in use: the kernel's work queues let go of it within milliseconds.
	claimTime = 500 * time.Millisecond

	// inlineSpans is how many spans an inline read may have: its iovec lives on the stack.
	inlineSpans = 16

	// maxIovec is IOV_MAX of Linux, what one preadv2 or pwritev2 takes.
	maxIovec = 1024

	// bounceSize is one worker's buffer for requests that O_DIRECT would refuse for their alignment.
	bounceSize = 1 << 20

	// maxCompareWrite bounds what a compare-and-write reads into a worker's buffer; SBC-4 section 5.2 lets a device
	// server report its own maximum, and 1 byte counts the blocks.
	maxCompareWrite = bounceSize

	// stripeShift is log2 of the bytes of one lock stripe.
	stripeShift = 20

	// maxCopy bounds one copy_file_range, so that a copy ends soon after its caller has lost interest.
	maxCopy = 64 << 20

	// settlePiece is how much Settle waits for at a time.
	settlePiece = 16 << 20

	// maxDiscard bounds one hole punch, which holds up whatever else the file system does to this file.
	maxDiscard = 1 << 30

	// probeDistance is a multiple of any file system's block: a hole that begins at one behind a file's end touches no
	// block of it.
	probeDistance = 1 << 20
)

// How long Settle waits for one piece, and for fdatasync after them, which may have to commit what other files wrote. A test
// has less.
var (
	settlePatience = 10 * time.Second
	commitPatience = 30 * time.Second
)
