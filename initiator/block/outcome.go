package block

import (
	"errors"
	"fmt"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
)

// errCleared is the outcome of a command that another initiator's reset took away without a word.
var errCleared = errors.New("block: the command was cleared by another initiator")

// settleLocked decides what becomes of a request without commands out: done, or once more.
func (s *session) settleLocked(r *request) {
	switch {
	case r.cancelled.Load():
		r.Err = ErrCancelled
	case r.failed == nil && s.undoneLocked(r):
		// Power was lost since its first command left, and with it what the target had said of the earlier ones. The
		// request has not been acknowledged: all of it is done again.
		r.reset()
		s.enqueueLocked(r)
		return
	case r.failed == nil && (r.Op == blockdev.Flush || r.step == stepFlush) && s.unjudgedLocked(r):
		// The report was taken by a command before this flush, which may have come too late for what was there to be flushed
		// (SAM-5 section 5.14: a unit attention is reported once). Once judged, the flush tells; and what it completes is written again.
		r.reset()
		s.enqueueLocked(r)
		return
	case r.failed == nil && r.Op == blockdev.WriteZeroes && r.FUA && r.step == stepOwn:
		// WRITE SAME has no FUA bit; the cache is flushed instead.
		steps.Move(&r.step, stepFlush)
		r.to(queued)
		s.queue.push(r)
		return
	case r.failed != nil && s.againLocked(r):
		return
	case r.failed == nil && s.path != nil && r.pin == nil:
		r.Err = s.path.v.power.ended(r, s.epoch, s.limits.writeThrough)
	default:
		r.Err = r.failed
		if r.Op == blockdev.Flush && s.path != nil && r.pin == nil {
			s.path.v.power.told(r, r.failed)
		}
	}
	s.overLocked(r)
}

func (s *session) undoneLocked(r *request) bool {
	return r.epoch != s.epoch && (r.Op == blockdev.Write || r.Op == blockdev.WriteZeroes || r.Op == blockdev.Discard)
}

// unjudged: the target has reported POWER ON to this session, and the volume's requests wait for the look at what that means.
func (s *session) unjudgedLocked(r *request) bool {
	return s.path != nil && r.pin == nil && s.use == useGated && s.path.powerOn.Load()
}

// againLocked sends a request once more if its failure asks for it: a unit attention says that the command was not begun, BUSY
// and TASK SET FULL that it was not taken, TASK ABORTED and ABORTED COMMAND that another initiator or the target ended it.
func (s *session) againLocked(r *request) bool {
	if r.Op == rawCommand {
		return false
	}
	wait, ok := false, r.retries < maxRetries
	var se *SenseError
	var st *StatusError
	switch {
	case errors.As(r.failed, &se):
		switch {
		case se.Deferred:
			// It is about another command; this one was not performed.
		case se.Key == keyUnitAttention, se.Key == keyIllegalRequest && se.asc() == 0x2500 && s.use != useNone:
			// Where the unit is in doubt the request waits for the look at it, which is what bounds the rate.
			ok = ok || s.use == useGated && s.patient(r)
		case se.Key == keyNotReady && se.asc() == 0x0401:
			wait, ok = true, s.patient(r)
		case se.Key == keyNotReady && (se.asc() == 0x040a || se.asc() == 0x040b || se.asc() == 0x040c) && s.use != useNone && s.patient(r):
			if se.asc() == 0x040a && len(s.path.v.paths) == 1 {
				wait, ok = true, true
				break
			}
			r.reset()
			r.to(routed)
			s.path.v.late.Go(func() { s.path.v.bounced(s.path, s, r) })
			return true
		case se.Key == keyIllegalRequest && se.asc() == 0x2000 && r.Op == blockdev.WriteZeroes && !s.limits.noWriteSame:
			s.limits.noWriteSame = true // then zeroes are written as data
		case se.Key == keyAborted && r.repeatable():
		default:
			return false
		}
	case errors.As(r.failed, &st):
		switch st.Status {
		case statusBusy, statusTaskSetFull:
			wait, ok = true, s.patient(r)
		case statusTaskAborted:
			if !r.repeatable() {
				r.failed = ErrOutcomeUnknown
				return false
			}
			wait, ok = true, s.patient(r)
		default:
			return false
		}
	case errors.Is(r.failed, errCleared):
		if !r.repeatable() {
			r.failed = ErrOutcomeUnknown
			return false
		}
		wait, ok = true, s.patient(r)
	case errors.Is(r.failed, ErrTimeout):
		if !r.repeatable() {
			r.failed = fmt.Errorf("%w: %w", ErrOutcomeUnknown, r.failed)
			return false
		}
		r.timeouts++
		if ok = r.timeouts < maxTimeouts; ok && s.use != useNone && len(s.path.v.paths) > 1 {
			r.reset()
			r.to(routed)
			s.path.v.late.Go(func() { s.path.v.elsewhere(r) }) // perhaps another path answers
			return true
		}
	default:
		return false
	}
	if !ok {
		return false
	}
	r.retries++
	r.reset()
	r.epoch = s.epoch
	r.to(queued)
	s.queue.pushFront(r)
	if wait && !s.paused {
		s.paused = true
		s.resume = time.AfterFunc(retryDelay, func() {
			s.mu.Lock()
			s.paused = false
			s.pumpLocked()
			done := s.done.take()
			s.mu.Unlock()
			done.complete()
		})
	}
	return true
}

// patient reports whether a request that the target asks to wait has time left.
func (s *session) patient(r *request) bool {
	if r.waiting.IsZero() {
		r.waiting = time.Now()
	}
	limit := s.ini.o.ReconnectLimit
	return limit < 0 || time.Since(r.waiting) < limit
}

// heedLocked takes what sense data says beside the command that carries it, whose number is sn.
func (s *session) heedLocked(sn uint32, e *SenseError) {
	if s.path == nil {
		return
	}
	switch {
	case e.Deferred:
		if e.Key != keyNoSense && e.Key != keyRecovered && e.Key != keyUnitAttention {
			s.path.v.power.failed(e)
		}
	case e.Key == keyIllegalRequest && e.asc() == 0x2500:
		s.doubtLocked()
	case e.Key == keyUnitAttention:
		switch asc := e.asc(); asc {
		case 0x2900, 0x2901:
			s.path.powerOn.Store(true)
			s.sweepLocked(sn)
		case 0x2902, 0x2903, 0x2904, 0x2f00, 0x2f01:
			s.sweepLocked(sn)
		case 0x2a03, 0x2a04, 0x2a05: // of reservations: nothing that a look would show
			return
		}
		switch e.ASC {
		case 0x28, 0x29, 0x2a, 0x3f:
			s.doubtLocked()
			s.path.v.attention(s.path)
		}
	}
}

// doubtLocked stops the volume's requests until the unit has been asked what it is.
func (s *session) doubtLocked() {
	s.doubts++
	if s.use != useNone {
		s.gateLocked()
		s.path.wantLook()
	}
}
