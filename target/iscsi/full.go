package iscsi

import (
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/target/scsi"
)

var errAborted = errors.New("iscsi: the task was aborted while its data was still to come")

func broken(clause string, r iscsi.RejectReason, format string, a ...any) error {
	return &iscsi.ProtocolError{Clause: clause, Reason: r, Detail: fmt.Sprintf(format, a...)}
}

func dataFault(asc scsi.ASC, why error) error {
	return &scsi.SenseError{Key: scsi.AbortedCommand, ASC: asc, Cause: why}
}

// beginCommand checks a SCSI Command and makes it a task. The owner calls it, then runTask. A nil task without an error
// means that the PDU is over: ignored or rejected, its data is dropped.
func (c *conn) beginCommand(b iscsi.BHS, ahs []byte, h *iscsi.ISERHeader) (*task, error) {
	var extra iscsi.AHS
	if len(ahs) > 0 {
		if err := extra.Parse(ahs); err != nil {
			return nil, err
		}
	}
	f := b.Flags()
	read, write := f&iscsi.FlagRead != 0, f&iscsi.FlagWrite != 0
	dsl, edtl := b.DataLen(), int(b.EDTL())

	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != stateFull {
		return nil, nil
	}
	if b.Immediate() && c.immediate >= maxImmediate {
		c.rejectLocked(b, iscsi.RejectImmediate)
		return nil, nil
	}
	ok, err := c.takeCmdSNLocked(b)
	if err != nil || !ok {
		return nil, err
	}
	switch {
	case c.discovery:
		// Section 4.3: a discovery session carries text and logout only.
		c.rejectLocked(b, iscsi.RejectNotSupported)
		return nil, nil
	case b.ITT() == iscsi.Reserved:
		return nil, broken("11.2.1.8", iscsi.RejectField, "a SCSI Command with the reserved task tag")
	case dsl > 0 && !write, !write && !b.Final():
		return nil, broken("11.3.1", iscsi.RejectField, "data with a command that does not write")
	case dsl > edtl:
		return nil, broken("11.3.4", iscsi.RejectField, "%d bytes of immediate data in a transfer of %d", dsl, edtl)
	case dsl > 0 && !c.params.ImmediateData:
		return nil, broken("13.11", iscsi.RejectProtocol, "immediate data, and ImmediateData is No")
	case dsl > c.params.FirstBurst:
		return nil, broken("13.14", iscsi.RejectProtocol, "%d bytes of immediate data, and FirstBurstLength is %d", dsl, c.params.FirstBurst)
	case !b.Final() && c.params.InitialR2T:
		return nil, broken("13.10", iscsi.RejectProtocol, "unsolicited data announced, and InitialR2T is Yes")
	case c.taskOfITTLocked(b.ITT()) != nil:
		c.rejectLocked(b, iscsi.RejectInProgress)
		return nil, nil
	}
	t := c.takeTaskLocked()
	t.itt, t.lun, t.immediate = b.ITT(), b.LUN(), b.Immediate()
	c.itts[t.slot] = t.itt
	if t.immediate {
		c.immediate++
	} else {
		c.enteredLocked()
	}
	c.stats.commands++
	n := copy(t.cdb[:], b.CDB())
	n += copy(t.cdb[n:], extra.ExtCDB)
	t.LUN, t.CDB, t.Attr, t.Tag = t.lun, t.cdb[:n], scsi.Attr(f&7), uint64(t.itt)
	if t.Attr > scsi.ACA {
		t.Attr = scsi.Simple // reserved values of section 11.3.1
	}
	t.Nexus, t.Mover = c.nexus, t
	if write {
		t.ExpectOut = int64(edtl)
		t.out.edtl, t.out.unsol = edtl, dsl
		if !b.Final() {
			t.out.unsol = min(edtl, c.params.FirstBurst)
			t.out.unsolOpen = t.out.unsol > dsl
		}
		t.out.unsolSeen = dsl
		if read && extra.HasBidi {
			t.ExpectIn = int64(extra.BidiRead)
		}
	} else if read {
		t.ExpectIn = int64(edtl)
	}
	if h != nil {
		t.iser.header = *h
	}
	return t, nil
}

// runTask hands a task to the device server. imm is immediate data that has arrived; it need not outlive the call.
func (c *conn) runTask(t *task, imm []byte) {
	c.mu.Lock()
	gen := t.gen
	t.out.imm = imm
	t.out.got = len(imm)
	c.stats.bytesIn += uint64(len(imm))
	full := t.out.unsol > 0 && c.stash > stashLimit
	if full {
		t.Status = scsi.StatusTaskSetFull
	}
	c.mu.Unlock()
	if full {
		t.Complete(&t.Command)
		return
	}
	c.nexus.Execute(&t.Command)
	if len(imm) == 0 {
		return
	}
	c.mu.Lock()
	if t.live && t.gen == gen && !t.deferred && t.out.imm != nil {
		o := &t.out
		o.imm = nil
		// What the device server has not asked for yet waits outside the receive buffer. It asks in order, and what it
		// has had, in a move that ended or in one under way, it does not ask for again.
		if used := o.off + o.have; used < len(imm) {
			c.parkLocked(t, imm[used:], used)
		}
	}
	c.mu.Unlock()
}

// parkLocked copies unsolicited bytes from at on into the task's stash.
func (c *conn) parkLocked(t *task, b []byte, at int) {
	o := &t.out
	if o.stash == nil {
		o.stash, o.stashOff = make([]byte, 0, o.unsol-at), at
		c.stash += cap(o.stash)
	}
	o.stash = append(o.stash, b...)
	c.stats.copied += uint64(len(b))
}

// beginData checks a Data-Out PDU. It returns the task that the data is for, nil if it is to be dropped.
func (c *conn) beginData(b iscsi.BHS) (*task, error) {
	n, off := b.DataLen(), int(b.Offset())
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.bytesIn += uint64(n)
	if b.TTT() == iscsi.Reserved {
		t := c.taskOfITTLocked(b.ITT())
		if t == nil || !t.out.unsolOpen {
			if t != nil && t.out.err == nil && t.out.unsol == 0 && c.params.InitialR2T {
				t.out.err = dataFault(scsi.ASCUnexpectedUnsolicited, nil)
			}
			return nil, nil // for a task that has ended, or an aborted one
		}
		o := &t.out
		if b.DataSN() != o.unsolSN || off != o.unsolSeen || off+n > o.unsol {
			c.faultLocked(t, b, "unsolicited Data-Out out of order or beyond FirstBurstLength")
		}
		return t, nil
	}
	t := c.taskOfTTTLocked(b.TTT())
	if t == nil || t.itt != b.ITT() || !t.out.r2tOpen {
		return nil, nil
	}
	o := &t.out
	if b.DataSN() != o.dataSN || off != o.r2tPos || off+n > o.r2tEnd || b.Final() != (off+n == o.r2tEnd) {
		c.faultLocked(t, b, "Data-Out that does not follow its R2T")
	}
	return t, nil
}

// faultLocked fails a task whose data came out of sequence. At ErrorRecoveryLevel 0 nothing is asked for again (RFC 7143
// section 7.9): the task ends with CHECK CONDITION once the initiator has sent the rest.
func (c *conn) faultLocked(t *task, b iscsi.BHS, why string) {
	if t.out.err == nil {
		t.out.err = dataFault(scsi.ASCProtocolCRC, broken("7.9", iscsi.RejectProtocol, "%s (DataSN %d, offset %d, %d bytes)", why, b.DataSN(), b.Offset(), b.DataLen()))
	}
}

// destKind says where bytes of a task go.
type destKind uint8

const (
	toNowhere destKind = iota
	toSpans            // the request in progress
	toStash            // wait for a request
)

// destLocked says where the next bytes of t go, which begin pos bytes into its Data-Out buffer, and how many of n.
func (c *conn) destLocked(t *task, gen uint16, pos, n int) (destKind, int) {
	if t == nil || !t.live || t.gen != gen || t.deferred || t.out.err != nil || t.out.cancelled {
		return toNowhere, n
	}
	o := &t.out
	if t.moving && o.data != nil && pos == o.off+o.have && o.have < o.n && (o.stash == nil || pos >= o.unsol) {
		o.placing = true
		return toSpans, min(n, o.n-o.have)
	}
	if pos < o.unsol {
		return toStash, min(n, o.unsol-pos)
	}
	return toNowhere, n
}

// endData follows the last byte of a Data-Out PDU, or of immediate data that was not there when the task began.
func (c *conn) endData(t *task, gen uint16, b iscsi.BHS, bad error) {
	if t == nil {
		return
	}
	c.mu.Lock()
	if !t.live || t.gen != gen {
		c.mu.Unlock()
		return
	}
	o := &t.out
	o.placing = false
	if bad != nil && o.err == nil {
		o.err = bad
	}
	end := int(b.Offset()) + b.DataLen()
	switch {
	case b.Opcode() == iscsi.OpSCSICommand:
	case b.TTT() == iscsi.Reserved:
		o.unsolSN++
		o.unsolSeen = end
		if b.Final() {
			o.unsolOpen = false
			// Fewer than announced is allowed: the rest is solicited.
			o.unsol = min(o.unsol, max(end, 0))
		}
	default:
		o.dataSN++
		o.r2tPos = end
		if b.Final() {
			c.closeR2TLocked(t)
		}
	}
	if t.deferred {
		if !o.waits() {
			c.answerLocked(t)
			c.kickLocked()
		}
		c.mu.Unlock()
		return
	}
	if t.moving && o.data != nil && o.err == nil {
		t.fromArrivedLocked()
	}
	if t.moveEndsLocked() {
		err := o.err
		c.mu.Unlock()
		t.Moved(err)
		return
	}
	if t.moving && o.data != nil && !o.waits() {
		c.link.solicitLocked(t)
		c.kickLocked()
	}
	c.mu.Unlock()
}

// placeBytes puts data that is in memory where it belongs, for links and PDUs that have it whole.
func (c *conn) placeBytes(t *task, gen uint16, pos int, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(data) > 0 {
		kind, n := c.destLocked(t, gen, pos, len(data))
		switch kind {
		case toSpans:
			copySpans(t.out.data, t.out.have, data[:n])
			t.out.have += n
			c.stats.copied += uint64(n)
		case toStash:
			c.parkLocked(t, data[:n], pos)
		}
		pos, data = pos+n, data[n:]
	}
}

// request handles every PDU of full-feature phase but SCSI Command and Data-Out; data is its data segment and need not
// outlive the call.
func (c *conn) request(b iscsi.BHS, data []byte) error {
	c.mu.Lock()
	if c.state == stateEnding && b.Opcode() != iscsi.OpLogoutReq && b.Opcode() != iscsi.OpNopOut || c.state == stateDead {
		c.mu.Unlock()
		return nil
	}
	// An answer to our ping has no task tag and no place in the window (section 11.18).
	if b.Opcode() == iscsi.OpNopOut && b.ITT() == iscsi.Reserved {
		c.pinged = false
		c.mu.Unlock()
		return nil
	}
	switch b.Opcode() {
	case iscsi.OpNopOut, iscsi.OpTaskRequest, iscsi.OpTextRequest, iscsi.OpLogoutReq:
		ok, err := c.takeCmdSNLocked(b)
		if err != nil || !ok {
			c.mu.Unlock()
			return err
		}
		if b.Immediate() && c.immediate >= maxImmediate && b.Opcode() != iscsi.OpLogoutReq {
			c.rejectLocked(b, iscsi.RejectImmediate)
			c.mu.Unlock()
			return nil
		}
	}
	c.mu.Unlock()
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
	c.mu.Lock()
	c.rejectLocked(b, r)
	c.kickLocked()
	c.mu.Unlock()
}

func (c *conn) rejectLocked(b iscsi.BHS, r iscsi.RejectReason) {
	c.stats.rejects++
	p := iscsi.Reject{Reason: r, DataLen: iscsi.BHSLen}
	var h [iscsi.BHSLen]byte
	p.Put(h[:])
	c.numbersLocked(h[:], true)
	c.controlLocked(h[:], append([]byte(nil), b[:iscsi.BHSLen]...))
	c.plog.info("PDU rejected", zap.Stringer("remote", c.remote), zap.Stringer("pdu", b.Opcode()), zap.Stringer("reason", r))
}

func (c *conn) nopOut(b iscsi.BHS, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(len(data), c.link.maxSend())
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
	done := func(r scsi.TMFResponse) {
		c.mu.Lock()
		c.immediate--
		resp := iscsi.TaskResponse{Response: iscsi.TaskStatus(r), ITT: p.ITT}
		var h [iscsi.BHSLen]byte
		resp.Put(h[:])
		c.numbersLocked(h[:], true)
		c.controlLocked(h[:], nil)
		if p.Function == iscsi.TargetColdReset && r == scsi.FunctionComplete {
			// Section 11.5.1: a cold reset ends every session of the target, this one after its answer.
			c.state = stateEnding
			c.link.closeAfterFlushLocked()
		}
		c.kickLocked()
		c.mu.Unlock()
		if p.Function == iscsi.TargetColdReset && r == scsi.FunctionComplete {
			c.srv.dropTarget(c.target, c, errReset)
		}
	}
	c.mu.Lock()
	c.immediate++ // until it is answered, also when it came in order: it is bounded the same
	c.mu.Unlock()
	switch {
	case c.discovery:
		done(scsi.TMFNotSupported)
	case p.Function == iscsi.TaskReassign:
		// Connection recovery is ErrorRecoveryLevel 2 (section 11.6.1).
		done(scsi.ReassignNotSupported)
	default:
		c.nexus.Manage(scsi.TMF(p.Function), p.LUN, uint64(p.RefTag), done)
	}
}

// textRequest answers SendTargets and what may be negotiated in full-feature phase (section 11.10).
func (c *conn) textRequest(b iscsi.BHS, data []byte) error {
	if b.TTT() != iscsi.Reserved {
		if c.textTTT == 0 || b.TTT() != c.textTTT || len(c.text) == 0 {
			// The answer it asks for is gone; section 11.10.4 has the initiator begin anew.
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
	n := min(len(c.text), c.link.maxSend(), controlSegment)
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
	answer := func() {
		c.mu.Lock()
		var h [iscsi.BHSLen]byte
		resp.Put(h[:])
		c.numbersLocked(h[:], true)
		c.controlLocked(h[:], nil)
		if resp.Response == iscsi.LogoutOK {
			if c.killErr == nil {
				c.killErr = errLoggedOut
			}
			c.link.closeAfterFlushLocked()
		}
		c.kickLocked()
		c.mu.Unlock()
	}
	if resp.Response != iscsi.LogoutOK {
		answer()
		return
	}
	c.mu.Lock()
	c.state = stateEnding
	nexus := c.nexus
	c.nexus = nil // closed here, not in finish
	c.mu.Unlock()
	if nexus == nil {
		answer()
		return
	}
	c.closeNexus(nexus, answer)
}

// closeNexus aborts every task, ending moves that wait for the initiator, and calls done after the last.
func (c *conn) closeNexus(n *scsi.Nexus, done func()) {
	c.sess.hold()
	n.Close(func() {
		done()
		c.sess.release()
	})
}

// async reports a SCSI asynchronous event (section 11.9): unit attentions before anybody asks.
func (c *conn) async(e scsi.AsyncEvent) {
	data := make([]byte, 2+len(e.Sense))
	data[0], data[1] = byte(len(e.Sense)>>8), byte(len(e.Sense))
	copy(data[2:], e.Sense)
	// The device server may hold locks that a flush here would want again by way of Moved.
	go func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.state == stateFull && len(data) <= c.link.maxSend() {
			c.asyncLocked(iscsi.Async{Event: iscsi.AsyncSCSI, LUN: e.LUN, DataLen: len(data)}, data)
			c.kickLocked()
		}
	}()
}

func (c *conn) asyncLocked(p iscsi.Async, data []byte) {
	var h [iscsi.BHSLen]byte
	p.Put(h[:])
	c.numbersLocked(h[:], true)
	c.controlLocked(h[:], data)
}

var _ scsi.Mover = (*task)(nil)
var _ scsi.Canceler = (*task)(nil)
