package uring

const (
	// Spans is how many pieces of memory one operation may have: its iovec lies in it.
	Spans = 16
	// MaxDepth is how many operations one ring may have under way: what a disk's queue takes, and some that wait in the kernel. Their
	// entries and completions are 60 KiB of the kernel's memory.
	MaxDepth = 512
	// opsStep is how many operations are made at a time. They are kept: a ring that was never busy has few.
	opsStep = 32
	// batch bounds the completions that are handled together: who is answered last waits for all before.
	batch = 32
)
