package iscsi

import "errors"

// A peer that answers pings and moves no data would hold the registered memory of its commands for ever, while others
// wait for it: its RDMA Reads or R2Ts are not answered, or its Data-In is not read. Its session ends when none of its
// data has moved for as long as a silent peer may be silent. A slow peer moves some.

var errStarving = errors.New("iscsi: the initiator moves none of the data that it asked for, and holds the memory for it")

// starveTicks ticks without any movement of what waits end a session. They are five quarters of the peer timeout, since
// the first may be short. One task may wait for taskTicks beside others that move.
const (
	starveTicks = 5
	taskTicks   = 10 * starveTicks
)

// stall is what the last tick saw; guarded by conn.mu.
type stall struct {
	wrote, placed     uint64
	inTicks, outTicks int // without movement while some Data-In, some Data-Out waits
}

// taskStall is what the last tick saw of a task.
type taskStall struct {
	gen       uint16
	off, have int
	ticks     int
}

// starvesLocked looks at the moves under way once a tick and reports whether the peer has had its time.
func (c *conn) starvesLocked() bool {
	in, out, one := false, false, false
	for _, t := range c.tasks {
		if !t.move.underWay() {
			t.stall.ticks = 0
			continue
		}
		if t.move == moveIn {
			in = true
			continue
		}
		out = true
		s := &t.stall
		if s.gen != t.gen || s.off != t.out.off || s.have != t.out.have {
			*s = taskStall{gen: t.gen, off: t.out.off, have: t.out.have}
			continue
		}
		s.ticks++
		one = one || s.ticks >= taskTicks
	}
	count := func(n *int, waits bool, was *uint64, now uint64) bool {
		if !waits || *was != now {
			*n, *was = 0, now
			return false
		}
		*n++
		return *n >= starveTicks
	}
	unread := count(&c.stall.inTicks, in, &c.stall.wrote, c.wrote)
	unanswered := count(&c.stall.outTicks, out, &c.stall.placed, c.placed.Load())
	return unread || unanswered || one
}
