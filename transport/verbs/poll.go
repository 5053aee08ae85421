package verbs

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/sluice-storage/sluice/transport"
)

// Poll returns completions. Only the owner calls it.
func (q *QP) Poll(wc []transport.WC) (int, error) {
	if len(wc) == 0 {
		return 0, nil
	}
	q.pollMu.Lock()
	defer q.pollMu.Unlock()
	n := q.deliverLocked(wc)
	for q.cqLive && n < len(wc) {
		k, err := q.dev.tab.Poll(q.cq, q.comps[:min(len(q.comps), len(wc)-n)])
		if err != nil {
			q.fail(&LinkError{Device: q.a.attr.Name, Reason: "the completion queue failed", Err: err})
			break
		}
		q.polled.Add(uint64(k))
		for i := range q.comps[:k] {
			if q.digestLocked(&q.comps[i], &wc[n]) {
				n++
			}
		}
		if k < len(q.comps) {
			break
		}
	}
	if n == 0 && q.settled() {
		return 0, q.why()
	}
	return n, nil
}

// deliverLocked hands out what was taken from the adapter before; pollMu is held.
func (q *QP) deliverLocked(wc []transport.WC) int {
	n := copy(wc, q.done[q.doneAt:])
	for i := range wc[:n] {
		if wc[i].Op == transport.OpRecv {
			q.heldIn.Add(-1)
		} else {
			q.held.Add(-1)
		}
	}
	if q.doneAt += n; q.doneAt == len(q.done) {
		q.done, q.doneAt = q.done[:0], 0
	}
	return n
}

// keepLocked adds a completion for the owner; pollMu is held.
func (q *QP) keepLocked(wc transport.WC) {
	q.done = append(q.done, wc)
	if wc.Op == transport.OpRecv {
		q.heldIn.Add(1)
	} else {
		q.held.Add(1)
	}
}

// takeLocked takes all completions that the adapter has; pollMu is held. It reports whether anything changed for the owner.
func (q *QP) takeLocked() (some bool) {
	var wc transport.WC
	for q.cqLive {
		k, err := q.dev.tab.Poll(q.cq, q.comps)
		if err != nil {
			q.fail(&LinkError{Device: q.a.attr.Name, Reason: "the completion queue failed", Err: err})
			return true
		}
		q.polled.Add(uint64(k))
		for i := range q.comps[:k] {
			if q.digestLocked(&q.comps[i], &wc) {
				q.keepLocked(wc)
			}
		}
		if some = some || k > 0; k < len(q.comps) {
			break
		}
	}
	return some
}

// digestLocked makes c a completion of the contract; false means that the upper protocol has no use for it. pollMu is held.
func (q *QP) digestLocked(c *workComp, wc *transport.WC) bool {
	if c.ID&recvID != 0 {
		return q.digestRecvLocked(c, wc)
	}
	s := &q.sq
	if c.ID == markerID {
		q.marked = true
		for seq := s.work.head.Load(); seq != s.work.tail.Load(); seq++ {
			q.retire(s.work.at(seq), true) // what has no completion of its own has succeeded
		}
		s.work.head.Store(s.work.tail.Load())
		return false
	}
	f := &s.work
	if c.ID&readID != 0 {
		f = &s.reads
	}
	at := uint32(c.ID)
	if at-f.head.Load() >= f.tail.Load()-f.head.Load() { // tail also orders what Post wrote before what is read here
		return false // of nothing that is outstanding
	}
	for seq := f.head.Load(); seq != at; seq++ {
		q.retire(f.at(seq), true) // unsignaled, and done; of Reads there is none
	}
	e := f.at(at)
	*wc = transport.WC{Token: e.token, Op: e.op, Len: e.size}
	ok := c.Status == wcSuccess
	q.retire(e, ok)
	want := e.signaled
	if !ok {
		wc.Len, wc.Err = 0, q.workErr(c, e.op)
		want = true
	}
	f.head.Store(at + 1)
	return want
}

// retire ends what a request began.
func (q *QP) retire(e *sqEntry, ok bool) {
	if e.op == transport.OpBind || e.op == transport.OpInvalidate {
		q.retireWindowLocked(e, ok)
	}
}

func (q *QP) digestRecvLocked(c *workComp, wc *transport.WC) bool {
	r := &q.rq
	at := uint32(c.ID)
	if at-r.head.Load() >= r.tail.Load()-r.head.Load() { // as in digest
		return false
	}
	*wc = transport.WC{Token: r.tab[at&r.mask].token, Op: transport.OpRecv}
	r.head.Store(at + 1)
	if c.Status != wcSuccess {
		wc.Err = q.workErr(c, transport.OpRecv)
		return true
	}
	wc.Len = c.Bytes
	if c.Inv != 0 {
		if !q.endedLocked(c.Inv) {
			// siw ends what it is told to, a region of ours too.
			q.fail(&LinkError{Device: q.a.attr.Name, Reason: "the peer invalidated an STag that is no window of this connection"})
		}
		wc.Inv = c.Inv
	}
	return true
}

// workErr is the error of a request that did not succeed. The first one ends the connection: the adapter has stopped it.
func (q *QP) workErr(c *workComp, op transport.Op) error {
	if (c.Status == wcFlushed || c.Status == wcLocQPOp) && !q.dead() {
		// Its port may be the reason, whose event is not here yet.
		if p, err := q.dev.tab.Port(q.path.Dev, q.path.Port); err == nil && p.State != portActive {
			q.fail(&LinkError{Device: q.a.attr.Name, Reason: downText(q.path.Port), untold: true})
			return q.why()
		}
	}
	if c.Status == wcFlushed {
		q.fail(&LinkError{Device: q.a.attr.Name, Reason: "the connection was ended by the peer or the network", untold: true})
		return q.why()
	}
	err := &WorkError{Status: uint32(c.Status), Vendor: c.Vendor, Op: op}
	q.fail(err)
	return err
}

// lookLocked reports whether Poll has something to say, and if it has not arranges that the channel tells; pollMu is held.
func (q *QP) lookLocked() bool {
	if len(q.done) > 0 || !q.cqLive {
		return true
	}
	tab := q.dev.tab
	if q.takeLocked() {
		return true // the event, if there was one, is taken when there is nothing else to do
	}
	if q.armed {
		n, err := tab.Events(q.ch)
		if err != nil {
			q.fail(&LinkError{Device: q.a.attr.Name, Reason: "the completion channel failed", Err: err})
			return true
		}
		if q.armed = n == 0; q.armed {
			return false // what has come since then has its event
		}
	}
	if err := tab.Arm(q.cq); err != nil {
		q.fail(&LinkError{Device: q.a.attr.Name, Reason: "the completion queue failed", Err: err})
		return true
	}
	q.armed = true
	return q.takeLocked() // what came before the arming has no event
}

// Wait parks the owner until Poll would yield.
func (q *QP) Wait(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !q.made() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-q.ready:
		}
	}
	if q.made() {
		q.watch.On(ctx)
	}
	for !q.dead() {
		err := q.rc.Read(q.waitFn)
		q.parked.Store(false)
		switch {
		case err == nil:
			if q.watch.Ended() {
				return ctx.Err()
			}
			if !q.dead() {
				return nil
			}
		case errors.Is(err, os.ErrDeadlineExceeded):
			// A kick, perhaps a late one of an earlier parking. What kicked has made known why before.
			_ = q.file.SetReadDeadline(time.Time{})
		case q.dead(): // the channel is closed
		default:
			q.fail(&LinkError{Device: q.a.attr.Name, Reason: "the completion channel failed", Err: err})
		}
	}
	return q.waitEnd(ctx)
}

// waitEnd waits for the last completions of a dead queue pair.
func (q *QP) waitEnd(ctx context.Context) error {
	q.pollMu.Lock()
	some := len(q.done) > 0
	q.pollMu.Unlock()
	if some {
		return nil
	}
	select {
	case <-q.over:
		q.watch.Off()
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// waitStep is what the runtime's poller runs: true ends the parking.
func (q *QP) waitStep(uintptr) bool {
	q.parked.Store(true)
	q.pollMu.Lock()
	some := q.lookLocked()
	q.pollMu.Unlock()
	if some || q.dead() || q.watch.Ended() {
		q.parked.Store(false)
		return true
	}
	return false
}
