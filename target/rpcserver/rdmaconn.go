package rpcserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/owner"
	"github.com/sluice-storage/sluice/internal/rpcrdma"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// rdmaConn is one RPC-over-RDMA connection (RFC 8166).
//
//  1. The owner (internal/owner) takes a Send off the receive queue, copies the message (at most an inline threshold) into
//     a Call and notes its chunks in a slot.
//  2. Read chunks get memory from the connection's quota, and RDMA Reads within the connection's depth. A call whose
//     memory is not there waits in stalled, first come first served.
//  3. When the last Read of a call is complete the call is executed: by the owner, or by a worker (rdmaowner.go).
//  4. The reply is built in the slot: RDMA Writes for the write or reply chunk, then the Send. The receive is posted
//     again before the Send, so that the credit that the reply returns is covered.
//  5. The Send's completion frees the slot: the Writes before it are complete too.
//
// mu guards all mutable state, the queues of the engine included; it is a connection's own, and nothing below it waits for the
// peer.
type rdmaConn struct {
	connState
	s    *Server
	opt  RDMAOptions
	caps transport.Caps
	qp   transport.QP
	peer Peer

	crowd      *crowd    // its listener's
	pool       *mem.Pool // the listener's, or this connection's own
	own        bool
	quota      *mem.Quota
	recvs      []transport.Recv // of all steps, and the spare ones; those of steps that are open have memory
	setUp      context.Context  // while the connection is being made
	giveUp     func()           // ends that
	maxSend    int
	invalidate bool

	mu       sync.Mutex
	owner    owner.Engine[*rdmaCall] // keeps calls whose data is here
	slots    []rdmaCall
	idle     *rdmaCall
	steps    []creditStep
	step     int       // credits of one
	open     int       // steps that are granted
	wanted   int       // credits the client asked for last
	calls    int       // received and not answered
	peak     int       // of calls, since peakFrom
	peakFrom time.Time //
	freed    []*mem.Buf
	sending  int            // replies of which the completion is to come
	stalled  []*rdmaCall    // wait for memory for their read chunks
	unsent   []*rdmaCall    // wait for memory for their reply
	later    []*rdmaCall    // wait for memory for what they read
	inFlight sync.WaitGroup // calls handed on
	held     []heldRecv     // messages that wait for a slot
	closed   bool
	place    *place // waits for room for registered memory of its host's
	aside    int64  // of that room, for the call that asks next, bytes
	unposted bool   // it ends for what could not be posted
	err      error  // why we closed

	// For the watch: completions of each kind, and how often the first of some began to be waited for.
	moved, movedReads, movedSends atomic.Uint64
	quiet, quietReads, quietSends still
}

const (
	kindRecv = uint64(iota+1) << 32
	kindSend
	kindRead
	kindWrite
	kindMask = uint64(0xff) << 32
)

// heldRecv is a message that has been received and waits in its receive.
type heldRecv struct{ recv, n int }

// end closes the connection and waits for what is outstanding; err is why.
func (c *rdmaConn) end(err error) error {
	c.fail(nil)
	c.lost.Store(true)
	c.noMore.Store(true)
	c.owner.Drain(transport.Reason{})
	c.inFlight.Wait()
	c.mu.Lock()
	for i := range c.slots {
		c.slots[i].dropBufs()
	}
	if c.err != nil {
		err = c.err
	}
	c.mu.Unlock()
	if errors.Is(err, transport.ErrClosed) && c.s.isClosed() {
		return nil
	}
	return err
}

// fail closes the connection; err is what the peer did wrong, nil for an orderly end.
func (c *rdmaConn) fail(err error) {
	c.mu.Lock()
	if !c.closed {
		c.closed, c.err = true, err
		for _, r := range c.stalled {
			r.abandonLocked()
		}
		for _, r := range c.unsent {
			r.abandonLocked()
		}
		for _, r := range c.later {
			r.abandonLocked()
		}
		c.stalled, c.unsent, c.later = nil, nil, nil
		c.leaveRoomLocked()
		c.owner.StopLocked() // Drain accounts for what is queued
	}
	c.mu.Unlock()
	_ = c.qp.Close(transport.Reason{Err: err})
}

func (c *rdmaConn) complete(wc *transport.WC) {
	i := int(wc.Token & (1<<32 - 1))
	c.moved.Add(1)
	switch wc.Token & kindMask {
	case kindRecv:
		if wc.Err == nil {
			c.received(i, int(wc.Len))
		}
	case kindSend:
		c.mu.Lock()
		c.movedSends.Add(1)
		c.sending--
		c.slots[i].freeLocked()
		held := len(c.held) > 0
		c.unlockAndFree()
		if held {
			c.takeHeld(true)
		}
	case kindRead:
		c.mu.Lock()
		c.movedReads.Add(1)
		c.owner.ReadEndedLocked()
		if r := &c.slots[i]; r.readDoneLocked(wc.Err != nil) {
			c.owner.KeepLocked(r)
		}
		c.mu.Unlock()
	}
}

// received takes one message.
func (c *rdmaConn) received(recv, n int) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return // it is nothing to a connection that ends
	}
	r := c.takeSlotLocked()
	if r == nil && c.caps.InOrder && c.sending > 0 {
		// Replies have left whose completions wait behind a Read that the client has not answered yet: it has their credits
		// back and may use them (transport, rule 4). Receives bound how many come.
		c.held = append(c.held, heldRecv{recv, n})
		c.mu.Unlock()
		return
	}
	if r == nil {
		c.mu.Unlock()
		c.s.refuse(refOverrun)
		c.fail(errors.New("rpc: the client has more calls outstanding than it has credits (RFC 8166 section 3.3.1)"))
		return
	}
	c.mu.Unlock()
	c.take(r, recv, n, true)
}

// take begins a call in its slot with the message in a receive. mine says that the owner calls it.
func (c *rdmaConn) take(r *rdmaCall, recv, n int, mine bool) {
	r.recv = recv
	c.s.stats.bytesIn.Add(uint64(n))
	var rd xdr.Reader
	rd.Reset(c.recvs[recv].Buf.Bytes()[:n])
	if err := c.parseHeader(r, &rd); err != nil {
		c.badHeader(r, err)
		return
	}
	if r.h.Proc == rpcrdma.Error || r.h.Proc == rpcrdma.Done {
		// Linux drops them too: this side sends nothing that could be answered so.
		c.mu.Lock()
		c.repostLocked(r, true)
		r.freeLocked()
		c.unlockAndFree()
		return
	}
	call := c.s.newCall(r, &c.peer)
	r.call = call
	c.inFlight.Add(1)
	c.mu.Lock()
	c.calls++
	c.openLocked(r.h.Credits)
	c.unlockAndFree()
	inline := rd.Rest()
	if !r.plan(len(inline)) {
		c.refuse(r, rpcrdma.ErrChunk)
		return
	}
	call.grow(0, len(inline))
	call.copied = copy(call.msg, inline)
	if r.fetchesNothing() {
		slots.Move(&r.state, slotPlaced)
		at := turnReader
		if mine {
			at = turnPoll
		}
		c.execute(r, at)
		return
	}
	if !c.peer.trusted() {
		if r.zeroLen > 0 && r.dataLen > 0 {
			c.refuse(r, rpcrdma.ErrChunk)
			return
		}
		if r.zeroLen == 0 {
			lives.Move(&call.life, lifeScreening)
			c.s.pool.submit(call)
			return
		}
	}
	c.start(r)
}

// takeHeld takes messages that waited for a slot, as far as there are slots now, and reports whether there were some.
func (c *rdmaConn) takeHeld(mine bool) (some bool) {
	for {
		c.mu.Lock()
		if len(c.held) == 0 || c.idle == nil || c.closed {
			c.mu.Unlock()
			return some
		}
		h, r := c.held[0], c.takeSlotLocked()
		c.held = slices.Delete(c.held, 0, 1)
		c.mu.Unlock()
		c.take(r, h.recv, h.n, mine)
		some = true
	}
}

// screened asks the program, on a worker, whether the data of a call is to be fetched at all.
func (c *rdmaConn) screened(call *Call) {
	ok, err := c.s.parse(call)
	if err != nil {
		c.finish(call, Drop, err, true)
		return
	}
	v := Done
	if ok {
		if p, is := call.prog.(Screener); is {
			v, err = c.s.screen(call, p)
		} else {
			v = call.Garbage() // only programs that say so have bulk arguments
		}
	}
	if v != Again {
		slots.Move(&slotOf(call).state, slotPlaced) // no more is fetched, and the reply may wait for memory
		c.finish(call, v, err, true)
		return
	}
	lives.Move(&call.life, lifeArriving)
	c.start(slotOf(call))
	c.mu.Lock()
	c.owner.FlushLocked() // the owner may be asleep
	c.mu.Unlock()
}

// start begins to fetch what a call's read list offers.
func (c *rdmaConn) start(r *rdmaCall) {
	c.mu.Lock()
	if c.closed {
		r.abandonLocked()
		c.unlockAndFree()
		return
	}
	ok := c.startLocked(r) // its Reads go out with those of the calls that came with it
	c.mu.Unlock()
	if !ok {
		c.refuse(r, rpcrdma.ErrChunk)
	}
}

// parseHeader takes a message's transport header. A defect of the parser is the message's fault as far as others can tell.
func (c *rdmaConn) parseHeader(r *rdmaCall, rd *xdr.Reader) (err error) {
	defer func() {
		if p := recover(); p != nil {
			c.s.log.Error("a defect of this program ends a connection", zap.Any("panic", p), zap.Stringer("peer", c.peer.Addr), zap.Stack("stack"))
			err = errDefect
		}
	}()
	return r.h.Parse(rd)
}

// badHeader answers a header that cannot be used, or ends the connection where there is nothing to answer to.
func (c *rdmaConn) badHeader(r *rdmaCall, err error) {
	var ve *rpcrdma.VersionError
	var ce *rpcrdma.ChunkError
	switch {
	case errors.As(err, &ve):
		c.refuse(r, rpcrdma.ErrVers)
	case errors.As(err, &ce):
		c.refuse(r, rpcrdma.ErrChunk)
	default:
		c.s.refuse(refHeader)
		c.fail(fmt.Errorf("rpc: a message without an RPC-over-RDMA header: %w", err))
	}
}

// startLocked gets memory for a call's read chunks and lists its Reads, or lets it wait for memory. false means that
// the memory can never be had.
func (c *rdmaConn) startLocked(r *rdmaCall) bool {
	if len(c.stalled) > 0 {
		slots.Move(&r.state, slotStalled)
		c.stalled = append(c.stalled, r) // not before those who waited longer
		return true
	}
	switch err := r.readMemoryLocked(); {
	case err == nil:
		r.listReadsLocked()
	case errors.Is(err, mem.ErrNoMemory):
		slots.Move(&r.state, slotStalled)
		c.stalled = append(c.stalled, r)
		c.awaitLocked(r)
	default:
		return false
	}
	return true
}

// resumeSoon is told that there is memory again. The goroutine that released some may hold this connection's lock, or another's.
func (c *rdmaConn) resumeSoon() { go c.resume() }

// resume goes on with what waits for memory: replies first, because they give some back.
func (c *rdmaConn) resume() {
	c.mu.Lock()
	if c.closed { // it waits for nothing any more, and may have ended
		c.mu.Unlock()
		return
	}
	l := c.unsent
	c.unsent = nil
	for _, r := range l {
		slots.Move(&r.state, slotPlaced)
	}
	c.mu.Unlock()
	for _, r := range l {
		c.reply(r.call, false) // or it waits again
	}
	c.mu.Lock()
	defer c.unlockAndFree()
	if len(c.unsent) > 0 {
		return
	}
	for len(c.stalled) > 0 && !c.closed {
		r := c.stalled[0]
		if r.readMemoryLocked() != nil {
			c.awaitLocked(r)
			break
		}
		c.stalled = c.stalled[1:]
		r.listReadsLocked()
	}
	if len(c.stalled) == 0 {
		if len(c.later) == 0 {
			c.idleRoomLocked()
		}
		for _, r := range c.later {
			c.s.giveWorker(r.call)
		}
		c.later = nil
	}
	c.owner.FlushLocked()
}
