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
		c.plog.warn("connection ends: the initiator broke a rule", zap.Stringer("remote", c.remote), zap.Error(err))
	}
	if !errors.Is(err, errDefect) { // which may be in what is queued
		x.flushLocked()
	}
	c.mu.Unlock()
}

// drain closes the queue pair and takes every completion it still owes; after the last no byte lands anywhere.
func (x *iserDatamover) drain(err error) {
	x.owner.Drain(closeReason(err))
	x.performOvertaken()
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
	if n > len(buf) {
		n = len(buf)
	}
	msg := buf[:n]
	var h iscsi.ISERHeader
	kind, err := h.Parse(msg)
	if err != nil {
		return err
	}
	if kind != iscsi.ISERControl {
		if kind == iscsi.ISERHello {
			// LIO logs a Hello and carries on; so does this target. An initiator that follows RFC 7145 sends none
			// unasked.
			c.plog.info("iSER Hello ignored", zap.Stringer("remote", c.remote))
			c.hold()
			x.repostLocked(i)
			c.letGo()
			return nil
		}
		return &iscsi.ProtocolError{RFC: 7145, Clause: "9.4", Reason: iscsi.RejectProtocol, Detail: "a HelloReply from an initiator"}
	}
	if n < iscsi.ISERHeaderLen+iscsi.BHSLen {
		return &iscsi.ProtocolError{RFC: 7145, Clause: "9.2", Reason: iscsi.RejectProtocol, Detail: "a message without a whole iSCSI header"}
	}
	// The receive is posted again before its PDU is handled, so what is needed of it afterwards is copied now: the
	// header, and data that is not placed at once.
	b := iscsi.BHS(msg[iscsi.ISERHeaderLen:])
	rest := msg[iscsi.ISERHeaderLen+iscsi.BHSLen:]
	ahs, dsl := b.AHSLen(), b.DataLen()
	if full && dsl > 0 && len(rest) == 0 && ahs == 0 && h.WriteValid && b.Opcode() == iscsi.OpSCSICommand {
		// interop: libiscsi 1.19 counts immediate data in the header, sends none, and leaves all of it to the STag.
		b.SetDataLen(0)
		dsl = 0
	}
	if len(rest) < ahs+dsl {
		return &iscsi.ProtocolError{RFC: 7145, Clause: "9.2", Reason: iscsi.RejectProtocol, Detail: "a PDU longer than the message that carries it"}
	}
	data := rest[ahs : ahs+dsl]
	if !full {
		// One request is outstanding at a time, so the receive is free again before the response.
		text := append([]byte(nil), data...)
		var head [iscsi.BHSLen]byte
		copy(head[:], b)
		c.hold()
		x.repostLocked(i)
		c.letGo()
		if ahs > 0 {
			return broken("11.12", iscsi.RejectField, "additional headers in a login")
		}
		return c.loginPDU(head[:], text)
	}
	switch b.Opcode() {
	case iscsi.OpSCSICommand:
		return x.command(i, b, rest[:ahs], &h, data)
	case iscsi.OpDataOut:
		t, err := c.beginData(b)
		if err == nil && t != nil {
			c.hold()
			gen := t.gen
			c.letGo()
			c.placeBytes(t, gen, int(b.Offset()), data)
			c.endData(t, gen, b, nil)
		}
		c.hold()
		x.repostLocked(i)
		c.letGo()
		return err
	}
	if len(data) > controlSegment {
		return broken("11", iscsi.RejectProtocol, "a %s with %d bytes of data", b.Opcode(), len(data))
	}
	var head [iscsi.BHSLen]byte
	copy(head[:], b)
	var text []byte
	if len(data) > 0 {
		text = append(text, data...)
	}
	c.hold()
	x.repostLocked(i)
	c.letGo()
	return c.request(head[:], text)
}

// command runs a SCSI Command. Its receive is posted again before any response of it can leave: responses wait until the
// owner is done with this Poll.
func (x *iserDatamover) command(i int, b iscsi.BHS, ahs []byte, h *iscsi.ISERHeader, data []byte) error {
	c := x.c
	t, err := c.beginCommand(b, ahs, h)
	if err == nil && t != nil {
		if len(data) == 0 {
			// Nothing of the receive is needed any more.
			c.hold()
			x.repostLocked(i)
			c.letGo()
			c.runTask(t, nil)
			return nil
		}
		c.runTask(t, data)
	}
	c.hold()
	x.repostLocked(i)
	c.letGo()
	return err
}
