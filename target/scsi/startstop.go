package scsi

import "github.com/sluice-storage/sluice/blockdev"

// beginStartStop is START STOP UNIT (SBC-3 section 5.25).
func beginStartStop(c *Command) stepResult {
	lu := c.x.lu
	if lu.erasing() || lu.has(flagNotReady) {
		return c.end(lu.notReady(lu.flags.Load())) // SBC-3 section 4.11.2
	}
	condition, noFlush, loej, start := c.CDB[4]>>4, c.CDB[4]&4 != 0, c.CDB[4]&2 != 0, c.CDB[4]&1 != 0
	if condition != 0 {
		return stepDone // there are no power conditions to enter
	}
	if loej && !lu.opt.Removable {
		return c.end(badCDBBit(4, 1))
	}
	if loej && lu.prevented() {
		return c.end(check(IllegalRequest, ASCRemovalPrevented))
	}
	// START zero without LOEJ only flushes: nothing spins down, and what one initiator stops others still use.
	apply := func() {
		if loej {
			was := lu.has(flagEjected)
			lu.set(flagEjected, !start)
			if was && start {
				lu.attention(ASCMediumMayHaveChanged, c.x.itl)
			}
		}
	}
	if start || noFlush {
		apply()
		return stepDone
	}
	return c.async(func(c *Command) error {
		// Stopping makes everything durable first.
		if err := c.do(blockdev.Request{Op: blockdev.Flush}); err != nil {
			return err
		}
		apply()
		return nil
	})
}

// prevented reports whether any I_T nexus forbids removal.
func (lu *LogicalUnit) prevented() bool {
	lu.mu.Lock()
	defer lu.mu.Unlock()
	for i := range lu.itls {
		if i.prevent {
			return true
		}
	}
	return false
}

// beginPreventAllow is PREVENT ALLOW MEDIUM REMOVAL (SPC-4 section 6.18).
func beginPreventAllow(c *Command) stepResult {
	lu := c.x.lu
	if c.CDB[4]&2 != 0 {
		return c.end(badCDBBit(4, 1)) // obsolete values
	}
	lu.mu.Lock()
	c.x.itl.prevent = c.CDB[4]&1 != 0
	lu.mu.Unlock()
	return stepDone
}
