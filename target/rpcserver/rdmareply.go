package rpcserver

import (
	"time"

	"github.com/sluice-storage/sluice/internal/rpcrdma"
	"github.com/sluice-storage/sluice/transport"
)

// execute gives a complete call to the server.
func (c *rdmaConn) execute(r *rdmaCall, at turn) {
	call := r.call
	r.assemble(call)
	if _, err := c.s.handle(call, at, false); err != nil {
		// RFC 8166 section 4.5.3 has no answer for a payload that is no RPC call; the connection ends.
		c.fail(err)
	}
}

// refuse answers a message whose header cannot be used, with RDMA_ERROR (RFC 8166 section 4.5).
func (c *rdmaConn) refuse(r *rdmaCall, code uint32) {
	c.s.refuse(refHeader)
	h := rpcrdma.Header{XID: r.h.XID, Vers: rpcrdma.Version, Proc: rpcrdma.Error, ErrCode: code,
		Low: rpcrdma.Version, High: rpcrdma.Version}
	c.mu.Lock()
	if r.call != nil {
		call := r.call
		r.call, call.from = nil, nil
		call.release()
		c.calls--
		c.inFlight.Done()
	}
	b := h.Append(r.send.Bytes()[:0])
	r.sges = r.sges[:0]
	r.wrs = append(r.wrs[:0], transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: kindSend | uint64(r.idx), Local: r.local(r.send.Cut(0, len(b)))})
	c.sendLocked(r)
	c.owner.FlushLocked()
	c.unlockAndFree()
}

// sendLocked queues a slot's work requests behind those that wait already.
func (c *rdmaConn) sendLocked(r *rdmaCall) {
	if c.closed {
		r.freeLocked()
		return
	}
	slots.Move(&r.state, slotReplying)
	r.since = time.Now()
	c.creditLocked(r)
	c.repostLocked(r, false)
	c.owner.SendLocked(0, r.wrs...)
	if c.sending == 0 {
		c.movedSends.Add(1)
	}
	c.sending++
}

// reply builds and sends a call's reply.
func (c *rdmaConn) reply(call *Call, flush bool) {
	r := slotOf(call)
	r.letArgsGo(call)
	switch ok, err := r.build(call); {
	case err != nil:
		c.mu.Lock()
		if !c.closed {
			// The client has its answer when others have given memory back.
			slots.Move(&r.state, slotUnsent)
			c.unsent = append(c.unsent, r)
			c.awaitLocked(r)
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
	case !ok:
		c.refuse(r, rpcrdma.ErrChunk) // releases the call
		return
	}
	c.mu.Lock()
	r.call, call.from = nil, nil
	c.s.stats.bytesOut.Add(uint64(len(call.Out) + max(call.payload, 0)))
	c.calls--
	c.sendLocked(r)
	if flush {
		c.owner.FlushLocked()
	}
	c.unlockAndFree()
	call.release()
	c.inFlight.Done()
}

func (c *rdmaConn) finish(call *Call, v Verdict, err error, flush bool) {
	if err != nil {
		c.fail(err)
	}
	switch v {
	case Drop:
		c.drop(call)
	case Later:
		c.putOff(call)
	default:
		c.reply(call, flush)
	}
}

// putOff keeps a call until there is memory for what it reads.
func (c *rdmaConn) putOff(call *Call) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		c.drop(call)
		return
	}
	r := slotOf(call)
	c.later = append(c.later, r)
	c.awaitLocked(r)
	c.mu.Unlock()
}

// drop ends a call without a reply.
func (c *rdmaConn) drop(call *Call) {
	r := slotOf(call)
	c.mu.Lock()
	c.calls--
	if r != nil {
		r.call, call.from = nil, nil
		c.repostLocked(r, true)
		r.freeLocked()
	}
	c.unlockAndFree()
	call.release()
	if c.takeHeld(false) { // no reply is sent whose completion would
		c.mu.Lock()
		c.owner.FlushLocked() // the owner may be asleep
		c.mu.Unlock()
	}
	c.inFlight.Done()
}

// slotOf is the slot of a call, nil where its reply has it.
func slotOf(call *Call) *rdmaCall {
	r, _ := call.from.(*rdmaCall)
	return r
}

func (r *rdmaCall) reply(flush bool)                        { r.conn.reply(r.call, flush) }
func (r *rdmaCall) drop()                                   { r.conn.drop(r.call) }
func (r *rdmaCall) finish(v Verdict, err error, flush bool) { r.conn.finish(r.call, v, err, flush) }
func (r *rdmaCall) gone() bool                              { return r.conn.gone() }
func (r *rdmaCall) work()                                   { r.conn.screened(r.call) }
