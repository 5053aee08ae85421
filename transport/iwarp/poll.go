package iwarp

import (
	"context"
	"errors"
	"os"
	"runtime"
	"time"

	"github.com/sluice-storage/sluice/transport"
)

// Poll runs the engine and returns completions. Only the owner calls it.
func (q *QP) Poll(wc []transport.WC) (int, error) {
	if len(wc) == 0 {
		return 0, nil
	}
	if q.rxcq.Len() == 0 && q.life.up() {
		if q.rx.socket == short && q.rx.ph != starved && q.life.is() == established {
			q.rx.socket = unread // the last read emptied the socket: Wait looks again, and looking twice is a system call more
		} else {
			_ = q.rc.Control(q.pollFn) // fails only when the QP has
		}
	}
	if q.pending.Load() {
		q.pending.Store(false)
		if q.invals.Load() > 0 {
			q.invalidations()
		}
	}
	n := 0
	for ; n < len(wc) && q.rxcq.Len() > 0; n++ {
		wc[n] = *q.rxcq.Pop()
		if wc[n].Op == transport.OpRecv {
			q.rqUsed.Add(-1)
		} else {
			q.sqUsed.Add(-1)
		}
	}
	if n < len(wc) {
		n = q.drain(wc, n)
	}
	if n == 0 && q.life.dead() {
		if n = q.drain(wc, 0); n > 0 {
			return n, nil // completed between the look above and the end
		}
		return q.flush(wc)
	}
	return n, nil
}

// drain appends the transmitter's completions.
func (q *QP) drain(wc []transport.WC, n int) int {
	q.cq.Lock()
	defer q.cq.Unlock()
	for ; n < len(wc) && q.cq.ring.Len() > 0; n++ {
		wc[n] = *q.cq.ring.Pop()
		q.sqUsed.Add(-1)
	}
	if q.cq.ring.Len() > 0 {
		q.pending.Store(true)
	}
	return n
}

// invalidations completes local Invalidates of which nothing is left to be placed or sent.
func (q *QP) invalidations() {
	q.tx.Lock() // keeps Post off the list; cq is taken for each look, for it comes after stags
	defer q.tx.Unlock()
	for i := q.invals.Load(); i > 0 && !q.life.dead(); i-- {
		q.cq.Lock()
		iv := *q.cq.inval.At(0)
		q.cq.Unlock()
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
		x := &q.rx
		if x.ph == inPayload && x.win == iv.w && x.winGen == iv.gen && x.left > 0 && !x.discard {
			x.discard = true // the rest of the segment in flight must not land
			x.bad = violation(transport.LayerDDP, ddpTagged, ddpTagSTag, "RFC 5041 section 7.2",
				"STag 0x%08x was invalidated while a Write to it was arriving", x.h.stag)
		}
		if iv.w.txRefs > 0 {
			return // dropRefs wakes us
		}
		q.cq.Lock()
		q.cq.inval.Pop()
		q.cq.Unlock()
		q.invals.Add(-1)
		if iv.flags&transport.Signaled != 0 {
			*q.rxcq.Push() = transport.WC{Token: iv.token, Op: transport.OpInvalidate}
		} else {
			q.sqUsed.Add(-1)
		}
	}
}

// flush returns what was outstanding when the QP failed, and in the end the reason.
func (q *QP) flush(wc []transport.WC) (int, error) {
	q.tx.Lock()
	defer q.tx.Unlock()
	err := q.tx.err
	if q.tx.state != settled {
		return 0, nil // a system call still reads the buffers; the goroutine that made it wakes us
	}
	n := 0
	add := func(op transport.Op, token uint64) {
		wc[n] = transport.WC{Token: token, Op: op, Err: err}
		n++
	}
	for n < len(wc) && q.tx.sq.Len() > 0 {
		if m := q.tx.sq.Pop(); m.op != transport.OpRead && !m.ours { // Reads are below
			add(m.op, m.token)
		}
	}
	q.cq.Lock()
	for n < len(wc) && q.cq.inval.Len() > 0 {
		add(transport.OpInvalidate, q.cq.inval.Pop().token)
	}
	q.cq.Unlock()
	q.stags.Lock()
	for n < len(wc) && q.stags.reads.Len() > 0 {
		if r := q.stags.reads.Pop(); !r.internal {
			add(transport.OpRead, r.token)
		}
	}
	q.stags.Unlock()
	if n < len(wc) && q.rx.cur.active {
		q.rx.cur.active = false
		add(transport.OpRecv, q.rx.cur.token)
	}
	q.rq.Lock()
	for n < len(wc) && q.rq.ring.Len() > 0 {
		add(transport.OpRecv, q.rq.ring.Pop().token)
	}
	q.rq.Unlock()
	if n > 0 {
		return n, nil
	}
	q.watch.Off()
	return 0, err
}

// yields reports whether Poll has something to say.
func (q *QP) yields() bool {
	if q.rxcq.Len() > 0 || q.pending.Load() {
		return true
	}
	if !q.life.dead() {
		return false
	}
	q.tx.Lock()
	defer q.tx.Unlock()
	return q.tx.state == settled
}

// Wait parks the owner until Poll would yield. It runs the engine.
func (q *QP) Wait(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !q.life.wasUp() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-q.ready:
		}
		if !q.life.wasUp() {
			return nil // Poll says why
		}
	}
	q.watch.On(ctx)
	for {
		if q.yields() {
			return nil
		}
		err := q.rc.Read(q.waitFn)
		q.parked.Store(false)
		if q.yields() {
			return nil
		}
		if cerr := ctx.Err(); cerr != nil {
			return cerr
		}
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			// A kick, perhaps a late one of an earlier parking. What kicked has made known why before.
			_ = q.file.SetReadDeadline(time.Time{})
		default:
			q.fail(lost(err), nil, nil)
		}
		if q.life.dead() {
			runtime.Gosched() // a transmitter is in its last system call
		}
	}
}

// waitStep is what the runtime's poller runs: true ends the parking.
func (q *QP) waitStep(fd uintptr) bool {
	q.parked.Store(false)
	for {
		q.engine(fd)
		if q.rxcq.Len() > 0 || q.pending.Load() || q.life.dead() || q.watch.Ended() {
			return true
		}
		if q.rx.socket == drained {
			break
		}
	}
	q.rx.giveBuf()
	q.parked.Store(true)
	if q.pending.Load() || q.life.dead() || q.watch.Ended() {
		q.parked.Store(false)
		return true
	}
	return false
}
