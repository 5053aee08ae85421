package block

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// attach gives the tasks of a session their windows.
func (c *iserConn) attach(s *session, immediate int) {
	c.imm = 0
	if s.params.ImmediateData {
		c.imm = min(s.params.FirstBurst, s.params.MaxSend, immediate)
	}
	for k := range s.tasks {
		s.tasks[k].win = c.wins[k]
		s.tasks[k].local = make([]mem.Span, 0, c.sge+1)
	}
}

// send binds the windows of the batch, and only then, knowing their STags, writes and sends the headers.
func (c *iserConn) send(s *session, batch []*task) error {
	wrs := c.wrs[:0]
	for _, t := range batch {
		t.bound, t.lent, t.stag = false, false, 0
		if t.edtl == 0 {
			continue
		}
		if t.out && t.edtl <= int64(c.imm) && len(t.spans) <= c.sge {
			t.imm = int(t.edtl)
			continue
		}
		a := transport.RemoteWrite
		if t.out {
			a = transport.RemoteRead
		} else {
			t.rcvd = t.edtl
		}
		t.bound = true
		wrs = append(wrs, transport.WR{Op: transport.OpBind, Access: a, Window: t.win, Local: t.spans})
	}
	if len(wrs) > 0 {
		if _, err := c.qp.Post(wrs); err != nil {
			return err
		}
	}
	wrs = wrs[:0]
	for _, t := range batch {
		b := t.slot.Bytes()
		var ih iscsi.ISERHeader
		if t.bound {
			r := t.win.Remote()
			t.stag = r.STag
			if t.out {
				ih.WriteValid, ih.WriteSTag, ih.WriteBase = true, r.STag, r.Off
			} else {
				ih.ReadValid, ih.ReadSTag, ih.ReadBase = true, r.STag, r.Off
			}
		}
		ih.Put(b)
		n := iscsi.ISERHeaderLen + t.command(b[iscsi.ISERHeaderLen:], s.lun, s.statSN, t.imm)
		t.local = append(t.local[:0], t.slot.Cut(0, n))
		wr := transport.WR{Op: transport.OpSend, Flags: transport.Solicited, Token: tokSend}
		if c.sends++; c.sends%sendSignal == 0 {
			wr.Flags |= transport.Signaled
		}
		if t.imm > 0 {
			t.local = append(t.local, t.spans...)
			t.sendNo = c.sends
			if c.counter == nil {
				t.lent = true
				wr.Flags |= transport.Signaled
				wr.Token |= uint64(t.idx) + 1
			}
		}
		wr.Local = t.local
		wrs = append(wrs, wr)
	}
	_, err := c.qp.Post(wrs)
	return err
}

func (c *iserConn) control(b iscsi.BHS, data []byte) error {
	if len(c.ctlFree) == 0 {
		return errors.New("block: too many control PDUs are under way")
	}
	k := c.ctlFree[len(c.ctlFree)-1]
	c.ctlFree = c.ctlFree[:len(c.ctlFree)-1]
	p := c.ctl[k].Bytes()
	var ih iscsi.ISERHeader
	ih.Put(p)
	copy(p[iscsi.ISERHeaderLen:], b)
	n := iserHead + copy(p[iserHead:], data)
	c.sends++
	_, err := c.qp.Post([]transport.WR{{Op: transport.OpSend, Flags: transport.Signaled | transport.Solicited, Token: tokControl | uint64(k),
		Local: []mem.Span{c.ctl[k].Cut(0, n)}}})
	return err
}

// run is the owner loop.
func (c *iserConn) run(s *session) error {
	var first error
	take := func(wcs []transport.WC) {
		s.mu.Lock()
		if !s.dead {
			if e := c.batchLocked(s, wcs); e != nil {
				s.failLocked(e)
			}
		} else if first == nil {
			first = wcError(wcs)
		}
		s.pumpLocked()
		s.flushLocked()
		s.mu.Unlock()
	}
	wcs, err := c.poll.Next(context.Background(), true)
	for ; err == nil; wcs, err = c.poll.Next(context.Background(), true) {
		take(wcs)
	}
	if !errors.Is(err, transport.ErrClosed) {
		c.close(err) // Wait failed; the connection is to end
	}
	err = c.poll.Drain(take)
	var te *transport.TerminateError
	if first == nil || errors.As(err, &te) {
		first = err
	}
	return first
}

func wcError(wcs []transport.WC) error {
	for i := range wcs {
		if wcs[i].Err != nil {
			return wcs[i].Err
		}
	}
	return nil
}

// batchLocked handles completions. The session's lock is held.
func (c *iserConn) batchLocked(s *session, wcs []transport.WC) error {
	c.recvs = c.recvs[:0]
	wrs := c.wrs[:0]
	for i := range wcs {
		wc := &wcs[i]
		if wc.Err != nil {
			return c.cause(wc.Err)
		}
		idx := int(uint32(wc.Token))
		switch wc.Token & tokKind {
		case tokControl:
			c.ctlFree = append(c.ctlFree, idx)
			c.asked = false
		case tokSend:
			if idx > 0 {
				t := &s.tasks[idx-1]
				if t.lent = false; t.life == taskAnswered {
					s.finishLocked(t)
				}
			}
		case tokInvalidate:
			t := &s.tasks[idx]
			t.bound = false
			s.finishLocked(t)
		case tokRecv, tokLoginRecv:
			buf := c.logRx
			if wc.Token&tokKind == tokRecv {
				buf = c.ring[idx]
			}
			t, err := c.messageLocked(s, buf.Bytes()[:wc.Len], wc.Inv)
			if err != nil {
				return err
			}
			c.recvs = append(c.recvs, transport.Recv{Token: wc.Token, Buf: buf})
			switch {
			case t == nil:
			case t.imm > 0 && !c.returned(t):
				c.late = append(c.late, t)
			case t.bound:
				// The target left the STag alive: it dies here before the caller gets the memory back.
				wrs = append(wrs, transport.WR{Op: transport.OpInvalidate, Flags: transport.Signaled, Token: tokInvalidate | uint64(t.idx), Window: t.win})
			default:
				s.finishLocked(t)
			}
		}
	}
	if len(c.recvs) > 0 {
		if _, err := c.qp.PostRecv(c.recvs); err != nil {
			return err
		}
	}
	if len(wrs) > 0 {
		if _, err := c.qp.Post(wrs); err != nil {
			return err
		}
	}
	if len(c.late) > 0 {
		return c.collectLocked(s)
	}
	return nil
}

// returned reports whether the fabric has let go of the immediate data of a task. An answer is no proof of it: a target may
// answer what it has not read, and would then be sent whatever its caller uses the memory for (transport, rule 7).
func (c *iserConn) returned(t *task) bool {
	if c.counter == nil {
		return !t.lent
	}
	return c.counter.SendsDone() >= t.sendNo
}

// collectLocked ends the tasks that were answered early and whose data is the caller's again by now. For the others a NOP-Out that
// wants no answer goes behind them: its completion is theirs.
func (c *iserConn) collectLocked(s *session) error {
	left := c.late[:0]
	for _, t := range c.late {
		switch {
		case c.counter == nil: // its completion ends it
		case c.returned(t):
			s.finishLocked(t)
		default:
			left = append(left, t)
		}
	}
	clear(c.late[len(left):])
	c.late = left
	if len(left) == 0 || c.asked || len(c.ctlFree) == 0 {
		return nil
	}
	c.asked = true
	return s.sendControlLocked(&iscsi.NopOut{Immediate: true, LUN: s.lun, ITT: iscsi.Reserved, TTT: iscsi.Reserved, CmdSN: s.cmdSN, ExpStatSN: s.statSN}, nil)
}

// messageLocked handles one received PDU and returns the task it ends.
func (c *iserConn) messageLocked(s *session, b []byte, inv uint32) (*task, error) {
	h, data, err := parseISER(b)
	if err != nil {
		return nil, err
	}
	t, err := s.receivedLocked(h, data)
	if err != nil || inv == 0 {
		return t, err
	}
	if err := c.invalidated(t, h, inv); err != nil {
		if t != nil {
			taskLives.Move(&t.life, taskSent) // nothing that such a peer says is an outcome
		}
		return nil, err
	}
	t.bound = false
	return t, nil
}

// invalidated judges a Send with Invalidate.
func (c *iserConn) invalidated(t *task, h iscsi.BHS, inv uint32) error {
	// RFC 7145 section 7.3.2: only the command's own STag may be invalidated by its response. Anything else means that
	// memory of another command is no longer what it was thought to be.
	if t == nil || !t.bound || t.stag != inv || h.Opcode() != iscsi.OpSCSIResponse {
		return &iscsi.ProtocolError{RFC: 7145, Clause: "7.3.2", Detail: fmt.Sprintf("a Send that invalidates STag 0x%08x, which is not the command's", inv)}
	}
	if !c.sendInv {
		return &iscsi.ProtocolError{RFC: 7145, Clause: "7.3.2", Detail: "a Send with Invalidate, which was not agreed"}
	}
	return nil
}
