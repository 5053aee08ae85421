package iscsi

import (
	"github.com/sluice-storage/sluice/internal/iscsi"
)

// numbersLocked writes the sequence numbers of a response; stat says that it takes a StatSN (RFC 7143 section 4.2.2.2).
func (c *conn) numbersLocked(h iscsi.BHS, stat bool) {
	h.SetStatSN(c.statSN)
	if stat {
		c.statSN++
	}
	h.SetExpCmdSN(c.expCmdSN)
	h.SetMaxCmdSN(c.openLocked())
}

// nextStatSN is the number of the next response.
func (c *conn) nextStatSN() uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.statSN
}

// openLocked moves MaxCmdSN as far as commands in progress leave room; it never moves back (section 4.2.2.1).
func (c *conn) openLocked() uint32 {
	if room := c.window - c.active; room > 0 && c.state == stateFull {
		if m := c.expCmdSN + uint32(room) - 1; iscsi.SNLess(c.maxCmdSN, m) {
			c.maxCmdSN = m
		}
	}
	return c.maxCmdSN
}

// takeCmdSNLocked checks the number of a request and accepts it. False means that the request is to be ignored.
func (c *conn) takeCmdSNLocked(b iscsi.BHS) (bool, error) {
	c.unasked.acknowledgedLocked(b.ExpStatSN())
	sn := b.CmdSN()
	if b.Immediate() {
		// An immediate command carries the current CmdSN and does not advance it. A wrong one does no harm.
		return true, nil
	}
	// Section 4.2.2.1: outside the window, and duplicates within it, are silently ignored.
	if !iscsi.InWindow(sn, c.expCmdSN, c.maxCmdSN) {
		return false, nil
	}
	if sn != c.expCmdSN {
		// One connection delivers in order, so what is missing was never sent.
		return false, &iscsi.ProtocolError{Clause: "4.2.2.1", Reason: iscsi.RejectProtocol, Detail: "CmdSN skips a command"}
	}
	c.expCmdSN++
	return true, nil
}

// retireLocked counts a task out of the window, once: its response is queued next, or none is due.
func (c *conn) retireLocked(t *task) {
	if t.state == taskAnswered {
		return
	}
	taskLife.Move(&t.state, taskAnswered)
	if t.immediate {
		c.immediate--
	} else {
		c.active--
	}
}

// enteredLocked counts a non-immediate command in and widens the window when the initiator uses all of it.
func (c *conn) enteredLocked() {
	c.active++
	c.burst++
	c.peak = max(c.peak, c.active, c.burst)
	// A command that is answered at once never adds up to others. So the last number that the initiator knew of when it
	// sent this batch counts as much as the commands in progress.
	if (c.active >= c.window || c.expCmdSN-1 == c.edge) && c.window < c.srv.opt.Limits.Queue {
		c.window = max(c.window, c.datamover.windowLocked(min(2*c.window, c.srv.opt.Limits.Queue)))
	}
}

// controlLocked queues a PDU outside the command window; a peer that does not read them ends its connection.
func (c *conn) controlLocked(h iscsi.BHS, data []byte) {
	if c.state == stateDead {
		return
	}
	if c.control >= maxQueuedControl {
		if c.killErr == nil {
			c.killErr = errNotReading
		}
		go c.datamover.close(errNotReading) // close may want what the caller holds
		return
	}
	c.control++
	c.datamover.sendLocked(h, data)
}

// countResponseLocked counts a SCSI response that is queued. The window bounds them while the initiator learns from
// responses how far it may go. An initiator that counts commands itself and reads nothing ends its connection.
func (c *conn) countResponseLocked() {
	c.unsent++
	if c.unsent <= c.srv.opt.Limits.Queue+maxImmediate+maxQueuedControl+c.behind || c.state == stateDead {
		return
	}
	if c.killErr == nil {
		c.killErr = errNotReading
		go c.datamover.close(errNotReading)
	}
}
