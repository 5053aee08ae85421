package iwarp

import (
	"errors"
	"fmt"

	"github.com/sluice-storage/sluice/transport"
)

var errReadLocal = errors.New("iwarp: an RDMA Read needs exactly one piece of local memory")

// Post queues work requests and transmits.
func (q *QP) Post(wrs []transport.WR) (int, error) {
	t := &q.tx
	t.Lock()
	defer t.Unlock()
	for i := range wrs {
		if err := q.postLocked(&wrs[i]); err != nil {
			t.pumpLocked(q.opt.NoInline)
			return i, err
		}
	}
	t.pumpLocked(q.opt.NoInline)
	return len(wrs), nil
}

func (q *QP) postLocked(wr *transport.WR) error {
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
		return q.bind(wr)
	case transport.OpInvalidate:
		return q.invalidate(wr)
	case transport.OpSend, transport.OpSendInv, transport.OpWrite, transport.OpRead:
	default:
		return fmt.Errorf("iwarp: work request with operation %d, which is none", wr.Op)
	}
	m := t.nextLocked()
	if err := m.mem.set(wr.Local); err != nil {
		return err
	}
	m.op, m.flags, m.token, m.inv, m.remote = wr.Op, wr.Flags, wr.Token, wr.Inv, wr.Remote
	m.fenceAt, m.ours = 0, false
	if wr.Flags&transport.Fence != 0 {
		m.fenceAt = t.reads
	}
	if wr.Op == transport.OpRead {
		if m.mem.n > 1 || len(wr.Local) > 1 {
			return errReadLocal
		}
		if int(q.readsUp.Load()) >= q.depth.Out {
			return transport.ErrTooManyReads
		}
		q.addRead(m, false)
	}
	t.sq.Push()
	q.sqUsed.Add(1)
	return nil
}

// addRead makes the sink of the Read m. Nothing but the response to it can name the STag.
func (q *QP) addRead(m *txMsg, internal bool) {
	q.tx.reads++
	q.readsUp.Add(1)
	var buf []byte
	if m.mem.n > 0 {
		buf = m.mem.seg[0]
	}
	q.stags.Lock()
	stag, base := q.stags.tab.Fresh()
	if internal {
		stag, base = 1, 0 // interop: adapters refuse STag 0 in zero-length frames
	}
	*q.stags.reads.Push() = readSink{stag: stag, base: base, buf: buf, token: m.token, flags: m.flags, internal: internal}
	if len(buf) >= q.opt.CopyThreshold {
		q.stags.largeReads.Add(1)
	}
	q.stags.Unlock()
	m.req = readReq{SinkSTag: stag, SinkTO: base, Size: uint32(len(buf)), SrcSTag: m.remote.STag, SrcTO: m.remote.Off}
}

func (q *QP) ownWindow(wr *transport.WR) (*window, error) {
	w, ok := wr.Window.(*window)
	if !ok || w.q != q {
		return nil, errors.New("iwarp: the window is not one of this queue pair")
	}
	return w, nil
}

func (q *QP) bind(wr *transport.WR) error {
	w, err := q.ownWindow(wr)
	if err != nil {
		return err
	}
	if w.txRefs != 0 {
		return errors.New("iwarp: bind of a window that a Read Response still takes from; its Invalidate is not complete")
	}
	q.stags.Lock()
	defer q.stags.Unlock()
	if w.valid.Load() {
		return errors.New("iwarp: bind of a window that is bound; invalidate it first")
	}
	if err := w.mem.set(wr.Local); err != nil {
		return err
	}
	w.stag, w.base = q.stags.tab.Fresh()
	w.access = wr.Access
	w.gen++
	w.large = wr.Access&transport.RemoteWrite != 0 && w.mem.total >= q.opt.CopyThreshold
	if w.large {
		q.stags.large.Add(1)
	}
	w.valid.Store(true)
	q.stags.tab.Insert(w.stag, w)
	if wr.Flags&transport.Signaled != 0 {
		q.sqUsed.Add(1)
		q.complete(transport.WC{Token: wr.Token, Op: transport.OpBind, Len: uint32(w.mem.total)})
	}
	return nil
}

// invalidate ends the STag at once, unless fenced; the completion waits for the owner and for transmit to let go.
func (q *QP) invalidate(wr *transport.WR) error {
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
	q.cq.Lock()
	*q.cq.inval.Push() = iv
	q.cq.Unlock()
	q.invals.Add(1)
	q.notify()
	return nil
}
