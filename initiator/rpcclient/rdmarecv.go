package rpcclient

import (
	"context"
	"fmt"
	"runtime"

	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/internal/rpcrdma"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/transport"
)

// run is the owner's loop.
func (t *rdma) run() {
	defer t.c.wg.Done()
	for {
		wcs, err := t.poll.Next(context.Background(), true)
		if err != nil {
			break
		}
		t.completeAll(wcs)
	}
	t.close()
	_ = t.poll.Drain(t.completeAll)
	t.mu.Lock()
	for i := range t.slots {
		s := &t.slots[i]
		s.release()
		if s.p != nil {
			s.p.slot = nil
			if s.bad != nil && t.c.takeFailed(s.p.xid) == s.p {
				s.p.done <- s.bad
			}
		}
		s.tellGone()
	}
	for _, p := range t.queue {
		p.unstage() // it is sent again over the next connection
	}
	t.queue = nil
	t.mu.Unlock()
	t.quota.Close()
	_ = t.unmap() // what an adapter does not let go of stays mapped
	t.c.ended(t)
}

func (s *slot) tellGone() {
	if s.gone != nil {
		close(s.gone)
		s.gone = nil
	}
}

func (s *slot) release() {
	for _, e := range [...]*exposed{&s.data, &s.list} {
		if e.buf != nil {
			e.buf.Release()
			e.buf = nil
		}
		e.bound = false
	}
}

// completeAll takes completions. Where several callers have their replies they are let run first, and what they call next
// leaves with one system call, to find the server busy with it at once.
func (t *rdma) completeAll(wcs []transport.WC) {
	if len(wcs) == 0 {
		return
	}
	t.mu.Lock()
	t.held, t.over = true, 0
	for i := range wcs {
		t.completeLocked(&wcs[i])
	}
	if t.over > 1 {
		t.mu.Unlock()
		runtime.Gosched()
		t.mu.Lock()
	}
	t.held = false
	t.fillLocked()
	t.mu.Unlock()
}

func (t *rdma) completeLocked(wc *transport.WC) {
	i := int(wc.Token & (1<<32 - 1))
	if wc.Err != nil {
		t.closeLocked(nil)
		return
	}
	switch wc.Token & kindMask {
	case kindRecv:
		if err := t.receivedLocked(i, wc); err != nil {
			t.closeLocked(err)
		}
	case kindSend:
		s := &t.slots[i]
		s.sendDone = true
		t.overLocked(s)
	case kindInvalidate:
		s := &t.slots[i]
		s.invalid--
		t.overLocked(s)
	}
}

// receivedLocked takes a reply.
func (t *rdma) receivedLocked(i int, wc *transport.WC) error {
	var h rpcrdma.Header
	var r xdr.Reader
	msg := t.recvs[i].Buf.Bytes()[:wc.Len]
	r.Reset(msg)
	err := h.Parse(&r)
	s := t.byXID[h.XID]
	if err != nil {
		err = &ProtocolError{err}
		if s != nil {
			s.bad = err
		}
		return err
	}
	if s == nil {
		_, err := t.qp.PostRecv(t.recvs[i : i+1])
		return err // a reply to nothing: harmless
	}
	delete(t.byXID, h.XID)
	t.granted = max(int(min(h.Credits, credits)), 1)
	if s.p != nil { // a forgotten call's memory is out of reach, whatever the reply says of it
		if err := s.take(&h, &r, wc.Inv); err != nil {
			s.bad = &ProtocolError{err}
			return s.bad
		}
	}
	if _, err := t.qp.PostRecv(t.recvs[i : i+1]); err != nil {
		return err
	}
	s.replied = true
	for _, e := range [...]*exposed{&s.data, &s.list} {
		if !e.bound {
			continue
		}
		if wc.Inv != 0 && wc.Inv == e.win.Remote().STag {
			e.bound = false
			continue
		}
		if err := t.invalidateLocked(s, e); err != nil {
			return err
		}
	}
	t.overLocked(s)
	return nil
}

// take reads a reply's header: what the server says it placed must be what was offered.
func (s *slot) take(h *rpcrdma.Header, r *xdr.Reader, inv uint32) error {
	if inv != 0 && !(s.data.bound && inv == s.data.win.Remote().STag) && !(s.list.bound && inv == s.list.win.Remote().STag) {
		return fmt.Errorf("it invalidated STag 0x%08x, which is none of the call's (RFC 8797 section 4.3)", inv)
	}
	s.placed = -1
	switch h.Proc {
	case rpcrdma.Error:
		s.reply = oncrpc.AppendReply(nil, s.xid, oncrpc.GarbageArgs) // the server could not use the chunks
		return nil
	case rpcrdma.Msg:
		s.reply = append([]byte(nil), r.Rest()...)
	case rpcrdma.Nomsg:
		n := rpcrdma.Total(h.Reply)
		if !s.list.bound || len(h.Reply) != 1 || n > uint64(s.list.local[0].Len) {
			return fmt.Errorf("a long one of %d bytes that was not offered room", n)
		}
		s.reply = append([]byte(nil), s.list.buf.Bytes()[:n]...)
	}
	if len(h.Writes) > 0 {
		n := rpcrdma.Total(h.Segments(h.Writes[0]))
		if !s.data.bound || n > uint64(s.data.local[0].Len) {
			return fmt.Errorf("it placed %d bytes where less was offered", n)
		}
		s.placed = int(n)
	}
	return nil
}

// overLocked ends a call when the reply is here, the Send's memory free and no STag alive.
func (t *rdma) overLocked(s *slot) {
	if s.invalid == 0 {
		s.tellGone()
	}
	if !s.replied || !s.sendDone || s.invalid > 0 {
		return
	}
	p := s.p
	// With forget, which needs mu, the caller's memory is still there.
	if p != nil && t.c.take(p.xid) == p {
		call := p.call
		call.reply = s.reply
		call.placed = max(s.placed, 0)
		if call.placed > 0 && s.data.buf != nil {
			call.bounce, call.got, s.data.buf = s.data.buf, s.placed, nil
		}
		p.slot = nil
		p.done <- nil
		t.over++
	}
	s.release()
	s.p, s.reply, s.replied, s.sendDone = nil, nil, false, false
	s.next, t.idle = t.idle, s
	t.used--
	if !t.held {
		t.fillLocked()
	}
}
