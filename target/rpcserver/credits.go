package rpcserver

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// Credits (RFC 8166 section 3.3.1) are granted in steps, and each step has memory of the listener's pool behind it: its
// receives, and the buffers of the replies. A connection begins with one step. It gets another when it uses what it has
// and asks for more, and loses one when it has not used them for a while or when bulk data waits for memory. So what is
// granted to all connections together never exceeds what is there to receive it.
//
//   - Opening: the receives are posted before the reply that grants them is.
//   - Closing: the reply that grants less is the first whose receive is not posted again. A client that has not seen it
//     yet still counts that call as outstanding, so it cannot send more than there are receives for.
//
// The grant is written into a reply when it takes its place in the queue of Sends: replies that workers build side by
// side must not tell grants in the wrong order.
type creditStep struct {
	buf     *mem.Buf // nil while closed
	closing bool
	recvs   int   // receives that are posted, or whose call has no reply yet
	busy    int   // slots in use
	room    int64 // taken of the host's room for registered memory, bytes
}

// creditOffset is where a header has rdma_credit (RFC 8166 section 4.2.3).
const creditOffset = 8

// stepSize is how many credits a step has: as many as fit one buffer of the pool with their receives, twice as many
// replies, and the spare receives.
func stepSize(inline int) int { return max(1, min(creditsPerStep, (mem.MaxBuf/inline-spareRecvs)/3)) }

// initCredits lays the steps out; none is open.
func (c *rdmaConn) initCredits() {
	c.step = min(stepSize(c.opt.Inline), c.opt.Credits)
	n := (c.opt.Credits + c.step - 1) / c.step
	c.steps = make([]creditStep, n)
	c.recvs = make([]transport.Recv, n*c.step+spareRecvs)
	// Twice the credits: a client may call again before the completion of the Send that answered it is seen here.
	c.slots = make([]rdmaCall, 2*n*c.step)
	for i := range c.slots {
		c.slots[i].conn, c.slots[i].idx = c, i
	}
	c.peakFrom = time.Now()
	c.peer.slots.Store(int32(c.step))
}

// openStepLocked opens the next step, and with the first one the spare receives. It posts nothing.
func (c *rdmaConn) openStepLocked(get func(int) (*mem.Buf, error)) ([]transport.Recv, error) {
	k := c.open
	recvs := c.recvs[k*c.step : (k+1)*c.step]
	n := len(recvs) + 2*c.step
	if k == 0 {
		n += spareRecvs
	}
	// What a connection begins with is bounded by the number of them. More is for hosts that have room for more.
	room := mem.Capacity(n * c.opt.Inline)
	if k == 0 {
		c.host.fabric.force(room)
	} else if !c.host.fabric.try(room) {
		return nil, mem.ErrNoMemory
	}
	b, err := get(n * c.opt.Inline)
	if err != nil {
		c.host.fabric.give(room)
		return nil, err
	}
	at := 0
	cut := func() mem.Span {
		at += c.opt.Inline
		return b.Span().Cut(at-c.opt.Inline, c.opt.Inline)
	}
	for i := range recvs {
		recvs[i] = transport.Recv{Token: kindRecv | uint64(k*c.step+i), Buf: cut()}
	}
	for i := 2 * k * c.step; i < 2*(k+1)*c.step; i++ {
		r := &c.slots[i]
		r.send = cut()
		r.next, c.idle = c.idle, r
	}
	if k == 0 {
		first := len(c.recvs) - spareRecvs
		for i := first; i < len(c.recvs); i++ {
			c.recvs[i] = transport.Recv{Token: kindRecv | uint64(i), Buf: cut()}
		}
	}
	c.steps[k] = creditStep{buf: b, recvs: len(recvs), room: room}
	c.open++
	c.s.stats.credits.Add(int64(c.step))
	return recvs, nil
}

// firstStep opens the first step, and returns the receives that are posted before the connection is accepted. Memory that
// others hold is waited for: who is refused for want of it comes again at once, and a mount fails.
func (c *rdmaConn) firstStep() ([]transport.Recv, error) {
	quota := c.pool.Quota(2 * mem.MaxBuf)
	defer quota.Close()
	for {
		c.mu.Lock()
		l, err := c.openStepLocked(quota.Get)
		c.mu.Unlock()
		if err == nil {
			return append(l[:len(l):len(l)], c.recvs[len(c.recvs)-spareRecvs:]...), nil
		}
		if errors.Is(err, mem.ErrNoMemory) {
			there := make(chan struct{})
			quota.Wait(func() { close(there) })
			select {
			case <-there:
				continue
			case <-c.setUp.Done():
			}
		}
		return nil, fmt.Errorf("rpc: memory for a connection's receives: %w", err)
	}
}

// openLocked grants more when the client uses what it has. wanted is what it asked for.
func (c *rdmaConn) openLocked(wanted uint32) {
	c.wanted = max(1, int(min(wanted, maxCredits)))
	c.peak = max(c.peak, c.calls)
	have := c.open * c.step
	if c.open == len(c.steps) || c.wanted <= have || c.calls*4 < have*3 || c.starved() || c.steps[c.open].buf != nil {
		return // the last: a step that is still closing
	}
	recvs, err := c.openStepLocked(c.pool.Get)
	if err != nil {
		return // no memory, no promise
	}
	if n, err := c.qp.PostRecv(recvs); err != nil {
		if n > 0 {
			c.unpostedLocked(err)
			return
		}
		s := c.shutStepLocked() // the adapter has no room for it, or the connection is ending: no receives, no promise
		s.recvs = 0
		c.doneClosingLocked(s)
		return
	}
	c.s.stats.creditsOpened.Add(uint64(len(recvs)))
}

// starved reports that calls or replies wait for memory.
func (c *rdmaConn) starved() bool { return len(c.stalled)+len(c.unsent)+len(c.later) > 0 }

// closeStepLocked takes a step back where it is due. It is called with each reply.
func (c *rdmaConn) closeStepLocked() {
	now := time.Now()
	idle := now.Sub(c.peakFrom) > creditIdle
	if c.open > 1 && (c.starved() || idle && c.peak <= (c.open-1)*c.step/2) {
		c.shutStepLocked()
		c.s.stats.creditsClosed.Add(uint64(c.step))
	}
	if idle {
		c.peak, c.peakFrom = c.calls, now
	}
}

// shutStepLocked takes the last step's credits back; its memory goes when nothing uses it any more.
func (c *rdmaConn) shutStepLocked() *creditStep {
	c.open--
	s := &c.steps[c.open]
	s.closing = true
	for p := &c.idle; *p != nil; {
		if r := *p; c.stepOf(r) == s {
			*p, r.next = r.next, nil
			continue
		}
		p = &(*p).next
	}
	c.s.stats.credits.Add(-int64(c.step))
	return s
}

func (c *rdmaConn) stepOf(r *rdmaCall) *creditStep { return &c.steps[r.idx/(2*c.step)] }

// grantLocked is what a reply says: at least one, or nothing would ever move again.
func (c *rdmaConn) grantLocked() int {
	n := max(1, min(c.open*c.step, c.opt.Credits, c.wanted))
	c.peer.slots.Store(int32(n)) // what is granted less for want of memory is granted again soon
	if c.starved() {
		n = min(n, starvedCredits)
	}
	return max(n, 1)
}

// creditLocked puts the grant into a reply that is about to be queued.
func (c *rdmaConn) creditLocked(r *rdmaCall) {
	c.closeStepLocked()
	binary.BigEndian.PutUint32(r.send.Bytes()[creditOffset:], uint32(c.grantLocked()))
}

// repostLocked gives the receive of a call back to the queue: with its reply and those that leave with it, or, if again is set, at
// once, because there will be none that could take the credit back.
func (c *rdmaConn) repostLocked(r *rdmaCall, again bool) {
	if r.recv < 0 || c.closed {
		return
	}
	i := r.recv
	r.recv = -1
	if i < len(c.steps)*c.step && !again {
		if s := &c.steps[i/c.step]; s.closing {
			s.recvs--
			c.doneClosingLocked(s)
			return
		}
	}
	if again {
		c.postRecvLocked(c.recvs[i : i+1])
		return
	}
	c.owner.RecvLocked(c.recvs[i])
}

// takeSlotLocked returns an idle slot, or nil.
func (c *rdmaConn) takeSlotLocked() *rdmaCall {
	r := c.idle
	if r != nil {
		c.idle, r.next = r.next, nil
		slots.Move(&r.state, slotArrived)
		c.stepOf(r).busy++
	}
	return r
}

func (r *rdmaCall) freeLocked() {
	slots.Must(&r.state, slotIdle)
	r.dropBufs()
	c := r.conn
	if c.calls == 0 {
		c.idleRoomLocked()
	}
	s := c.stepOf(r)
	s.busy--
	if s.closing {
		c.doneClosingLocked(s)
		return
	}
	r.next, c.idle = c.idle, r
}

// doneClosingLocked gives a step's memory back when nothing uses it any more.
func (c *rdmaConn) doneClosingLocked(s *creditStep) {
	if s.recvs == 0 && s.busy == 0 {
		c.freed = append(c.freed, s.buf)
		c.host.fabric.give(s.room)
		*s = creditStep{}
	}
}

// unlockAndFree unlocks and then releases the memory of steps that closed: a release may call what waits for it.
func (c *rdmaConn) unlockAndFree() {
	l := c.freed
	c.freed = nil
	c.mu.Unlock()
	for _, b := range l {
		b.Release()
	}
}
