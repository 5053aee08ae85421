package iscsi

import (
	"time"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/mem"
)

func (c *conn) tickEvery() time.Duration { return max(c.srv.opt.Timeouts.Peer/4, time.Millisecond) }

// tick runs four times in the peer timeout: it pings a silent initiator, ends a dead one, and lets the window of a quiet
// session close.
func (c *conn) tick() {
	c.mu.Lock()
	if c.state != stateFull && c.state != stateEnding {
		c.mu.Unlock()
		return
	}
	now := c.received.Load()
	if now != c.lastRx {
		c.lastRx, c.idleTick, c.pinged = now, 0, false
	} else {
		c.idleTick++
	}
	switch {
	case c.idleTick >= 4 && c.pinged:
		c.mu.Unlock()
		c.kill(errSilent)
		return
	case c.idleTick >= 2 && !c.pinged && !c.discovery && c.state == stateFull:
		c.pinged = true
		c.rec.Note("silent for %v: asked whether it is there", 2*c.tickEvery())
		c.pingLocked()
		c.kickLocked()
	}
	if x, is := c.datamover.(*iserDatamover); is && x.lateLocked() {
		c.mu.Unlock()
		c.kill(errNoMemory)
		return
	}
	if c.starvesLocked() {
		c.rec.Note("no data has moved for %v", starveTicks*c.tickEvery())
		c.mu.Unlock()
		c.kill(errStarving)
		return
	}
	if c.discovery {
		// A discovery session has one purpose and no reason to stay. Pings are no purpose.
		if c.quiet++; c.quiet > 8 {
			c.mu.Unlock()
			c.kill(errIdle)
			return
		}
	}
	if floor := c.floorLocked(); c.peak*4 <= c.window && c.window > floor {
		c.window = max(floor, c.window/2)
	}
	var idle *mem.Quota
	if c.peak == 0 && c.live == 0 {
		c.free, c.tasks, c.itts = nil, nil, nil
		c.datamover.idleLocked()
		idle = c.quota
	}
	c.peak = c.active
	c.ticker.Reset(c.tickEvery())
	c.mu.Unlock()
	if idle != nil {
		idle.Trim() // not under mu: what comes free may be what another session waits for
		c.memory.Shrink()
	}
}

// pingLocked sends an unsolicited NOP-In that wants an answer (section 11.19).
func (c *conn) pingLocked() {
	if c.nopTTT++; c.nopTTT == iscsi.Reserved {
		c.nopTTT = 1
	}
	p := iscsi.NopIn{ITT: iscsi.Reserved, TTT: c.nopTTT}
	var h [iscsi.BHSLen]byte
	p.Put(h[:])
	c.numbersLocked(h[:], false)
	c.controlLocked(h[:], nil)
}
