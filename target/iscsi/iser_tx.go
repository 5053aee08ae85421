package iscsi

import (
	"errors"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// sendSlotSize is an iSER header, a BHS and the data segment that is safe to send.
const sendSlotSize = iscsi.ISERHeaderLen + iscsi.BHSLen + iscsi.SafeISERData

const sendSlotStep = 256

// slotLocked takes a send slot, with memory from get if none is free.
func (x *iserDatamover) slotLocked(get func(int) (*mem.Buf, error)) (int, error) {
	if len(x.freeSend) == 0 {
		b, err := get(4096)
		if err != nil {
			return 0, err
		}
		x.sendMem = append(x.sendMem, b)
		s := b.Span()
		for off := 0; off+sendSlotStep <= s.Len; off += sendSlotStep {
			x.freeSend = append(x.freeSend, len(x.sends))
			x.sends = append(x.sends, sendSlot{span: s.Cut(off, sendSlotSize)})
		}
	}
	i := x.freeSend[len(x.freeSend)-1]
	x.freeSend = x.freeSend[:len(x.freeSend)-1]
	return i, nil
}

// sendPDULocked queues the Send of a PDU; t is the task whose move ends with it. Without memory it waits.
func (x *iserDatamover) sendPDULocked(h iscsi.BHS, data []byte, inv uint32, t *task, control bool) {
	if x.owner.OverLocked() {
		return
	}
	if !control {
		x.c.countResponseLocked()
	}
	if len(x.late.pdus) == 0 {
		err := x.queuePDULocked(h, data, inv, t, control, x.c.memory.Get)
		if err == nil {
			return
		}
		if !errors.Is(err, mem.ErrNoMemory) {
			x.failLocked(err)
			return
		}
	}
	x.putOffLocked(h, data, inv, t, control)
}

// queuePDULocked fills a slot with a PDU and queues its Send, or does nothing and says why.
func (x *iserDatamover) queuePDULocked(h iscsi.BHS, data []byte, inv uint32, t *task, control bool, get func(int) (*mem.Buf, error)) error {
	i, err := x.slotLocked(get)
	if err != nil {
		return err
	}
	s := &x.sends[i]
	head := iscsi.ISERHeaderLen + iscsi.BHSLen
	n := head + len(data)
	span := s.span
	if n > sendSlotSize {
		b, err := get(n)
		if err != nil {
			x.freeSend = append(x.freeSend, i)
			return err
		}
		s.big, span = b, b.Span()
	}
	m := span.Bytes()
	var ih iscsi.ISERHeader
	ih.Put(m)
	copy(m[iscsi.ISERHeaderLen:], h[:iscsi.BHSLen])
	copy(m[head:], data)
	s.one[0] = span.Cut(0, n)
	s.move, s.control = t, control
	wr := transport.WR{Op: transport.OpSend, Flags: transport.Signaled | transport.Solicited, Token: token(tokSend, i), Local: x.sends[i].one[:]}
	if inv != 0 {
		wr.Op, wr.Inv = transport.OpSendInv, inv
	}
	x.owner.SendLocked(0, wr)
	x.outSends++
	return nil
}

// failLocked ends the connection from within the lock.
func (x *iserDatamover) failLocked(err error) {
	if x.c.killErr == nil {
		x.c.killErr = err
	}
	go x.close(err)
}

func (x *iserDatamover) sendLocked(h iscsi.BHS, data []byte) { x.sendPDULocked(h, data, 0, nil, true) }

// invalidates is the STag that the response ends (RFC 7145 section 7.3.2): the one for reading if there is one. An
// initiator that was told of an STag which it did not advertise would end the session.
func (x *iserDatamover) invalidates(t *task) uint32 {
	h := &t.iser.header
	switch {
	case !x.inv:
	case h.ReadValid && h.ReadSTag != 0:
		return h.ReadSTag
	case h.WriteValid && h.WriteSTag != 0:
		return h.WriteSTag
	}
	return 0
}

func (x *iserDatamover) respondLocked(t *task) { x.responseLocked(t, nil) }

// responseLocked queues the SCSI Response; with move set the task's move ends when the Send completes.
func (x *iserDatamover) responseLocked(t *task, move *task) {
	var r iscsi.SCSIResponse
	t.responseLocked(&r)
	r.ExpDataSN = 0 // no Data-In PDUs and no R2Ts were sent
	var data [2 + 254]byte
	n := 0
	if r.DataLen > 0 {
		sense := t.Sense[:min(len(t.Sense), iscsi.SafeISERData-2)]
		data[0], data[1] = byte(len(sense)>>8), byte(len(sense))
		n = 2 + copy(data[2:], sense)
		r.DataLen = n
	}
	var h [iscsi.BHSLen]byte
	r.Put(h[:])
	x.c.numbersLocked(h[:], true)
	x.sendPDULocked(h[:], data[:n], x.invalidates(t), move, false)
}

// dataInLocked writes a move into the initiator's memory (RFC 7145 section 7.3.5); with Last the response follows in the
// same Post.
func (x *iserDatamover) dataInLocked(t *task) {
	c := x.c
	h := &t.iser.header
	last := t.Last && t.ExpectOut == 0
	if x.owner.OverLocked() {
		return // finish ends the move
	}
	if !h.ReadValid || h.ReadSTag == 0 {
		if c.killErr == nil {
			c.killErr = &iscsi.ProtocolError{RFC: 7145, Clause: "9.2", Detail: "a command that reads advertises no memory"}
		}
		go x.close(c.killErr)
		return
	}
	off, waiting := h.ReadBase+uint64(t.in.off), 0
	for data := t.in.data; len(data) > 0; {
		k, n := 0, 0
		for k < len(data) && k < x.caps.MaxSGE && (k == 0 || n+data[k].Len <= x.caps.MaxMessage) {
			n += data[k].Len
			k++
		}
		wr := transport.WR{Op: transport.OpWrite, Token: token(tokWrite, int(t.slot)), Local: data[:k:k], Remote: transport.Remote{STag: h.ReadSTag, Off: off}}
		data, off = data[k:], off+uint64(n)
		if len(data) == 0 && !last {
			wr.Flags = transport.Signaled
		}
		waiting = x.owner.SendLocked(n, wr)
	}
	if last {
		c.retireLocked(t)
		x.responseLocked(t, t)
	}
	if waiting >= corkBytes {
		// The initiator works on this while the owner reads what comes next.
		x.flushLocked()
	}
}

// wrote handles the completion of a move's last Write.
func (x *iserDatamover) wrote(slot int, err error) {
	c := x.c
	c.mu.Lock()
	if slot >= len(c.tasks) || c.tasks[slot].move != moveIn {
		c.mu.Unlock()
		return
	}
	t := c.tasks[slot]
	// An unsignaled Write completes with an error only; the move ends with the last of them or with the connection.
	if err != nil {
		c.mu.Unlock()
		return
	}
	t.endMoveLocked()
	c.wrote++
	c.mu.Unlock()
	t.Moved(nil)
}

// sent handles the completion of a Send.
func (x *iserDatamover) sent(i int, err error) {
	c := x.c
	c.mu.Lock()
	s := &x.sends[i]
	if s.big != nil {
		s.big.Release()
		s.big = nil
	}
	t := s.move
	if s.control {
		c.control--
	} else {
		c.unsent--
	}
	s.move, s.control = nil, false
	x.freeSend = append(x.freeSend, i)
	x.outSends--
	if err == nil {
		c.wrote++
	}
	moved := t != nil && t.move == moveIn && err == nil
	if moved {
		t.endMoveLocked()
	}
	if len(x.late.pdus) > 0 && err == nil {
		x.sendLateLocked()
		c.kickLocked()
	}
	x.maybeCloseLocked()
	c.mu.Unlock()
	if moved {
		t.Moved(nil)
	}
}

// flushLocked posts what is queued, unless another goroutine does so already.
func (x *iserDatamover) flushLocked() {
	x.owner.FlushLocked()
	x.maybeCloseLocked()
}
