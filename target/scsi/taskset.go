package scsi

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/sluice-storage/sluice/target/hist"
)

// taskSet orders the commands of one logical unit for one I_T nexus, or for all of them when the unit keeps one task set
// (control mode page, TST). In the first case no lock is shared between connections.
type taskSet struct {
	mu          sync.Mutex
	first, last *Command // by age; HEAD OF QUEUE goes first
	n           int
	dormant     int
	barriers    int // ORDERED and HEAD OF QUEUE tasks
}

// add puts c in the set and says whether it may run now; taskNone means that the set is full. A dormant command may be
// gone as soon as add returns.
func (s *taskSet) add(c *Command, attr Attr, always bool) taskState {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n >= maxTasks {
		return taskNone
	}
	s.n++
	c.x.set, c.x.attr = s, attr
	if attr == HeadOfQueue {
		c.x.prev, c.x.next = nil, s.first
		if s.first != nil {
			s.first.x.prev = c
		} else {
			s.last = c
		}
		s.first = c
	} else {
		c.x.prev, c.x.next = s.last, nil
		if s.last != nil {
			s.last.x.next = c
		} else {
			s.first = c
		}
		s.last = c
	}
	enabled := true
	switch {
	case always || attr == HeadOfQueue:
	case attr == Ordered:
		enabled = s.n == 1
	default:
		enabled = s.barriers == 0
	}
	if attr == Ordered || attr == HeadOfQueue {
		s.barriers++
	}
	if enabled {
		taskLife.Move(&c.x.state, taskEnabled)
	} else {
		taskLife.Move(&c.x.state, taskDormant)
		s.dormant++
	}
	return c.x.state
}

// removeLocked takes c out.
func (s *taskSet) removeLocked(c *Command) {
	if c.x.prev != nil {
		c.x.prev.x.next = c.x.next
	} else {
		s.first = c.x.next
	}
	if c.x.next != nil {
		c.x.next.x.prev = c.x.prev
	} else {
		s.last = c.x.prev
	}
	c.x.prev, c.x.next = nil, nil
	s.n--
	if c.x.attr == Ordered || c.x.attr == HeadOfQueue {
		s.barriers--
	}
	if c.x.state == taskDormant {
		s.dormant--
	}
	c.x.set = nil
	taskLife.Move(&c.x.state, taskNone)
}

// enableLocked marks what may run now and appends it to run.
func (s *taskSet) enableLocked(run []*Command) []*Command {
	if s.dormant == 0 {
		return run
	}
	ahead, barrier := false, false
	for c := s.first; c != nil && s.dormant > 0; c = c.x.next {
		if c.x.state == taskDormant {
			if (c.x.attr == Ordered && !ahead) || (c.x.attr != Ordered && !barrier) {
				taskLife.Move(&c.x.state, taskEnabled)
				s.dormant--
				run = append(run, c)
			}
		}
		ahead = true
		barrier = barrier || c.x.attr == Ordered || c.x.attr == HeadOfQueue
	}
	return run
}

// tmfWait calls done when everything it waits for has completed.
type tmfWait struct {
	left atomic.Int32
	done func()
}

func newWait(done func()) *tmfWait {
	w := &tmfWait{done: done}
	w.left.Store(1)
	return w
}

func (w *tmfWait) release() {
	if w.left.Add(-1) == 0 {
		w.done()
	}
}

// abort stops every command that match accepts; w is released once for each, after its Complete. The commands that had
// not started are completed before abort returns.
func (s *taskSet) abort(w *tmfWait, kind func(*Command) abortState) {
	var run, drop, enabled []*Command
	s.mu.Lock()
	for c := s.first; c != nil; {
		next := c.x.next
		if k := kind(c); k != abortNone {
			if w != nil {
				w.left.Add(1)
				c.x.waiters = append(c.x.waiters, w)
			}
			dormant := c.x.state == taskDormant
			c.x.mu.Lock()
			if c.x.abort == abortNone {
				commandAbort.Move(&c.x.abort, k)
			}
			if !dormant && c.noteLocked() {
				run = append(run, c)
			}
			c.x.mu.Unlock()
			if dormant {
				// No goroutine runs it: this one ends it.
				s.removeLocked(c)
				drop = append(drop, c)
			}
		}
		c = next
	}
	if len(drop) > 0 {
		enabled = s.enableLocked(nil)
	}
	s.mu.Unlock()
	for _, c := range drop {
		c.complete()
	}
	for _, c := range run {
		c.run(false)
	}
	for _, c := range enabled {
		c.run(false)
	}
}

// await has w wait for the commands that run now, but for one; those that wait for their turn are let in later.
func (s *taskSet) await(w *tmfWait, match func(*Command) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := s.first; c != nil; c = c.x.next {
		if c.x.state == taskEnabled && match(c) {
			w.left.Add(1)
			c.x.waiters = append(c.x.waiters, w)
		}
	}
}

// finish ends the command. The caller is the runner and nothing is outstanding.
func (c *Command) finish() {
	c.Nexus.leaveMem(c)
	var enabled []*Command
	if s := c.x.set; s != nil {
		s.mu.Lock()
		s.removeLocked(c)
		enabled = s.enableLocked(nil)
		s.mu.Unlock()
	}
	c.complete()
	for _, e := range enabled {
		e.run(false)
	}
}

// complete reports the outcome of a command that is in no task set any more.
func (c *Command) complete() {
	waiters := c.x.waiters
	if c.Last && (c.x.err == nil || errors.Is(c.x.err, errAborted)) {
		// The response may have left with the data: the outcome stands, even if an abort came since.
		c.Status, c.Sense = StatusGood, nil
	} else {
		c.Last = false
		c.outcome(c.x.err)
		switch c.x.abort {
		case abortSilent:
			c.Silent = true
		case abortReported:
			c.Status, c.Sense = StatusTaskAborted, nil
		}
	}
	if c.x.itl != nil { // before Complete: the command is the session's again after it
		c.x.itl.stats.latency[c.x.kind].Observe(hist.Clock() - c.x.began)
		if c.Status == StatusCheckCondition {
			c.x.itl.stats.countSense(c.Sense)
		}
	}
	i, asks := c.x.itl, c.x.asks && c.Status == StatusGood && !c.Silent
	if (c.x.reports != 0 || c.x.fence != 0) && !c.tells() {
		if c.x.reports != 0 {
			i.restore(c.x.reports) // SAM-5 section 5.14: it stays until it is reported
		}
		c.x.reports, c.x.fence = 0, 0
	}
	c.x.owed = c.x.owed && c.tells()
	if c.Nexus.opt.NextResponse == nil {
		c.Numbered(0)
	}
	commandRun.Move(&c.x.run, runNone) // x.mu: nothing else knows the command any more
	c.Mover.Complete(c)
	// The response has its number now.
	if asks {
		i.answered()
	}
	for _, w := range waiters {
		w.release()
	}
}

// tells reports whether the response carries the unit attention that the command took: as its sense data or, of REQUEST
// SENSE, as its parameter data. One that was aborted meanwhile does not.
func (c *Command) tells() bool {
	if c.x.row.op == OpRequestSense {
		return !c.Silent && c.Status == StatusGood
	}
	return !c.Silent && c.Status == StatusCheckCondition
}
