package scsi

import "slices"

// visit is an EXTENDED COPY at work on units that it was not sent to. What ends the commands of its nexus on one of
// those (a reset, PREEMPT AND ABORT, the removal of the LUN) ends the copy, and waits for it, because its writes reach
// their media as those of any command.
type visit struct {
	c    *Command
	home *itl
	itls []*itl
}

// visit enters c with the units of a copy. What was reserved before is seen by the checks that follow; what comes after
// finds the visit.
func (c *Command) visit(targets []copyTarget) error {
	v := &visit{c: c, home: c.x.itl}
	for _, t := range targets {
		if t.itl != c.x.itl && !slices.Contains(v.itls, t.itl) {
			v.itls = append(v.itls, t.itl)
		}
	}
	c.x.visit.Store(v)
	for _, i := range v.itls {
		i.mu.Lock()
		i.visits = append(i.visits, v)
		i.mu.Unlock()
	}
	for _, i := range v.itls {
		if i.gone.Load() || c.Nexus.closed.Load() {
			c.leaveUnits() // it went before it was visited
			return &SenseError{Key: CopyAborted, ASC: ASCCopyTargetUnreachable}
		}
		if i.before(c) {
			c.leaveUnits()
			return check(UnitAttention, ASCBusDeviceReset)
		}
	}
	return nil
}

// leaveUnits ends the visit; nothing of the copy is with a medium any more.
func (c *Command) leaveUnits() {
	v := c.x.visit.Swap(nil)
	if v == nil {
		return
	}
	for _, i := range v.itls {
		i.mu.Lock()
		i.visits = slices.DeleteFunc(i.visits, func(o *visit) bool { return o == v })
		i.mu.Unlock()
	}
}

// abortVisits aborts the copies that are at work on the unit. Their initiator asked for nothing that concerns the LUN they
// were sent to, and so is told.
func (i *itl) abortVisits(w *tmfWait, kind abortState) {
	i.mu.Lock()
	all := slices.Clone(i.visits)
	i.mu.Unlock()
	if !i.nexus.closed.Load() {
		kind = abortReported
	}
	for _, v := range all {
		v.home.set().abort(w, func(c *Command) abortState {
			if c == v.c && c.x.visit.Load() == v {
				return kind
			}
			return abortNone
		})
	}
}
