// Package owner drives one RDMA connection from its first completion to its last: it polls, keeps work for later, queues
// what is to be sent, and hands the connection on when its goroutine blocks. The protocols above it say what a completion
// means; nothing here knows one of them.
//
// # Who owns
//
// One goroutine at a time owns a connection. It alone calls Poll and Wait, and with them everything that they lead to
// (transport, rule 2). The life of an owner:
//
//	Run ──▶ polling ──▶ handling a batch ──▶ turning ──▶ waiting ──▶ polling …
//	           ▲                                │
//	           │                         performing one piece of work
//	           └── it ended in time ────────────┤
//	                                            └── it took BlockTime: another goroutine polls, this one ends with its work
//
//	Drain ──▶ performing what was kept ──▶ closing ──▶ taking every completion ──▶ abandoning what was never posted
//
// Work is kept because the owner is the best place for what hardly ever blocks, such as a write into the page cache: the
// data is still in this processor's cache, and no other goroutine has to be woken. It is performed one piece a turn, so
// that what arrives meanwhile is seen in between. Work that blocks all the same costs the connection BlockTime: then a
// timer's goroutine becomes the owner (Handoff).
//
// # What a handler is asked
//
// A Handler has the meaning of completions and of work. Completed gets a whole batch, so that a handler locks as often or
// as rarely as it likes; Perform does one piece of work. Both run on the owner, without the lock, and must not wait for the
// peer. A method whose name ends in Locked runs under the lock and must not take it.
//
// # Lock
//
// The queues here are guarded by the connection's own lock, which the handler brings: what a protocol changes together
// with its queue is changed under one lock. Methods whose names end in Locked want it. FlushLocked lets go of it around
// Post, which may be a system call, and has it again when it returns; one goroutine posts at a time, in order, and what is
// queued meanwhile leaves with its next Post.
//
// Nothing is allocated an I/O: queues keep their memory, completions are handed on in the array that Poll filled, work is a
// value of the handler's own type, and the handler is one interface that is stored once.
//
// # When what is queued leaves
//
// A Post costs a system call here and a wake-up at the peer. An owner without work flushes all there is before it waits.
// While it has more work to perform, replies wait for company up to half of the requests that the peer lately had here at
// once, at most MaxTogether; and Reads wait while more than a quarter as many are under way, which keeps both sides at work.
// NFS WRITEs of 128 KiB, 16 in flight: 145 us of both sides' processor time a call became 120, the rate 0.60 of raw 0.70.
//
// # What Drain guarantees
//
// When Drain returns
//
//   - every completion of every work request and receive that was posted has been handed to Completed,
//   - every Read and Send that was queued and never posted has been handed to it too, with ErrClosed,
//   - every piece of work that was kept has been given to Perform, which performs it, drops it or has it performed apart. One piece
//     may be in the hands of each goroutine that lost the connection in it: such work may hang for as long as a medium does, and the
//     handler waits for it or not,
//   - no Post is under way and none is made any more.
//
// So no byte lands in any buffer from then on (transport, rule 6), and the handler may release them.
package owner
