package iscsi

import (
	"slices"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/target/flight"
	"github.com/sluice-storage/sluice/target/scsi"
)

// request handles every PDU of full-feature phase but SCSI Command and Data-Out; data is its data segment and need not
// outlive the call.
func (c *conn) request(b iscsi.BHS, data []byte) error {
	c.hold()
	if c.state == stateEnding && b.Opcode() != iscsi.OpLogoutReq && b.Opcode() != iscsi.OpNopOut || c.state == stateDead {
		c.letGo()
		return nil
	}
	// An answer to our ping has no task tag and no place in the window (section 11.18).
	if b.Opcode() == iscsi.OpNopOut && b.ITT() == iscsi.Reserved {
		c.pinged = false
		c.unasked.acknowledgedLocked(b.ExpStatSN())
		c.letGo()
		return nil
	}
	switch b.Opcode() {
	case iscsi.OpNopOut, iscsi.OpTaskRequest, iscsi.OpTextRequest, iscsi.OpLogoutReq:
		ok, err := c.takeCmdSNLocked(b)
		if err != nil || !ok {
			c.letGo()
			return err
		}
		if b.Immediate() && c.immediate >= maxImmediate && b.Opcode() != iscsi.OpLogoutReq {
			c.rejectLocked(b, iscsi.RejectImmediate)
			c.letGo()
			return nil
		}
	}
	nexus := c.nexus
	c.letGo()
	if nexus != nil { // after this one no command may come that says what was read
		nexus.Reads(b.ExpStatSN())
	}
	switch b.Opcode() {
	case iscsi.OpNopOut:
		c.nopOut(b, data)
	case iscsi.OpTaskRequest:
		c.taskRequest(b)
	case iscsi.OpTextRequest:
		return c.textRequest(b, data)
	case iscsi.OpLogoutReq:
		c.logout(b)
	case iscsi.OpLoginRequest:
		return broken("11.12", iscsi.RejectProtocol, "a Login Request in full-feature phase")
	case iscsi.OpSNACK:
		// Only ErrorRecoveryLevel 1 and 2 have SNACK (section 11.16).
		c.reject(b, iscsi.RejectSNACK)
	default:
		c.reject(b, iscsi.RejectNotSupported)
	}
	return nil
}

// reject sends a Reject with the header that caused it (section 11.17).
func (c *conn) reject(b iscsi.BHS, r iscsi.RejectReason) {
	c.hold()
	c.rejectLocked(b, r)
	c.kickLocked()
	c.letGo()
}

func (c *conn) rejectLocked(b iscsi.BHS, r iscsi.RejectReason) {
	c.stats.rejects++
	c.rec.Note("%s rejected: %s", b.Opcode(), r)
	c.plog.Info("PDU rejected", zap.Stringer("remote", c.remote), zap.Stringer("pdu", b.Opcode()), zap.Stringer("reason", r))
	if !c.roomLocked() {
		return // section 8.1.2 of RFC 7145 puts this above the duty to reject
	}
	c.unasked.sentLocked(c.statSN)
	p := iscsi.Reject{Reason: r, DataLen: iscsi.BHSLen}
	var h [iscsi.BHSLen]byte
	p.Put(h[:])
	c.numbersLocked(h[:], true)
	c.controlLocked(h[:], append([]byte(nil), b[:iscsi.BHSLen]...))
}

func (c *conn) nopOut(b iscsi.BHS, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(len(data), c.datamover.maxSend())
	p := iscsi.NopIn{ITT: b.ITT(), TTT: iscsi.Reserved, LUN: b.LUN(), DataLen: n}
	var h [iscsi.BHSLen]byte
	p.Put(h[:])
	c.numbersLocked(h[:], true)
	var echo []byte
	if n > 0 {
		echo = append(echo, data[:n]...)
	}
	c.controlLocked(h[:], echo)
	c.kickLocked()
}

func (c *conn) taskRequest(b iscsi.BHS) {
	var p iscsi.TaskRequest
	p.Parse(b)
	held, nexus := &heldAnswer{}, c.nexus
	done := func(r scsi.TMFResponse) {
		var info [3]byte
		if p.Function == iscsi.QueryAsyncEvent && r == scsi.FunctionSucceeded {
			info = nexus.AsyncInfo(p.LUN)
		}
		c.mu.Lock()
		held.send = func() { c.taskAnswerLocked(&p, r, info) }
		// A refusal is about the request, not about tasks.
		if held.left == 0 || r != scsi.FunctionComplete && r != scsi.TaskDoesNotExist {
			held.send()
			held.send = nil
		}
		c.kickLocked()
		c.mu.Unlock()
		if p.Function == iscsi.TargetColdReset && r == scsi.FunctionComplete {
			c.srv.coldReset(c)
		}
	}
	c.hold()
	c.immediate++ // until it is answered, also when it came in order: it is bounded the same
	// Section 11.5.1 and RFC 7144 section 6.3: a management request is no task to be aborted or asked for.
	unfit := len(c.managing) >= maxManaging || (p.Function == iscsi.AbortTask || p.Function == iscsi.QueryTask) && (p.RefTag == p.ITT || slices.Contains(c.managing, p.RefTag))
	c.managing = append(c.managing, p.ITT)
	for _, t := range c.tasks {
		if t.state == taskRunning && concerns(&p, t) {
			held.left++
			t.held = append(t.held, held)
		}
	}
	c.letGo()
	switch {
	case c.discovery:
		done(scsi.TMFNotSupported)
	case unfit:
		done(scsi.FunctionRejected)
	case p.Function == iscsi.TaskReassign:
		// Connection recovery is ErrorRecoveryLevel 2 (section 11.6.1).
		done(scsi.ReassignNotSupported)
	default:
		c.rec.Note("task management function %d for LUN %d, task %#x", p.Function, flight.LUN(p.LUN), p.RefTag)
		nexus.Manage(scsi.TMF(p.Function), p.LUN, uint64(p.RefTag), done)
	}
}

// concerns reports whether a function ends t, so that its answer has to come after t's response.
func concerns(p *iscsi.TaskRequest, t *task) bool {
	switch scsi.TMF(p.Function) {
	case scsi.AbortTask:
		return t.itt == p.RefTag && t.lun == p.LUN
	case scsi.AbortTaskSet, scsi.ClearTaskSet, scsi.LogicalUnitReset:
		return t.lun == p.LUN
	case scsi.TargetWarmReset, scsi.TargetColdReset, scsi.ITNexusReset:
		return true
	}
	return false
}

// taskAnswerLocked queues the response to a task management request (section 11.6).
func (c *conn) taskAnswerLocked(p *iscsi.TaskRequest, r scsi.TMFResponse, info [3]byte) {
	c.immediate--
	if i := slices.Index(c.managing, p.ITT); i >= 0 {
		c.managing = slices.Delete(c.managing, i, i+1)
	}
	resp := iscsi.TaskResponse{Response: iscsi.TaskStatus(r), Info: info, ITT: p.ITT}
	var h [iscsi.BHSLen]byte
	resp.Put(h[:])
	c.numbersLocked(h[:], true)
	c.controlLocked(h[:], nil)
	if (p.Function == iscsi.TargetColdReset || p.Function == iscsi.ITNexusReset) && r == scsi.FunctionComplete {
		// Section 11.5.1: a cold reset ends every session of the target, this one after its answer. RFC 7144 section
		// 6.3: I_T NEXUS RESET ends the session that it came by.
		if c.state == stateDead {
			return // it ended before its commands
		}
		if c.killErr == nil {
			c.killErr = errReset
		}
		c.endingLocked()
		c.datamover.closeAfterFlushLocked()
	}
}

// textRequest answers SendTargets and what may be negotiated in full-feature phase (section 11.10).
func (c *conn) textRequest(b iscsi.BHS, data []byte) error {
	c.hold()
	c.quiet = 0
	c.letGo()
	if b.TTT() != iscsi.Reserved {
		if c.textTTT == 0 || b.TTT() != c.textTTT || len(c.text) == 0 {
			// The answer it asks for is gone; section 11.10.4 has the initiator begin again.
			c.text, c.textTTT = nil, 0
			c.reject(b, iscsi.RejectProtocol)
			return nil
		}
		c.textAnswer(b)
		return nil
	}
	if c.textIn == nil {
		c.text, c.textTTT = nil, 0
		c.textIn = iscsi.NewNegotiator(iscsi.NegotiatorOptions{Target: true, ISER: c.params.RDMA})
	}
	n := c.textIn
	kvs, err := n.Receive(iscsi.StageFullFeature, data, b.Continue())
	if err != nil {
		c.textIn = nil
		c.reject(b, iscsi.RejectProtocol)
		return nil
	}
	if b.Continue() {
		c.textAnswer(b) // empty, asks for more
		return nil
	}
	c.textIn = nil
	for _, kv := range kvs {
		if kv.Key == "SendTargets" {
			c.text = append(c.text, c.sendTargets(kv.Value)...)
		}
	}
	c.text, _ = n.Fill(c.text, iscsi.MaxText)
	if v, ok := n.Peer("MaxRecvDataSegmentLength"); ok && !c.params.RDMA {
		if m, ok := iscsi.ParseNumber(v); ok {
			c.mu.Lock()
			c.params.MaxSend = int(m)
			c.mu.Unlock()
		}
	}
	c.textAnswer(b)
	return nil
}

// textAnswer sends the next part of c.text.
func (c *conn) textAnswer(b iscsi.BHS) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(len(c.text), c.datamover.maxSend(), controlSegment)
	part := append([]byte(nil), c.text[:n]...)
	c.text = c.text[n:]
	p := iscsi.TextResponse{Final: len(c.text) == 0 && c.textIn == nil, Continue: len(c.text) > 0, DataLen: n, ITT: b.ITT(), TTT: iscsi.Reserved, LUN: b.LUN()}
	if p.Final {
		c.text, c.textTTT = nil, 0
	} else {
		if c.textTTT == 0 {
			c.textTTT = 1
		}
		p.TTT = c.textTTT
		if c.textIn != nil {
			p.TTT = iscsi.Reserved
		}
	}
	var h [iscsi.BHSLen]byte
	p.Put(h[:])
	c.numbersLocked(h[:], true)
	c.controlLocked(h[:], part)
	c.kickLocked()
}

// logout ends the session: tasks first, then the answer, then the connection (section 11.14).
func (c *conn) logout(b iscsi.BHS) {
	var p iscsi.LogoutRequest
	p.Parse(b)
	resp := iscsi.LogoutResponse{ITT: p.ITT, Time2Wait: uint16(c.params.Time2Wait), Time2Retain: 0}
	switch {
	case p.Reason == iscsi.LogoutRecovery:
		resp.Response = iscsi.LogoutNoRecovery
	case p.Reason == iscsi.LogoutConnection && p.CID != c.sess.cid:
		resp.Response = iscsi.LogoutNoCID
	case p.Reason > iscsi.LogoutRecovery:
		c.reject(b, iscsi.RejectField)
		return
	}
	c.hold()
	if resp.Response != iscsi.LogoutOK {
		c.logoutAnswerLocked(&resp)
		c.kickLocked()
		c.letGo()
		return
	}
	c.endingLocked()
	another := len(c.logouts) > 0
	if another && c.immediate >= maxImmediate {
		c.rejectLocked(b, iscsi.RejectImmediate)
		c.kickLocked()
		c.letGo()
		return
	}
	c.immediate++ // until it is answered, as with task management
	c.logouts = append(c.logouts, resp)
	nexus := c.nexus
	c.nexus = nil // closed here, not in finish
	c.letGo()
	switch {
	case another: // answered with the first, whose tasks may still run
	case nexus == nil:
		c.loggedOut()
	default:
		c.closeNexus(nexus, c.loggedOut)
	}
}

// loggedOut answers each logout, and closes the connection behind the answers.
func (c *conn) loggedOut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.logouts {
		c.immediate--
		c.logoutAnswerLocked(&c.logouts[i])
	}
	c.logouts = nil
	if c.killErr == nil {
		c.killErr = errLoggedOut
	}
	c.datamover.closeAfterFlushLocked()
	c.kickLocked()
}

func (c *conn) logoutAnswerLocked(r *iscsi.LogoutResponse) {
	var h [iscsi.BHSLen]byte
	r.Put(h[:])
	c.numbersLocked(h[:], true)
	c.controlLocked(h[:], nil)
}

// closeNexus aborts every task, ending moves that wait for the initiator, and calls done after the last.
func (c *conn) closeNexus(n *scsi.Nexus, done func()) {
	c.sess.hold()
	n.Close(func() {
		done()
		c.sess.release()
	})
}

// async reports a SCSI asynchronous event (section 11.9): a unit attention, before a command asks.
func (c *conn) async(e scsi.AsyncEvent) {
	data := make([]byte, 2+len(e.Sense))
	data[0], data[1] = byte(len(e.Sense)>>8), byte(len(e.Sense))
	copy(data[2:], e.Sense)
	// The device server may hold locks that a flush here would want again by way of Moved.
	go func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.state == stateFull && len(data) <= c.datamover.maxSend() {
			c.asyncLocked(iscsi.Async{Event: iscsi.AsyncSCSI, LUN: e.LUN, DataLen: len(data)}, data)
			c.kickLocked()
		}
	}()
}

// asyncLocked sends an Asynchronous Message to an initiator that can take one. The others lose the warning alone: their
// next command reports the condition, and a connection ends without notice.
func (c *conn) asyncLocked(p iscsi.Async, data []byte) {
	if !c.listensLocked() || !c.roomLocked() {
		c.rec.Note("not told of asynchronous event %d: it could not take it", p.Event)
		return
	}
	c.unasked.sentLocked(c.statSN)
	var h [iscsi.BHSLen]byte
	p.Put(h[:])
	c.numbersLocked(h[:], true)
	c.controlLocked(h[:], data)
}
