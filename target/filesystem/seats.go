package filesystem

import (
	"sync/atomic"
)

// caller is what is kept of a connection, in its Peer's Memo, and of a host, in its Peers' HostMemo.
type caller struct {
	decided atomic.Pointer[memo]
	seats   atomic.Pointer[[]*seat]
}

// seat bounds the calls of one connection, or of one host, in one medium.
type seat struct {
	m *medium
	gate
}

func callerOf(p Peer) *caller { return callerIn(p.Memo()) }

func callerIn(memo *atomic.Pointer[any]) *caller {
	for {
		old := memo.Load()
		if old != nil {
			if c, is := (*old).(*caller); is {
				return c
			}
		}
		var fresh any = &caller{}
		memo.CompareAndSwap(old, &fresh)
	}
}

// at returns the seat of a medium, and how many calls are under way in others.
func (c *caller) at(m *medium) (mine *seat, others int32) {
	for {
		l := c.seats.Load()
		var was []*seat
		if l != nil {
			was = *l
		}
		for _, p := range was {
			if p.m == m {
				mine = p
			} else {
				others += p.in.Load()
			}
		}
		if mine != nil {
			return mine, others
		}
		next := []*seat{{m: m}}
		for _, p := range was {
			if len(was) < maxSeats || p.in.Load() > 0 { // exports come and go
				next = append(next, p)
			}
		}
		c.seats.CompareAndSwap(l, &next)
		others = 0
	}
}

// Pass is a call's place in a medium.
type Pass struct {
	m          *medium
	conn, host *seat
}

// Leave gives the place back.
func (p Pass) Leave() {
	if p.m != nil {
		p.m.gate.leave()
	}
	for _, s := range [...]*seat{p.host, p.conn} {
		if s != nil {
			s.leave()
		}
	}
}

// sit takes a seat in a medium, or returns nil where there is none. The caller may have most calls in all media; a quarter of what the other
// media leave of them stays free.
func (c *caller) sit(m *medium, most int32) *seat {
	mine, others := c.at(m)
	if !mine.enter(max(1, threeQuarters(most-others))) {
		return nil
	}
	return mine
}

// sitOfHost is sit for a host. A few calls have places in each medium beside maxOfHost: the address of a host may be that of several machines, and
// one of them may use a medium that answers while the calls of another hang.
func (c *caller) sitOfHost(m *medium) *seat {
	mine, others := c.at(m)
	if !mine.enter(max(1, threeQuarters(maxOfHost-others), min(fewOfHost, (mostOfHost-others)/4))) {
		return nil
	}
	return mine
}

func threeQuarters(n int32) int32 { return n - max(1, n/4) }

// enter takes a call into a medium; ok is false where the client is to ask later. Calls of a medium that hangs must not take all workers. They must
// not take all that a client may have in flight on a connection, which its exports share, nor all memory for requests, which the connections of
// its host share.
func (m *medium) enter(peer Peer) (p Pass, ok bool) {
	if slots := int32(peer.Slots()); slots > 0 {
		p.conn = callerOf(peer).sit(m, slots)
		ok = p.conn != nil
		if memo := peer.HostMemo(); ok && memo != nil {
			p.host = callerIn(memo).sitOfHost(m)
			ok = p.host != nil
		}
		if !ok {
			p.Leave()
			return Pass{}, false
		}
	}
	if !m.gate.enter(maxInExport) {
		p.Leave()
		return Pass{}, false
	}
	p.m = m
	return p, true
}

// Enter takes a call into the medium of an export, nil for none; ok is false where the client is to ask later. If it is true, Pass.Leave has to
// follow.
func (e *Served) Enter(peer Peer) (p Pass, ok bool) {
	if e != nil && e.medium != nil {
		return e.medium.enter(peer)
	}
	return Pass{}, true
}
