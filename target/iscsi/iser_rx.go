package iscsi

import (
	"errors"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/transport"
)

// ended names the end of a connection. Where the initiator did not want it, what the fabric says is what the log and the operator need.
func (x *iserDatamover) ended(err error) error {
	var te *transport.TerminateError
	if errors.As(err, &te) || errors.Is(err, transport.ErrLost) {
		return err
	}
	return errPeerClosed
}

// lastWords rejects the PDU that broke a rule before the connection ends for it.
func (x *iserDatamover) lastWords(err error) {
	var pe *iscsi.ProtocolError
	c := x.c
	c.mu.Lock()
	if c.killErr == nil {
		c.killErr = err
	}
	c.corked = false
	if errors.As(err, &pe) {
		c.plog.Warn("connection ends: the initiator broke a rule", zap.Stringer("remote", c.remote), zap.Error(err))
	}
	if !errors.Is(err, errDefect) { // which may be in what is queued
		x.flushLocked()
	}
	c.mu.Unlock()
}

// drain closes the queue pair and takes every completion it still owes; after the last no byte lands anywhere.
func (x *iserDatamover) drain(err error) {
	x.owner.Drain(closeReason(err))
	c := x.c
	c.mu.Lock()
	bufs := append(x.recvMem, x.sendMem...)
	if x.loginRecv != nil {
		bufs = append(bufs, x.loginRecv)
	}
	for i := range x.sends {
		if b := x.sends[i].big; b != nil {
			bufs = append(bufs, b)
		}
	}
	x.recvFree = nil
	x.recvMem, x.sendMem, x.loginRecv, x.sends, x.freeSend = nil, nil, nil, nil, nil
	x.dropFetchesLocked()
	quota := x.late.quota
	x.late = late{}
	c.mu.Unlock()
	if quota != nil {
		quota.Close()
	}
	for _, b := range bufs {
		b.Release()
	}
}

// completion handles one work completion.
func (x *iserDatamover) completion(wc *transport.WC) error {
	c := x.c
	i := int(uint32(wc.Token))
	switch wc.Token >> 56 {
	case tokRecv:
		if wc.Err != nil {
			c.mu.Lock()
			x.posted--
			c.mu.Unlock()
			return x.ended(wc.Err)
		}
		return x.received(i, int(wc.Len))
	case tokSend:
		x.sent(i, wc.Err)
	case tokWrite:
		x.wrote(i, wc.Err)
	case tokRead:
		x.read(i, wc.Err)
	}
	return nil
}

// abandon is completion for a connection that has ended: nothing is handled, everything is accounted for.
func (x *iserDatamover) abandon(wc *transport.WC) {
	i := int(uint32(wc.Token))
	err := wc.Err
	if err == nil {
		err = transport.ErrClosed
	}
	switch wc.Token >> 56 {
	case tokSend:
		x.sent(i, err)
	case tokWrite:
		x.wrote(i, err)
	case tokRead:
		x.read(i, err)
	}
}

// received handles one message.
func (x *iserDatamover) received(i, n int) (err error) {
	defer x.c.guard(&err)
	c := x.c
	c.received.Add(1)
	var buf []byte
	c.hold()
	x.posted--
	full := x.full
	if i == 0 {
		buf = x.loginRecv.Bytes()
	} else {
		buf = x.recvs[i-1].span.Bytes()
	}
	c.letGo()
	msg := buf[:min(n, len(buf))]
	var h iscsi.ISERHeader
	switch kind, err := h.Parse(msg); {
	case err != nil:
		return err
	case kind == iscsi.ISERHello:
		// LIO logs a Hello and carries on; so does this target. An initiator that follows RFC 7145 sends none
		// unasked.
		c.plog.Info("iSER Hello ignored", zap.Stringer("remote", c.remote))
		x.repost(i)
		return nil
	case kind != iscsi.ISERControl:
		return &iscsi.ProtocolError{RFC: 7145, Clause: "9.4", Reason: iscsi.RejectProtocol, Detail: "a HelloReply from an initiator"}
	}
	b, ahs, data, err := controlPDU(msg, full && h.WriteValid)
	switch {
	case err != nil:
		return err
	case !full:
		return x.loginRequest(i, b, ahs, data)
	case b.Opcode() == iscsi.OpSCSICommand:
		return x.command(i, b, ahs, &h, data)
	case b.Opcode() == iscsi.OpDataOut:
		return x.dataOut(i, b, data)
	}
	return x.request(i, b, data)
}

// controlPDU takes apart the iSCSI PDU of a control-type message (RFC 7145 section 9.2). advertises says that the message names memory to
// be read, in full-feature phase.
func controlPDU(msg []byte, advertises bool) (b iscsi.BHS, ahs, data []byte, err error) {
	if len(msg) < iscsi.ISERHeaderLen+iscsi.BHSLen {
		return nil, nil, nil, &iscsi.ProtocolError{RFC: 7145, Clause: "9.2", Reason: iscsi.RejectProtocol, Detail: "a message without a whole iSCSI header"}
	}
	b = iscsi.BHS(msg[iscsi.ISERHeaderLen:])
	rest := msg[iscsi.ISERHeaderLen+iscsi.BHSLen:]
	a, dsl := b.AHSLen(), b.DataLen()
	if advertises && dsl > 0 && len(rest) == 0 && a == 0 && b.Opcode() == iscsi.OpSCSICommand {
		// interop: libiscsi 1.19 counts immediate data in the header, sends none, and leaves all of it to the STag.
		b.SetDataLen(0)
		dsl = 0
	}
	if len(rest) < a+dsl {
		return nil, nil, nil, &iscsi.ProtocolError{RFC: 7145, Clause: "9.2", Reason: iscsi.RejectProtocol, Detail: "a PDU longer than the message that carries it"}
	}
	return b, rest[:a], rest[a : a+dsl], nil
}

// repost posts a receive again. That comes before its PDU is handled, so that no response invites a request that finds none; what is
// needed of the PDU afterwards is copied first: the header, and data that is not placed at once.
func (x *iserDatamover) repost(i int) {
	x.c.hold()
	x.repostLocked(i)
	x.c.letGo()
}

// loginRequest handles a PDU of the login phase. One request is outstanding at a time, so the receive is free again before the response.
func (x *iserDatamover) loginRequest(i int, b iscsi.BHS, ahs, data []byte) error {
	text := append([]byte(nil), data...)
	var head [iscsi.BHSLen]byte
	copy(head[:], b)
	extra := len(ahs) > 0
	x.repost(i)
	if extra {
		return broken("11.12", iscsi.RejectField, "additional headers in a login")
	}
	return x.c.loginPDU(head[:], text)
}

// dataOut places unsolicited data.
func (x *iserDatamover) dataOut(i int, b iscsi.BHS, data []byte) error {
	c := x.c
	t, err := c.beginData(b)
	if err == nil && t != nil {
		c.hold()
		gen := t.gen
		c.letGo()
		c.placeBytes(t, gen, int(b.Offset()), data)
		c.endData(t, gen, b, nil)
	}
	x.repost(i)
	return err
}

// request handles any other PDU of full-feature phase.
func (x *iserDatamover) request(i int, b iscsi.BHS, data []byte) error {
	if len(data) > controlSegment {
		return broken("11", iscsi.RejectProtocol, "a %s with %d bytes of data", b.Opcode(), len(data))
	}
	var head [iscsi.BHSLen]byte
	copy(head[:], b)
	var text []byte
	if len(data) > 0 {
		text = append(text, data...)
	}
	x.repost(i)
	return x.c.request(head[:], text)
}

// command runs a SCSI Command. Its receive is posted again before any response of it can leave: responses wait until the
// owner is done with this Poll.
func (x *iserDatamover) command(i int, b iscsi.BHS, ahs []byte, h *iscsi.ISERHeader, data []byte) error {
	c := x.c
	t, err := c.beginCommand(b, ahs, h)
	if err == nil && t != nil {
		if len(data) == 0 {
			// Nothing of the receive is needed any more.
			x.repost(i)
			c.runTask(t, nil)
			return nil
		}
		c.runTask(t, data)
	}
	x.repost(i)
	return err
}
