package rpcserver

import "time"

// Registered memory is shared by all RDMA connections. A quota bounds what one of them takes, and a room what those of one host take together: half
// of it, so that a host with many connections, that answers the server's Reads or takes its replies as slowly as it may, leaves memory to others.
//
// A call takes room before it takes memory, and gives it back with its slot. Where there is none it waits as for memory (stalled, unsent, later), and
// holds none meanwhile: one that has been executed lets what it fetched go, one that has fetched something gets no bulk result where there is none, and
// the page of the message beside a payload is taken without being asked, because it gives all back with it. So what holds room waits for no room. What
// was waited for is set aside for the connection's next call that asks.

// takeRoomLocked takes room for n bytes of memory of a call, or notes what it lacks.
func (c *rdmaConn) takeRoomLocked(r *rdmaCall, n int64) bool {
	aside := c.aside
	c.aside = 0
	if aside < n {
		c.host.fabric.give(aside)
		if !c.host.fabric.try(n) {
			r.lacks = n
			return false
		}
	} else {
		c.host.fabric.give(aside - n)
	}
	r.room += n
	r.lacks = 0
	return true
}

// forceRoom takes it whether there is some or not.
func (r *rdmaCall) forceRoom(n int64) {
	r.conn.host.fabric.force(n)
	r.room += n
}

// giveRoom gives n bytes back, of which the call has taken no memory.
func (r *rdmaCall) giveRoom(n int64) {
	if n > 0 {
		r.conn.host.fabric.give(n)
		r.room -= n
	}
}

// awaitLocked has resume called when there is what a call found too little of.
func (c *rdmaConn) awaitLocked(r *rdmaCall) {
	switch {
	case r.lacks == 0:
		c.quota.Wait(c.resumeSoon)
	case c.place == nil: // or another waits for the same, and resume asks again for those that it does not help
		c.place = c.host.fabric.ask(r.lacks, c.letInSoon)
	}
}

// letInSoon is told that the connection has the room that it has waited for. The goroutine that gave it back may hold a lock.
func (c *rdmaConn) letInSoon() { go c.letIn() }

func (c *rdmaConn) letIn() {
	c.mu.Lock()
	p := c.place
	if p != nil { // or the connection has ended
		c.aside += p.n
		c.place = nil
	}
	c.mu.Unlock()
	if p != nil {
		c.resume()
	}
}

// idleRoomLocked gives back what was set aside where no call asks for it any more.
func (c *rdmaConn) idleRoomLocked() {
	if c.aside > 0 {
		c.host.fabric.give(c.aside)
		c.aside = 0
	}
}

// leaveRoomLocked ends the wait of a connection that is closed.
func (c *rdmaConn) leaveRoomLocked() {
	if p := c.place; p != nil {
		c.place = nil
		if !c.host.fabric.cancel(p) {
			c.host.fabric.give(p.n) // it was let in at the same time
		}
	}
	c.idleRoomLocked()
}

// oldestLocked is for how long the Reads of a call, or its reply, have been on their way at most.
func (c *rdmaConn) oldestLocked(now time.Time) (age time.Duration) {
	for i := range c.slots {
		switch r := &c.slots[i]; r.state {
		case slotReading, slotFailing, slotReplying:
			age = max(age, now.Sub(r.since))
		}
	}
	return age
}
