package rpcserver

import (
	"encoding/binary"

	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/mem"
)

// Call is one call and its reply. It belongs to Serve until Serve returns.
type Call struct {
	XID              uint32
	Prog, Vers, Proc uint32
	Cred             Auth
	Sys              Sys // with flavor AUTH_SYS
	Args             Args

	Peer   *Peer
	Worker bool   // Serve may block
	Out    []byte // begins with the reply header of a Success
	// Parsed is the program's to keep the arguments in. It stays when the Call is used again, for a call of the same program or of another,
	// so that a record of one type is made once a Call.
	Parsed any

	server  *Server
	recycle func() // gives the memory of the call back
	from    carrier
	prog    Program
	life    life
	class   Class
	start   int // of the arguments in the message
	parsed  int // how far Classify went in the message
	msg     []byte
	body    *[]byte // pooled memory of msg, nil where msg is in small
	small   [inlineBody]byte
	copied  int // bytes of msg that were elsewhere first

	taken   bool     // Sink or Loan was asked for memory
	sink    [][]byte // what Sink gave
	payload int      // bytes of it that are part of the reply, -1 for none
	at      int      // where they stand in Out
	dataArr [1][]byte
	cached  *cacheEntry
	next    *Call
	key     uint64 // claimKey, 0 where it was not asked for
}

// carrier is what a transport keeps for one call, from its arrival to the end of its reply: a stream its result until the client has taken it, an
// RDMA connection its chunks and registered memory.
type carrier interface {
	// reply sends the call's reply and takes the call over; drop only takes it over. flush is false when more calls are about to be
	// answered by the same goroutine.
	reply(flush bool)
	drop()
	// finish does what the verdict says; an error ends the connection.
	finish(v Verdict, err error, flush bool)
	// gone reports that the call's connection is lost: a call that no worker has begun is not to be executed.
	gone() bool
	// chunk is n bytes of the argument where they came apart from the message; apart is false where they are in it.
	chunk(n int) (data [][]byte, apart bool, err error)
	// sinkFor returns memory for n bytes of result, loanFor the end of a pipe for them.
	sinkFor(n int) ([][]byte, error)
	loanFor(n, skew int) (fd int, ok bool)
	// reserve takes what room there has to be for n bytes of the reply that are in memory of the call's, or answers ErrNoMemory.
	reserve(n int) error
	// filled is told how many bytes of the loan are part of the reply, and 0 when nothing was put into the pipe.
	filled(n int)
	// dropSink gives back what sinkFor and loanFor gave, dropRoom the room that the message took.
	dropSink()
	dropRoom()
	// brief queues a Brief call for the owner or the serial queue of the connection, or reports false.
	brief(turn) bool
	// work does on a worker what is the transport's way of executing a call.
	work()
}

// turn says which goroutine has a call that is complete.
type turn uint8

const (
	// turnReader is the one that reads the connection, or another that must not be kept.
	turnReader turn = iota
	// turnPoll is the owner of an RDMA connection that takes completions: it executes what is brief when it has taken all.
	turnPoll
	// turnOwner is the owner of an RDMA connection, free to execute the call.
	turnOwner
)

// inMessage is the half of a carrier that has no chunks, loans, or ways of its own.
type inMessage struct{}

func (inMessage) chunk(int) ([][]byte, bool, error) { return nil, false, nil }
func (inMessage) loanFor(int, int) (int, bool)      { return -1, false }
func (inMessage) reserve(int) error                 { return nil }
func (inMessage) filled(int)                        {}
func (inMessage) dropRoom()                         {}
func (inMessage) brief(turn) bool                   { return false }
func (inMessage) work()                             {}

// Data takes n bytes of opaque argument, whose length has just been read from Args, and its padding. They are in Args
// or, over RDMA, were read from the client's memory.
func (c *Call) Data(n int) ([][]byte, error) {
	if n < 0 || n > MaxPayload {
		return nil, &xdr.LimitError{Len: uint32(n), Max: MaxPayload}
	}
	if data, apart, err := c.from.chunk(n); apart {
		return data, err
	}
	before := c.Args.reader().Offset()
	b := c.Args.Fixed(n)
	if err := c.Args.Err(); err != nil {
		return nil, err
	}
	c.server.stats.copiedIn.add(n, c.copied-before)
	c.dataArr[0] = b
	return c.dataArr[:1], nil
}

// ErrNoMemory is the answer of Sink and Reserve where other calls hold all there is; the verdict is Later then.
var ErrNoMemory = mem.ErrNoMemory

// Sink returns memory for n bytes of opaque result. SetPayload says how many were used.
func (c *Call) Sink(n int) ([][]byte, error) {
	c.dropSink()
	c.taken = true
	s, err := c.from.sinkFor(min(n, MaxPayload))
	c.sink = s
	return s, err
}

// Reserve is called by a program that is about to append a long result to Out, of n bytes at most: it waits like others until its client takes it.
func (c *Call) Reserve(n int) error { return c.from.reserve(n) }

// Loan returns the end of an empty pipe to put a result of up to n bytes into, instead of a Sink; the first of them lies
// skew bytes into a page. SetPayload says how many there are, Unlend that there are none. ok is false where the transport, or the
// kernel, takes no loans, or where n is not worth one: then there is still Sink.
func (c *Call) Loan(n, skew int) (fd int, ok bool) {
	if n < minLoan || (skew+n+pageSize-1)/pageSize > loanPages || c.server.opt.NoLoan {
		return -1, false
	}
	c.dropSink()
	c.taken = true
	return c.from.loanFor(n, skew)
}

// Unlend gives the pipe of a Loan back that nothing was put into.
func (c *Call) Unlend() {
	c.from.filled(0)
	c.dropSink()
}

// SetPayload puts the first n bytes of the Sink, or the n bytes of the Loan, and their padding, behind what Out has now. What is appended to
// Out after that stands behind them.
func (c *Call) SetPayload(n int) {
	c.payload, c.at = n, len(c.Out)
	c.from.filled(n)
}

// replyLen is the length of the reply message in bytes.
func (c *Call) replyLen() int {
	n := max(c.payload, 0)
	return len(c.Out) + n + xdr.Pad(n)
}

// before and behind are what of the message stands before the payload and its padding, and behind them.
func (c *Call) before() []byte {
	if c.payload < 0 {
		return c.Out
	}
	return c.Out[:c.at]
}

func (c *Call) behind() []byte {
	if c.payload < 0 {
		return nil
	}
	return c.Out[c.at:]
}

// appendReply appends the whole message, its payload copied.
func (c *Call) appendReply(b []byte) []byte {
	b = append(b, c.before()...)
	left := max(c.payload, 0)
	for _, s := range c.sink {
		s = s[:min(len(s), left)]
		left -= len(s)
		b = append(b, s...)
	}
	return append(xdr.AppendPad(b, max(c.payload, 0)), c.behind()...)
}

// Fail makes the reply an accepted one that is no success. What is none of the constants is answered as SystemErr: a success wants a
// result, and PROG_MISMATCH versions.
func (c *Call) Fail(s AcceptStat) Verdict {
	why, ok := failures[s]
	if !ok {
		s, why = SystemErr, refSystem
	}
	if c.server != nil {
		c.server.refuse(why)
	}
	c.Out = oncrpc.AppendReply(c.Out[:0], c.XID, oncrpc.AcceptStat(s))
	c.payload = -1
	return Done
}

// succeeded reports that the program has executed the call, whatever its result is: the reply's header ends with SUCCESS.
func (c *Call) succeeded() bool {
	return len(c.Out) >= oncrpc.ReplyLen && binary.BigEndian.Uint32(c.Out[oncrpc.ReplyLen-4:]) == uint32(oncrpc.Success)
}

// failures are the refusals that Fail stands for.
var failures = map[AcceptStat]refusal{
	ProgUnavail: refProgram, ProcUnavail: refProcedure, GarbageArgs: refArguments, SystemErr: refSystem,
}

// Garbage answers GARBAGE_ARGS: the arguments could not be decoded.
func (c *Call) Garbage() Verdict { return c.Fail(GarbageArgs) }

// NoProc answers PROC_UNAVAIL.
func (c *Call) NoProc() Verdict { return c.Fail(ProcUnavail) }

// Restart empties Out but for the header, for a result that is built from the beginning.
func (c *Call) Restart() {
	c.Out = c.Out[:oncrpc.ReplyLen]
	c.dropSink()
}

func (c *Call) dropSink() {
	if c.taken && c.from != nil {
		c.from.dropSink()
	}
	c.taken, c.sink, c.payload = false, nil, -1
}

// take is given the header of the call.
func (c *Call) take(h *oncrpc.Call) {
	c.XID, c.Prog, c.Vers, c.Proc, c.Cred = h.XID, h.Prog, h.Vers, h.Proc, Auth(h.Cred)
}

// begin makes the call one that arrives from a peer.
func (c *Call) begin(from carrier, peer *Peer) {
	lives.Move(&c.life, lifeArriving)
	c.server.stats.active.Add(1)
	c.from, c.Peer, c.payload = from, peer, -1
}

// release gives the call's memory back. The call is not to be used after it.
func (c *Call) release() {
	c.dropSink()
	c.letMsgGo()
	lives.Move(&c.life, lifeIdle)
	out := c.Out[:0]
	if cap(out) > maxReply {
		out = nil
	}
	c.take(&oncrpc.Call{})
	c.Peer, c.from, c.prog, c.cached, c.next = nil, nil, nil, nil, nil
	c.Worker, c.class, c.copied, c.key = false, unclassed, 0, 0
	c.dataArr[0] = nil
	c.Out = out
	c.server.stats.active.Add(-1)
	c.recycle()
}
