package verbs

import (
	"errors"
	"time"

	"github.com/sluice-storage/sluice/transport"
)

// The numbers of requests have 32 bits. recvID marks those of receives: a completion with an error says nothing of what it is
// of but its number. readID marks those of Reads, which have a queue of their own. markerID is the request behind which nothing
// is outstanding but Reads, where those are overtaken.
const (
	recvID   = 1 << 63
	markerID = 1 << 62
	readID   = 1 << 61
)

const (
	lingerTime = 250 * time.Millisecond // for what was posted before an orderly end to be acknowledged
	firstNap   = 20 * time.Microsecond
	longestNap = 2 * time.Millisecond
)

// Close ends the connection. The peer learns that it ended; verbs have no message that says why.
func (q *QP) Close(r transport.Reason) error {
	var t *transport.TerminateError
	switch {
	case r.Err == nil:
		q.end(transport.ErrClosed, r.Cut)
	case errors.As(r.Err, &t):
		q.end(t, r.Cut)
	default:
		q.end(&LinkError{Reason: "the connection was given up", Err: r.Err, asked: true}, r.Cut)
	}
	return nil
}

// fail ends the queue pair for the reason err; the first one counts. It may be called with any lock held but life, and by
// event loops: what blocks is done elsewhere.
func (q *QP) fail(err error) { q.end(err, true) }

func (q *QP) end(err error, cut bool) {
	q.life.Lock()
	if q.dead() {
		q.life.Unlock()
		return
	}
	used := q.used()
	q.err, q.cut = err, cut
	q.phase.moveLocked(qpPhaseMoves, dying)
	close(q.dying)
	q.life.Unlock()
	if used {
		go q.takeApart()
		return
	}
	q.settle()
	close(q.ready)
}

// lost makes an error of a connection's set-up the reason of its queue pair's end.
func lost(err error) error {
	if errors.Is(err, transport.ErrClosed) {
		return err
	}
	return &LinkError{Reason: "the connection was not made", Err: err}
}

// takeApart takes the queue pair from the adapter, in the order that rule 6 needs: everything outstanding completes, the adapter
// lets go of all memory, windows and objects are freed, and the owner hears of the end.
func (q *QP) takeApart() {
	defer q.dev.drop(q)
	q.kick() // an owner that is parked leaves the channel
	q.build.Lock()
	q.quiesce()
	if q.stillAsksLocked() && q.letGo() {
		q.build.Unlock()
		q.settle()
		q.dev.later(func() {
			<-q.asks.over
			q.build.Lock()
			q.destroyLocked()
			q.build.Unlock()
		})
		return
	}
	if q.hw != 0 {
		q.stopLocked()
	}
	q.destroyLocked()
	q.build.Unlock()
	q.settle()
	if !q.made() {
		close(q.ready)
	}
}

// stillAsksLocked reports whether the library goes on asking for the connection, after a moment in which it may have returned; build is held.
func (q *QP) stillAsksLocked() bool {
	if q.asks == nil {
		return false
	}
	t := time.NewTimer(lingerTime)
	defer t.Stop()
	select {
	case <-q.asks.over:
		return false
	case <-t.C:
		return true
	}
}

// letGo makes the adapter return all memory of a queue pair whose id cannot be destroyed yet: in ERR it cannot be connected any more.
// False means that the adapter keeps some; then the owner hears of the end when the id is free.
func (q *QP) letGo() bool {
	err := q.dev.tab.ErrorQP(q.hw)
	q.dev.warn("a queue pair could not be stopped", err)
	stopped := err == nil || q.a.gone.Load() // one that is not may be connected yet
	clean := stopped && q.drain(drainTime, func() bool { return q.rq.kept || q.rq.head.Load() == q.rq.tail.Load() })
	if !clean {
		<-q.asks.over
		return false
	}
	q.pollMu.Lock()
	q.cqLive = false
	q.pollMu.Unlock()
	q.dev.mem.forsake(q.dom)
	return true
}

// quiesce waits until Post and PostRecv that have seen the queue pair alive are over. None uses the library after it.
func (q *QP) quiesce() {
	q.sq.Lock()
	q.rq.Lock()
	q.rq.Unlock() //nolint:staticcheck // to have had it is what counts
	q.sq.Unlock()
}

// stopLocked ends the connection and waits until what is outstanding has completed; build is held.
func (q *QP) stopLocked() {
	if !q.live() {
		return // it has never been able to send or to receive
	}
	tab := q.dev.tab
	busy := func() bool { return q.sq.out() != 0 }
	q.sq.Lock()
	marked := !q.cut && busy() && q.markLocked()
	q.sq.Unlock()
	if marked {
		q.drain(lingerTime, func() bool { return q.marked })
	}
	q.dev.warn("a queue pair could not be stopped", tab.ErrorQP(q.hw))
	q.sq.Lock()
	if !marked && busy() && !q.a.noMark {
		marked = q.markLocked()
	}
	q.sq.Unlock()
	clean := q.drain(drainTime, func() bool {
		return (q.rq.kept || q.rq.head.Load() == q.rq.tail.Load()) && q.sq.reads.out() == 0 && (!marked || q.marked || !busy())
	})
	if clean && q.a.noMark {
		q.passQuiet()
	}
	if q.mute() {
		return // destroy sees to it
	}
	// The peer hears of the end, or has its answer. It is told last: rdma_disconnect moves the queue pair to ERR too, and that
	// is over by now.
	_ = tab.Disconnect(q.id) // one that the peer has ended says so
}

// passQuiet lets go of requests that have no completion because none was asked for: the adapter has returned all others.
func (q *QP) passQuiet() {
	q.pollMu.Lock()
	defer q.pollMu.Unlock()
	s := &q.sq
	for seq := s.work.head.Load(); seq != s.work.tail.Load(); seq++ {
		if e := s.work.at(seq); e.signaled {
			break
		}
		s.work.head.Store(seq + 1)
	}
}

// markLocked posts the request that completes last; sq is held.
func (q *QP) markLocked() bool {
	n, err := q.dev.tab.PostSend(q.hw, []sendWR{{ID: markerID, Op: wrWrite, Flags: flagSignaled}}, nil)
	return n == 1 && err == nil
}

// drain takes completions until done says that it is enough, or none comes for so long. It looks again and again: the
// channel is the owner's, and this is over in no time.
func (q *QP) drain(limit time.Duration, done func() bool) bool {
	nap, last := firstNap, time.Now()
	for {
		q.pollMu.Lock()
		some, enough := q.takeLocked(), done()
		q.pollMu.Unlock()
		if enough {
			return true
		}
		if some {
			nap, last = firstNap, time.Now()
		} else if time.Since(last) > limit {
			return false
		}
		time.Sleep(nap)
		nap = min(2*nap, longestNap)
	}
}

// destroyLocked frees all objects of the library, each after what was made in it; build is held.
func (q *QP) destroyLocked() {
	d, tab := q.dev, q.dev.tab
	if q.hw != 0 {
		if q.a.holdsQP {
			q.freeWindowsLocked() // the queue pair is in ERR, where nothing of the peer's is carried out
		}
		q.a.asyncMu.Lock()
		delete(q.a.qps, q.hw)
		d.warn("a queue pair could not be destroyed", tab.DestroyQP(q.id))
		q.a.asyncMu.Unlock()
		q.hw = 0
	}
	// From here the adapter touches no memory of this connection.
	q.freeWindowsLocked()
	q.pollMu.Lock()
	q.cqLive = false
	if q.cq != 0 {
		d.warn("a completion queue could not be destroyed", tab.DestroyCQ(q.cq))
		q.cq = 0
	}
	q.pollMu.Unlock()
	if q.file != nil {
		_ = q.file.Close() // a descriptor of ours
	}
	if q.ch != 0 {
		d.warn("a completion channel could not be destroyed", tab.DestroyChannel(q.ch))
		q.ch = 0
	}
	switch {
	case q.id == 0:
	case q.mute():
		q.a.part(q.id, q.path.Port)
	default:
		d.cm.dropID(q.id)
	}
	q.id = 0
	if q.dom != nil {
		d.mem.leave(q.dom)
	}
}

// settle returns to the owner what has not completed, and then the end.
func (q *QP) settle() {
	err := q.why()
	q.sq.Lock() // of a queue pair that never had an adapter, Post and PostRecv may not be over before
	q.rq.Lock()
	q.pollMu.Lock()
	s, r := &q.sq, &q.rq
	for _, f := range []*fifo{&s.reads, &s.work} {
		for seq := f.head.Load(); seq != f.tail.Load(); seq++ {
			e := f.at(seq)
			q.keepLocked(transport.WC{Token: e.token, Op: e.op, Err: err})
		}
		f.head.Store(f.tail.Load())
	}
	for seq := r.head.Load(); seq != r.tail.Load(); seq++ {
		q.keepLocked(transport.WC{Token: r.tab[seq&r.mask].token, Op: transport.OpRecv, Err: err})
	}
	r.head.Store(r.tail.Load())
	q.life.Lock()
	q.phase.moveLocked(qpPhaseMoves, settled)
	q.life.Unlock()
	close(q.over)
	q.pollMu.Unlock()
	q.rq.Unlock()
	q.sq.Unlock()
	q.notify()
}
