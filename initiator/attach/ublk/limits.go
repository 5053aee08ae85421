package ublk

import "time"

// claimLimit is how long the kernel may take to write what it holds of a device that is to go.
const claimLimit = 10 * time.Second

// deleteLimit is how long an old driver may wait for those who still have a dead device open.
const deleteLimit = 5 * time.Second

const (
	// MaxQueues bounds hardware queues: with four a volume over one session is saturated, and each costs a thread.
	MaxQueues = 4
	// depth is the requests of one queue: what a session keeps at its target is 128 by default.
	depth = 64
	// maxIO is the longest request, bytes: four queues full of them are half of a pool of 256 MiB.
	maxIO = 512 << 10
	// maxDiscard and maxZeroes bound one request, bytes; the volume cuts it as the target likes.
	maxDiscard = 1 << 30
	maxZeroes  = 1 << 30
	// maxQueueDepth is the kernel's: where queues' descriptors lie depends on it.
	maxQueueDepth = 4096
)
