package rpcserver

import "github.com/sluice-storage/sluice/internal/defect"

// Program is one RPC program. Its methods may be called by any number of goroutines.
type Program interface {
	// ID is the program number.
	ID() uint32
	// Versions are the lowest and highest version served; there must be no gap.
	Versions() (low, high uint32)
	// Classify says who is to execute a call. It is asked once, and never blocks. A program that classes by arguments takes them from
	// c.Args here, once and for all, and keeps them in c.Parsed; Serve then finds c.Args behind what was taken.
	Classify(c *Call) Class
	// Serve executes a call and appends its results to c.Out. With c.Worker false it must not block, and answers Again when it would; it
	// is then called once more, from a worker, with c.Args where Classify left them.
	Serve(c *Call) Verdict
	// Keeps reports whether executing this procedure a second time would do harm, so that a retransmission has to be
	// answered from the reply cache. Such a procedure is always a worker's.
	Keeps(vers, proc uint32) bool
}

// Class says who executes a call.
type Class uint8

const (
	unclassed Class = iota
	// Inline is for the goroutine that reads the connection. It must not block: Serve answers Again where it would after all.
	Inline
	// Brief is for what hardly ever blocks, although it may. The owner of an RDMA connection executes it, or the serial queue of a stream,
	// and loses the calls behind it to another goroutine if it blocks all the same.
	Brief
	// Worker is for what may block.
	Worker
	// Answered says that c.Out is the reply already: the arguments are none, or there is no such procedure.
	Answered
)

// Overwriter is a Program with procedures that must not be executed once more after what their client has sent since.
type Overwriter interface {
	Overwrites(vers, proc uint32) bool
}

// Screener is a Program with bulk arguments, which judges a call before the memory for its bulk argument is taken. It is asked over RDMA, of
// clients that have shown no right yet (Peer.Trust), so that strangers cannot hold the memory that all clients share.
type Screener interface {
	// Screen may block. It is asked after Classify, and answers Again to have the argument fetched and the call served, Done when c.Out is a
	// refusal.
	Screen(c *Call) Verdict
}

// Guard is deferred by code that changes what clients share. A panic there ends the process, because that may be half changed, and clients
// recover; any other one of a program ends the connection whose call it was.
func Guard() { defect.Rethrow(recover()) }

// Verdict is Serve's answer.
type Verdict uint8

const (
	// Done says that c.Out is the reply.
	Done Verdict = iota
	// Again asks for a call from a worker.
	Again
	// Drop says that there will be no reply.
	Drop
	// Later asks to be called again, from a worker, when there is memory for what Sink or Reserve answered ErrNoMemory to. No worker
	// waits meanwhile: others may need it to give memory back.
	Later
)
