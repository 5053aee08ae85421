package block

import (
	"fmt"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/iscsi"
)

// submit takes a request, or reports that the session is over.
func (s *session) submit(r *request) bool {
	s.mu.Lock()
	if s.dead {
		s.mu.Unlock()
		return false
	}
	s.acceptLocked(r)
	s.pumpAndUnlock()
	return true
}

// submitAll is submit of several. Their commands leave in one batch.
func (s *session) submitAll(rs []*blockdev.Request) bool {
	s.mu.Lock()
	if s.dead {
		s.mu.Unlock()
		return false
	}
	for _, b := range rs {
		s.acceptLocked(stateOf(b))
	}
	s.pumpAndUnlock()
	return true
}

func (s *session) acceptLocked(r *request) {
	if r.cancelled.Load() {
		r.Err = ErrCancelled
		s.overLocked(r)
	} else {
		s.enqueueLocked(r)
	}
}

// overLocked gives a request whose outcome is set to those that are told next.
func (s *session) overLocked(r *request) {
	r.to(ended)
	s.done.push(r)
}

// pumpAndUnlock starts commands and, unless the owner is going to, completes what has ended.
func (s *session) pumpAndUnlock() {
	s.pumpLocked()
	if s.corked {
		s.mu.Unlock()
		return
	}
	done := s.done.take()
	s.mu.Unlock()
	done.complete()
}

// flushLocked gives finished requests back without the lock; what their callbacks submit leaves in one batch. The lock is
// held on entry and return. Only the owner calls it.
func (s *session) flushLocked() {
	for s.done.head != nil {
		done := s.done.take()
		s.corked = true
		s.mu.Unlock()
		done.complete()
		s.mu.Lock()
		s.corked = false
		s.pumpLocked()
	}
}

// enqueueLocked gives a request its queue.
func (s *session) enqueueLocked(r *request) {
	r.epoch = s.epoch
	r.to(queued)
	switch {
	case r.pin != nil:
		s.asks.push(r)
	case r.asks() && s.use != useNone:
		s.userAsks.push(r)
		s.doubtLocked()
	default:
		s.queue.push(r)
	}
}

// unqueueLocked takes a request out of its queue.
func (s *session) unqueueLocked(r *request) bool {
	return s.queue.remove(r) || s.asks.remove(r) || s.userAsks.remove(r)
}

// nextLocked is the queue whose turn it is, nil when none may send.
func (s *session) nextLocked() *reqList {
	switch {
	case s.asks.head != nil:
		return &s.asks
	case s.queue.head != nil && s.use != useGated && !s.paused:
		return &s.queue
	}
	return nil
}

// pumpLocked starts as many commands as slots and the target's window allow (RFC 7143 section 4.2.2.1).
func (s *session) pumpLocked() {
	if s.corked || s.dead {
		return
	}
	batch := s.batch[:0]
	for len(s.free) > 0 && iscsi.SNLessEq(s.cmdSN, s.maxCmdSN) {
		queue := s.nextLocked()
		if queue == nil {
			break
		}
		r := queue.head
		t := s.free[len(s.free)-1]
		last, ok := t.build(r, &s.limits, s.dm.maxSGE(), s.ini.zero)
		if !ok {
			r.failed = fmt.Errorf("%w: its memory is in more pieces than one command can take", ErrBadRequest)
			queue.pop()
			r.to(out)
			if r.inflight == 0 {
				s.settleLocked(r)
			}
			continue
		}
		s.free = s.free[:len(s.free)-1]
		t.gen = (t.gen + 1) & 0x7fff
		t.itt, t.cmdSN = t.gen<<taskIndexBits|uint32(t.idx), s.cmdSN
		taskLives.Move(&t.life, taskSent)
		t.beat = s.beat
		s.cmdSN++
		s.out++
		s.sent++
		r.inflight++
		r.sent = true
		if last {
			queue.pop()
			r.to(out)
		}
		batch = append(batch, t)
	}
	if len(batch) == 0 {
		return
	}
	if err := s.dm.send(s, batch); err != nil {
		s.failLocked(err)
	}
}

// lookupLocked finds the task of a tag, nil for one that is not out.
func (s *session) lookupLocked(itt uint32) *task {
	i := int(itt & (1<<taskIndexBits - 1))
	if i >= len(s.tasks) || s.tasks[i].life == taskFree || s.tasks[i].itt != itt {
		return nil
	}
	return &s.tasks[i]
}

// numbersLocked takes the sequence numbers of a response (RFC 7143 section 4.2.2). stat says that it carries a status.
func (s *session) numbersLocked(b iscsi.BHS, stat bool) {
	s.heard++
	if stat {
		s.statSN = b.StatSN() + 1
	}
	// A MaxCmdSN below ExpCmdSN-1 is ignored, an older one too (section 4.2.2.1).
	if m := b.MaxCmdSN(); !iscsi.SNLess(m, b.ExpCmdSN()-1) && iscsi.SNLess(s.maxCmdSN, m) {
		s.maxCmdSN = m
	}
}

// finishLocked ends a task that is answered and of which the connection holds nothing more.
func (s *session) finishLocked(t *task) {
	r := t.req
	taskLives.Move(&t.life, taskFree)
	t.req = nil
	s.free = append(s.free, t)
	if s.out--; s.out == 0 && s.drained != nil {
		close(s.drained)
		s.drained = nil
	}
	r.inflight--
	if t.err != nil {
		if r.failed == nil {
			r.failed = t.err
		}
	} else {
		r.finished += t.n
	}
	if r.life == queued && (r.failed != nil || r.cancelled.Load()) {
		s.unqueueLocked(r) // no more pieces of it
		r.to(out)
	}
	if r.inflight == 0 && r.life == out {
		s.settleLocked(r)
	}
}

// cancel ends the commands of a request, or takes it out of the queue. r.cancelled is set.
func (s *session) cancel(r *request) {
	s.mu.Lock()
	if s.dead {
		// What a dead session has is given back by its end, which minds the cancellation.
		s.mu.Unlock()
		return
	}
	if s.unqueueLocked(r) {
		if r.inflight > 0 {
			r.to(out)
		} else {
			r.Err = ErrCancelled
			s.overLocked(r)
		}
	}
	for i := range s.tasks {
		t := &s.tasks[i]
		if t.life == taskSent && t.req == r && t.abort == abortNone && !s.dead {
			s.abortLocked(t)
		}
	}
	var done reqList
	if !s.corked {
		done = s.done.take()
	}
	s.mu.Unlock()
	done.complete()
}
