package block

import (
	"errors"
	"fmt"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/iscsi"
)

// abortLocked asks the target to end a task (RFC 7143 section 11.5). Its answer, not the asking, ends it here. It waits its
// turn when as many immediate PDUs are out as the target has room for (RFC 7145 section 8.1.1).
func (s *session) abortLocked(t *task) {
	most := maxAborts
	if n := int(s.params.PeerUnexpected); s.params.RDMA && n > 0 {
		most = max(min(most, n-1), 1) // one is left for a ping or logout
	}
	if s.aborts >= most {
		if t.abort == abortNone {
			abortions.Move(&t.abort, abortWaits)
		}
		return
	}
	s.aborts++
	abortions.Move(&t.abort, abortSent)
	t.aborted = s.beat
	s.abortSeq++
	// The tag tells this abort from one of the slot's earlier command, whose answer may still be on its way.
	t.abortITT = ctlAbort | uint32(s.abortSeq)<<16 | uint32(t.idx)
	req := iscsi.TaskRequest{Immediate: true, Function: iscsi.AbortTask, LUN: s.lun, ITT: t.abortITT, RefTag: t.itt,
		CmdSN: s.cmdSN, ExpStatSN: s.statSN, RefCmdSN: t.cmdSN}
	if err := s.sendControlLocked(&req, nil); err != nil {
		s.failLocked(fmt.Errorf("abort a command: %w", err))
	}
}

// nextAbortLocked sends one that waited.
func (s *session) nextAbortLocked() {
	s.aborts = max(s.aborts-1, 0)
	for i := range s.tasks {
		if t := &s.tasks[i]; t.life == taskSent && t.abort == abortWaits && !s.dead {
			s.abortLocked(t)
			return
		}
	}
}

// beat is the interval of the watchdog, fine enough for the shortest of its limits.
func (i *Initiator) beat() time.Duration {
	d := abortTimeout
	if t := i.o.CommandTimeout; t > 0 {
		d = min(d, t)
	}
	return max(d/4, time.Millisecond)
}

// beats is how many intervals make sure that d has passed.
func (i *Initiator) beats(d time.Duration) int { return int((d+i.beat()-1)/i.beat()) + 1 }

// watch aborts commands that are not answered in time, and drops the connection where not even that is: a session that
// answers pings may still have lost a command.
func (s *session) watch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead {
		return
	}
	s.beat++
	limit, abort := s.ini.beats(s.ini.o.CommandTimeout), s.ini.beats(abortTimeout)
	for i := range s.tasks {
		t := &s.tasks[i]
		switch {
		case t.life != taskSent || t.abort == abortWaits:
		case t.abort == abortSent:
			if s.beat-t.aborted >= abort {
				s.failLocked(errors.New("the target did not answer the abort of a command"))
				return
			}
		case s.ini.o.CommandTimeout > 0 && t.timed() && s.beat-t.beat >= limit*t.patience():
			t.why = abortLate
			s.abortLocked(t)
		}
	}
	// A window that stays closed while nothing is under way is a target that takes no command and does not say so.
	if s.out == 0 && s.nextLocked() != nil && !s.corked {
		s.starved++
	} else {
		s.starved = 0
	}
	if s.ini.o.CommandTimeout > 0 && s.starved >= limit {
		s.failLocked(fmt.Errorf("the target has taken no command for %v", s.ini.o.CommandTimeout))
		return
	}
	if !s.dead {
		s.watchdog.Reset(s.ini.beat())
	}
}

// timed: a raw command takes as long as its caller lets it.
func (t *task) timed() bool { return t.req.Op != rawCommand }

// patience is how many times the usual limit a command may take: flushes and what is done without moving data can be of
// any size.
func (t *task) patience() int {
	switch {
	case t.req.step == stepFlush || t.req.Op == blockdev.Flush || t.req.Op == blockdev.Discard || t.req.Op == blockdev.WriteZeroes:
		return slowPatience
	}
	return 1
}

// sweepLocked asks for the end of the commands that were sent before number sn. Another initiator's reset may have cleared them
// without a word (SAM-5 section 5.6, TAS=0): the answer to ABORT TASK says that nothing of them is left, and any answer of
// their own comes before it (RFC 7143 section 11.6.1).
func (s *session) sweepLocked(sn uint32) {
	for i := range s.tasks {
		if t := &s.tasks[i]; t.life == taskSent && t.abort == abortNone && iscsi.SNLess(t.cmdSN, sn) && !s.dead {
			t.why = abortSwept
			s.abortLocked(t)
		}
	}
}

// aborted is the outcome of a task that the target has ended at our request.
func (t *task) abortedErr(limit time.Duration) error {
	switch t.why {
	case abortLate:
		return fmt.Errorf("%w: it was aborted after %v", ErrTimeout, limit*time.Duration(t.patience()))
	case abortSwept:
		return errCleared
	}
	return ErrCancelled
}
