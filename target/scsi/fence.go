package scsi

// A host that has lost a path resets the unit over another one and writes again. Commands that are still on their way
// over the lost path are in no task set, so the reset does not end them. A unit attention stops only the first of them,
// and the rest would land on newer writes. So after a reset by another nexus each command but INQUIRY, REPORT LUNS and
// REQUEST SENSE ends with 29/03, until the initiator shows by ExpStatSN that it has read such an end. A connection
// keeps the order, so what it sent before the reset has arrived by then.
//
// The host of a session that lives loses nothing. Its commands were not begun (SAM-5 section 5.14), and are sent again;
// Linux's sd does so until their time is over. Each is refused once for a reset at most: it is sent again when its own
// refusal has been read, and the number of that is not below the first one's, so its ExpStatSN opens the unit.
//
// PREEMPT AND ABORT needs none of this, because what comes later meets the reservation. CLEAR TASK SET has none either:
// it ends what is in the task set (SAM-5 section 7.4), and a nexus that had nothing there would be told of a loss that
// it did not have.

// What an initiator has still to hear of a unit, in itl.owed.
const (
	owedPower uint32 = 1 << iota // a loss of power; see power.go
	owedReset                    // a reset by another nexus
	owedLoss                     // that a flush has failed for a loss of the medium
)

// fence is the last reset by another nexus; guarded by itl.mu.
type fence struct {
	reset uint32 // which one it is; 0 for none
	since uint32 // responses from this number on were made after it
	told  bool   // a command was refused for it
	by    uint32 // ... by a response before this number
}

// shut refuses what was sent before the initiator has heard of the reset that begins now.
func (i *itl) shut() {
	next := i.nexus.nextResponse()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.fence = fence{reset: i.fence.reset + 1, since: next}
	i.owed.Or(owedReset)
}

// has reports whether the initiator had the responses before number next when it sent c.
func (c *Command) has(next uint32) bool { return c.Nexus.had(c.Heard, next) }

// had is has, of a request that says so by number heard.
func (n *Nexus) had(heard, next uint32) bool {
	return n.opt.NextResponse == nil || int32(heard-next) >= 0
}

// hears notes what the initiator has read when it sent c, and reports whether it has still to hear of a reset.
func (i *itl) hears(c *Command) (refuse bool) {
	i.reads(c.Heard)
	i.mu.Lock()
	if i.owed.Load()&owedReset != 0 {
		if refuse = !i.fence.told || !c.has(i.fence.by); !refuse {
			i.owed.And(^owedReset)
		}
	}
	if refuse {
		c.x.fence = i.fence.reset
	}
	i.mu.Unlock()
	return refuse
}

// reads notes that the initiator has the responses before number heard.
func (i *itl) reads(heard uint32) {
	i.mu.Lock()
	power, loss := i.told && i.nexus.had(heard, i.toldBy), i.lossTold && i.nexus.had(heard, i.lossBy)
	i.mu.Unlock()
	if power && i.owed.And(^owedPower)&owedPower != 0 {
		i.lu.heard(i.id)
	}
	if loss && i.owed.And(^owedLoss)&owedLoss != 0 {
		i.lu.toldLoss(i.id)
	}
}

// Reads notes that the initiator has the responses before number heard, in the counting of Command.Heard. A request
// that is no command tells of it too, and may be the last request.
func (n *Nexus) Reads(heard uint32) {
	for _, i := range *n.luns.Load() {
		if i.owed.Load()&(owedPower|owedLoss) != 0 {
			i.reads(heard)
		}
	}
}

// before reports whether c was sent before a reset of this unit. c is a copy from or to the unit that was sent to
// another LUN. Any response since shows that it was not: the initiator may have no other command for the unit.
func (i *itl) before(c *Command) bool {
	if i.owed.Load()&owedReset == 0 {
		return false
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return !c.has(i.fence.since + 1)
}

// Numbered says which number the response after that of the command will have. A session that counts responses calls it
// once the response has its number. A response waits for data that is under way (RFC 7143 section 11.4.2), so that may
// be after Complete.
func (c *Command) Numbered(next uint32) {
	if c.x.fence == 0 && !c.x.reports.ofPower() && !c.x.owed {
		return
	}
	i := c.x.itl
	i.mu.Lock()
	defer i.mu.Unlock()
	if c.x.reports.ofPower() {
		i.told, i.toldBy = true, next
	}
	if c.x.owed && !i.lossTold {
		i.lossTold, i.lossBy = true, next
		i.owed.Or(owedLoss)
	}
	if f := &i.fence; c.x.fence == f.reset && !f.told {
		f.told, f.by = true, next
	}
}
