// Package uring moves bytes between files and memory by Linux's io_uring(7): one ring for each open medium,
// which all goroutines share.
//
// # Threads
//
// Any goroutine starts operations, on whatever thread it happens to be, and any goroutine ends them. So a ring has neither
// IORING_SETUP_SINGLE_ISSUER nor IORING_SETUP_DEFER_TASKRUN, which bind it to one thread: goroutines move between threads, the owner
// of a connection becomes another goroutine when it blocks (internal/owner), and a goroutine that is locked to a thread would cost
// two changes of thread for each batch.
//
// The kernel ends an operation on the thread that started it: that thread is woken or interrupted, writes the completion, and signals
// the ring's eventfd. Go's poller has that eventfd and runs the reaper, one goroutine a queue. A goroutine that has just submitted looks
// at the completions too (Reap), because those that are there already then need no other goroutine.
//
// # Batches
//
// QueueLocked writes an entry, Enter has the kernel take all that were written, with one system call. What is queued while another
// goroutine is in that call leaves with its next one. An operation that ended and led to others, in Handler.Ended, submits them all
// behind the batch.
//
// # What is not registered
//
// Buffers are not: ARCHITECTURE.md has the measurement. Files are not: a ring that ends with its process is taken apart by the kernel later, and a registered file stays open until then. The
// lock on a volume (flock) of a daemon that was killed would outlive it, and the next one find the volume in use.
//
// # What the kernel does on threads of its own
//
// An operation is tried without blocking first. One that would block is armed (a buffered read of a file system that can tell when
// its page is there) or punted: done by a worker of the kernel's (io-wq), of which each thread that submits has a few. The package
// of the medium says which of its operations that befalls.
//
// # Want of the system call
//
// io_uring may be forbidden: by the sysctl kernel.io_uring_disabled, by seccomp (containers, a systemd unit's SystemCallFilter=), by a
// security module. Open says so (ErrUnavailable), and the callers have another way to do the same.
package uring
