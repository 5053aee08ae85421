package rpcserver

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/mem"
)

// Program is one RPC program. Serve may be called by any number of goroutines.
type Program interface {
	// ID is the program number.
	ID() uint32
	// Versions are the lowest and highest version served; there must be no gap.
	Versions() (low, high uint32)
	// Serve executes a call: it reads c.Args and appends results to c.Out. With c.Worker false it must not block and
	// answers Again when it would; it is then called once more with the arguments unread, from a worker.
	Serve(c *Call) Verdict
	// Keeps reports whether executing this procedure a second time would do harm, so that a retransmission has to be
	// answered from the reply cache.
	Keeps(vers, proc uint32) bool
}

// Overwriter is a Program with procedures that must not be executed once more after what their client has sent since.
type Overwriter interface {
	Overwrites(vers, proc uint32) bool
}

// Screener is a Program with bulk arguments, which judges a call before the memory for its bulk argument is taken. It is asked over RDMA, of
// clients that have shown no right yet (Peer.Trust), so that strangers cannot hold the memory that all clients share.
type Screener interface {
	// Screen may block. It answers Again to have the argument fetched and the call served, Done when c.Out is a refusal.
	Screen(c *Call) Verdict
}

// Spoiled is what a program panics with where state that its clients share may be half changed: the process ends then, and
// clients recover. Any other panic ends the connection whose call it was.
type Spoiled struct{ Cause any }

func (s Spoiled) Error() string {
	return fmt.Sprintf("state that clients share may be half changed: %v", s.Cause)
}

// Guard turns a panic into Spoiled. It is deferred by code that changes what clients share.
func Guard() {
	if p := recover(); p != nil {
		if _, is := p.(Spoiled); is {
			panic(p)
		}
		panic(Spoiled{p})
	}
}

// Verdict is Serve's answer.
type Verdict uint8

const (
	// Done says that c.Out is the reply.
	Done Verdict = iota
	// Again asks to be called from a worker.
	Again
	// Drop says that there will be no reply.
	Drop
	// Later asks to be called again, from a worker, when there is memory for what Sink answered ErrNoMemory to. No worker
	// waits meanwhile: others may need it to give memory back.
	Later
)

// Peer is who called. One Peer serves all calls of a connection.
type Peer struct {
	Addr  netip.AddrPort // port 0 over RDMA
	Local netip.AddrPort
	RDMA  bool
	UDP   bool
	// Memo is the program's to use: what it decided about this peer.
	Memo atomic.Pointer[any]

	shown atomic.Pointer[time.Time] // until when its right counts that a program has found last
	slots atomic.Int32
	state *connState // nil for what is no connection
}

// Trust notes that a program has found a right of this peer's. That counts for a while: a program is to say it again while the peer
// makes use of it.
func (p *Peer) Trust() {
	now := time.Now()
	if was := p.shown.Load(); was != nil && now.Add(trustTime-trustAgain).Before(*was) {
		return
	}
	until := now.Add(trustTime)
	if p.shown.Swap(&until) == nil && p.state != nil && p.state.proved != nil {
		p.state.proved()
	}
}

// trusted reports whether a right has been found lately.
func (p *Peer) trusted() bool { return lasts(p.shown.Load()) }

func lasts(until *time.Time) bool { return until != nil && time.Now().Before(*until) }

// Slots is how many calls the peer may have in flight on its connection as things are, 0 for what is no connection.
func (p *Peer) Slots() int { return int(p.slots.Load()) }

// HostMemo is as Memo, and shared by all connections of the peer's host while there are some; nil for what is no connection.
func (p *Peer) HostMemo() *atomic.Pointer[any] {
	if p.state == nil {
		return nil
	}
	return &p.state.host.memo
}

// Privileged reports whether the peer's port is one that only root may use. A fabric hides the port; its peers count as
// privileged, as with knfsd.
func (p *Peer) Privileged() bool { return p.RDMA || p.Addr.Port() < 1024 }

// Call is one call and its reply. It belongs to Serve until Serve returns.
type Call struct {
	oncrpc.Call
	Sys    oncrpc.Sys // with flavor AUTH_SYS
	Args   xdr.Reader
	Peer   *Peer
	Worker bool
	Out    []byte // begins with the reply header of a Success
	// Scope is the program's to use while it serves the call: what the call turned out to be about.
	Scope any

	server *Server
	from   replier
	prog   Program
	start  int // of Args in the message
	msg    []byte
	body   *[]byte // pooled memory of msg, nil where msg is in small
	small  [inlineBody]byte
	copied int // bytes of msg that were elsewhere first

	sink    [][]byte // what Sink gave
	payload int      // bytes of sink that follow Out, -1 for none
	sinkArr [2][]byte
	dataArr [1][]byte
	plain   *[]byte // pooled memory of sink, for streams
	loan    *pipe   // in place of sink, for streams
	lent    int     // bytes that loan was asked for
	rdma    *rdmaCall
	held    int // of what a stream holds, bytes
	cached  *cacheEntry
	trailer [4]byte
	mark    [4]byte
	next    *Call
	screen  bool // a worker is to ask the program before the argument is fetched
	dead    bool // Superseded has said so
	own     bool // the goroutine at hand may execute it though it might block
	polled  bool // the goroutine at hand is the owner of an RDMA connection, in its Poll's completions
	lane    *lane
	room    int64  // taken of the room for requests, bytes
	strange bool   // of the strangers' rooms too
	key     uint64 // claimKey
	keyed   bool
}

// replier is the transport that a call came from.
type replier interface {
	// reply sends c's reply and takes c over; drop only takes it over. flush is false when more calls are about to be
	// answered by the same goroutine.
	reply(c *Call, flush bool)
	drop(c *Call)
	// finish does what the verdict says; an error ends the connection.
	finish(c *Call, v Verdict, err error, flush bool)
	// gone reports that the call's connection is lost: a call that no worker has begun is not to be executed.
	gone() bool
	// sinkFor returns memory for n bytes of result.
	sinkFor(c *Call, n int) ([][]byte, error)
}

// Data takes n bytes of opaque argument, whose length has just been read from Args, and its padding. They are in Args
// or, over RDMA, were read from the client's memory.
func (c *Call) Data(n int) ([][]byte, error) {
	if n < 0 || n > MaxPayload {
		return nil, &xdr.LimitError{Len: uint32(n), Max: MaxPayload}
	}
	if c.rdma != nil && c.rdma.hasChunk {
		return c.rdma.chunkData(c, n)
	}
	before := c.Args.Offset()
	b := c.Args.Fixed(n)
	if err := c.Args.Err(); err != nil {
		return nil, err
	}
	c.server.stats.copiedIn.add(n, c.copied-before)
	c.dataArr[0] = b
	return c.dataArr[:1], nil
}

// ErrNoMemory is Sink's answer where other calls hold all there is; the verdict is Later then.
var ErrNoMemory = mem.ErrNoMemory

// Sink returns memory for n bytes of opaque result. SetPayload says how many were used.
func (c *Call) Sink(n int) ([][]byte, error) {
	if c.sink != nil || c.loan != nil {
		c.dropSink()
	}
	s, err := c.from.sinkFor(c, min(n, MaxPayload))
	c.sink = s
	return s, err
}

// SetPayload makes the first n bytes of the Sink, or the n bytes of the Loan, and their padding, follow Out.
func (c *Call) SetPayload(n int) {
	c.payload = n
	if c.loan != nil {
		c.loan.left = n
	}
}

// Fail makes the reply an accepted one that is no success.
func (c *Call) Fail(s oncrpc.AcceptStat) Verdict {
	if why, ok := failures[s]; ok && c.server != nil {
		c.server.refuse(why)
	}
	c.Out = oncrpc.AppendReply(c.Out[:0], c.XID, s)
	c.payload = -1
	return Done
}

// succeeded reports that the program has executed the call, whatever its result is: the reply's header ends with SUCCESS.
func (c *Call) succeeded() bool {
	return len(c.Out) >= oncrpc.ReplyLen && binary.BigEndian.Uint32(c.Out[oncrpc.ReplyLen-4:]) == uint32(oncrpc.Success)
}

// failures are the refusals that Fail stands for.
var failures = map[oncrpc.AcceptStat]refusal{
	oncrpc.ProgUnavail: refProgram, oncrpc.ProcUnavail: refProcedure, oncrpc.GarbageArgs: refArguments, oncrpc.SystemErr: refSystem,
}

// Garbage answers GARBAGE_ARGS: the arguments could not be decoded.
func (c *Call) Garbage() Verdict { return c.Fail(oncrpc.GarbageArgs) }

// NoProc answers PROC_UNAVAIL.
func (c *Call) NoProc() Verdict { return c.Fail(oncrpc.ProcUnavail) }

// Restart empties Out but for the header, for a result that has to be built anew.
func (c *Call) Restart() {
	c.Out = c.Out[:oncrpc.ReplyLen]
	c.dropSink()
	c.payload = -1
}

func (c *Call) dropSink() {
	c.dropLoan()
	if c.held > 0 {
		if st, ok := c.from.(*stream); ok {
			st.letGo(c.held)
		}
		c.held = 0
	}
	if c.plain != nil {
		putBytes(c.plain)
		c.plain = nil
	}
	if c.rdma != nil {
		c.rdma.dropSink()
	}
	c.sink = nil
	c.payload = -1
}

// release gives the call's memory back. The call is not to be used after it.
func (c *Call) release() {
	c.dropSink()
	c.letMsgGo()
	out := c.Out[:0]
	if cap(out) > maxReply {
		out = nil
	}
	s := c.server
	c.Call = oncrpc.Call{}
	c.Peer, c.from, c.prog, c.cached, c.next, c.rdma = nil, nil, nil, nil, nil, nil
	c.Worker, c.own, c.polled, c.screen, c.dead, c.keyed, c.copied, c.lane = false, false, false, false, false, false, 0, nil
	c.dataArr[0], c.sinkArr = nil, [2][]byte{}
	c.Out = out
	s.stats.active.Add(-1)
	s.calls.Put(c)
}
