package iscsi

import "github.com/sluice-storage/sluice/internal/iscsi"

// unasked counts the Asynchronous Messages and Rejects that the initiator is not known to have received. Each takes one
// of the receives that it posted for such PDUs over iSER (RFC 7145 section 8.1.2).
type unasked struct {
	n    int
	last uint32 // StatSN of the newest
}

// sentLocked counts one.
func (u *unasked) sentLocked(statSN uint32) { u.n, u.last = u.n+1, statSN }

// acknowledgedLocked reads the ExpStatSN of a request.
func (u *unasked) acknowledgedLocked(exp uint32) {
	if u.n > 0 && iscsi.SNLess(u.last, exp) {
		u.n = 0
	}
}

// roomLocked reports whether the initiator can take another PDU that answers nothing. The last place is the ping's, whose
// answer says what has arrived.
func (c *conn) roomLocked() bool {
	p := &c.params
	switch {
	case !c.iser || p.UnexpectedDeclared && p.PeerUnexpected == 0:
		return true
	case p.UnexpectedDeclared:
		return c.unasked.n < int(min(p.PeerUnexpected, maxUnasked))-1
	}
	return c.unasked.n < undeclaredUnasked
}

// floorLocked is the command window of a new session, and of one that is idle. libiscsi 1.19 (listensLocked) does not
// look at MaxCmdSN over iSER and sends as many commands as its program has. Those beyond the window would be ignored
// (RFC 7143 section 4.2.2.1), the next one within it would skip them, and the program would wait for their answers for
// ever.
func (c *conn) floorLocked() int {
	n := firstWindow
	if !c.listensLocked() {
		n = heedlessWindow
	}
	return min(n, c.srv.opt.Limits.Queue)
}

// listensLocked reports whether the initiator can be told what it did not ask for. Linux declares nothing about it and
// can. libiscsi 1.19, which QEMU uses, declares nothing either, takes whatever comes over iSER for the answer to a
// command of its own, and crashes. It is known by its not taking Send with Invalidate.
func (c *conn) listensLocked() bool {
	x, is := c.datamover.(*iserDatamover)
	return !is || x.inv || c.params.UnexpectedDeclared
}
