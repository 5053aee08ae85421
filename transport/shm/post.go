package shm

import (
	"errors"
	"fmt"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

var (
	errReadLocal    = errors.New("shm: an RDMA Read needs exactly one piece of local memory")
	errNotConnected = errors.New("shm: the queue pair is not connected")
)

// Post queues work requests and puts them into the ring.
func (q *QP) Post(wrs []transport.WR) (int, error) {
	var fx effects
	n, err := q.post(wrs, &fx)
	q.settle(&fx)
	return n, err
}

func (q *QP) post(wrs []transport.WR, fx *effects) (int, error) {
	q.tx.Lock()
	defer q.tx.Unlock()
	for i := range wrs {
		if err := q.postLocked(&wrs[i], fx); err != nil {
			q.pumpLocked(fx)
			return i, err
		}
	}
	q.pumpLocked(fx)
	return len(wrs), nil
}

func (q *QP) postLocked(wr *transport.WR, fx *effects) error {
	t := &q.tx
	switch p := q.life.is(); {
	case p >= ended:
		return t.err
	case p < established:
		return errNotConnected
	}
	if q.sqUsed.Load() >= int32(q.send) || t.sq.Full() {
		return transport.ErrQueueFull
	}
	switch wr.Op {
	case transport.OpBind:
		return q.bindLocked(wr, fx)
	case transport.OpInvalidate:
		return q.invalidateLocked(wr, fx)
	case transport.OpSend, transport.OpSendInv, transport.OpWrite, transport.OpRead:
	default:
		return fmt.Errorf("shm: work request with operation %d, which is none", wr.Op)
	}
	m := t.sq.Next()
	if err := m.mem.set(wr.Local); err != nil {
		return err
	}
	m.op, m.flags, m.token, m.inv, m.remote = wr.Op, wr.Flags, wr.Token, wr.Inv, wr.Remote
	m.fenceAt, m.free = 0, false
	if wr.Flags&transport.Fence != 0 {
		m.fenceAt = t.reads
	}
	if wr.Op == transport.OpRead {
		if len(wr.Local) > 1 {
			return errReadLocal
		}
		if int(q.readsUp.Load()) >= q.depth.Out {
			return transport.ErrTooManyReads
		}
		q.addReadLocked(m)
	} else if m.mem.total > inlineMax {
		if err := q.showLocked(wr.Local); err != nil {
			return err
		}
	}
	t.sq.Push()
	q.sqUsed.Add(1)
	return nil
}

// showLocked makes sure that the peer will have what it has to copy from.
func (q *QP) showLocked(spans []mem.Span) error {
	for i := range spans {
		if spans[i].Len == 0 {
			continue
		}
		if err := q.tx.shares.show(spans[i].Slab); err != nil {
			return err
		}
	}
	return nil
}

// addReadLocked notes where the response to a Read goes.
func (q *QP) addReadLocked(m *txMsg) {
	q.tx.reads++
	q.readsUp.Add(1)
	s := sink{token: m.token, flags: m.flags}
	if m.mem.n > 0 {
		s.part = m.mem.part[0]
	}
	q.stags.Lock()
	*q.stags.reads.Push() = s
	q.stags.Unlock()
}

func (q *QP) ownWindow(wr *transport.WR) (*window, error) {
	w, ok := wr.Window.(*window)
	if !ok || w.q != q {
		return nil, errors.New("shm: the window is not one of this queue pair")
	}
	return w, nil
}

// bindLocked is in force when it returns: no later request of this QP is in the ring before that.
func (q *QP) bindLocked(wr *transport.WR, fx *effects) error {
	w, err := q.ownWindow(wr)
	if err != nil {
		return err
	}
	if w.refs != 0 {
		return errors.New("shm: bind of a window that a Read Response still takes from; its Invalidate is not complete")
	}
	if wr.Access&transport.RemoteRead != 0 {
		for i := range wr.Local {
			if wr.Local[i].Len > 0 && !q.dev.knows(wr.Local[i].Slab) {
				return errUnregistered // the peer is to copy from it
			}
		}
	}
	q.stags.Lock()
	defer q.stags.Unlock()
	if w.valid.Load() {
		return errors.New("shm: bind of a window that is bound; invalidate it first")
	}
	if err := w.mem.set(wr.Local); err != nil {
		return err
	}
	w.stag, w.base = q.stags.tab.Fresh()
	w.access = wr.Access
	w.gen++
	w.valid.Store(true)
	q.stags.tab.Insert(w.stag, w)
	if wr.Flags&transport.Signaled != 0 {
		q.sqUsed.Add(1)
		*q.tx.cq.Push() = transport.WC{Token: wr.Token, Op: transport.OpBind, Len: uint32(w.mem.total)}
		fx.wake = true
	}
	return nil
}

// invalidateLocked ends the STag at once, unless fenced; the completion waits for the owner and for the peer to let go.
func (q *QP) invalidateLocked(wr *transport.WR, fx *effects) error {
	w, err := q.ownWindow(wr)
	if err != nil {
		return err
	}
	iv := invalidation{w: w, gen: w.gen, token: wr.Token, flags: wr.Flags}
	if wr.Flags&transport.Fence != 0 {
		iv.fenceAt = q.tx.reads
	}
	if q.readsOK.Load() >= iv.fenceAt {
		q.stags.Lock()
		q.stags.kill(w)
		q.stags.Unlock()
	}
	q.sqUsed.Add(1)
	*q.tx.inval.Push() = iv
	q.invals.Add(1)
	fx.wake = true
	return nil
}

// invalidationsLocked completes local Invalidates of which nothing is left to be placed or read. It is the owner's.
func (q *QP) invalidationsLocked() {
	t := &q.tx
	for t.inval.Len() > 0 && !q.life.dead() {
		iv := t.inval.At(0)
		if q.readsOK.Load() < iv.fenceAt {
			return
		}
		if iv.fenceAt > 0 {
			q.stags.Lock()
			if iv.w.gen == iv.gen {
				q.stags.kill(iv.w)
			}
			q.stags.Unlock()
		}
		if iv.w.refs > 0 {
			return // the peer still copies from it
		}
		if iv.flags&transport.Signaled != 0 {
			*q.rxcq.Push() = transport.WC{Token: iv.token, Op: transport.OpInvalidate}
		} else {
			q.sqUsed.Add(-1)
		}
		t.inval.Pop()
		q.invals.Add(-1)
	}
}
