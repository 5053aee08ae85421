package ceph

const (
	// Depth is how many requests a ring has under way at most. More wait in the engine, in order.
	Depth = 256

	// Spans is how many pieces of memory a request has place for.
	Spans = 32
)
