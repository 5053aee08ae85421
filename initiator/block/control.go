package block

import (
	"errors"
	"fmt"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/iscsi"
)

// Tags of PDUs that are no SCSI command. A task's tag never has the top bits set.
const (
	ctlPing   uint32 = ittControl | 0<<24
	ctlAbort  uint32 = ittControl | 1<<24
	ctlReset  uint32 = ittControl | 2<<24
	ctlLogout uint32 = ittControl | 3<<24
	ctlText   uint32 = ittControl | 4<<24
	ctlMask   uint32 = 0xff << 24
)

func (s *session) sendControlLocked(p iscsi.PDU, data []byte) error {
	var b [iscsi.BHSLen]byte
	p.Put(b[:])
	return s.dm.control(b[:], data)
}

// receivedLocked handles a PDU other than Data-In and R2T; data is valid during the call. It returns the task that the PDU
// answered, for the datamover to retire, and an error that ends the session. The lock is held.
func (s *session) receivedLocked(b iscsi.BHS, data []byte) (*task, error) {
	op := b.Opcode()
	s.numbersLocked(b, op != iscsi.OpNopIn || b.ITT() != iscsi.Reserved)
	switch op {
	case iscsi.OpSCSIResponse:
		return s.responseLocked(b, data)
	case iscsi.OpTaskResponse:
		return s.taskResponseLocked(b)
	case iscsi.OpNopIn:
		return nil, s.nopInLocked(b, data)
	case iscsi.OpReject:
		return nil, s.rejectedLocked(b, data)
	case iscsi.OpAsync:
		return nil, s.asyncLocked(b, data)
	case iscsi.OpLogoutResp:
		if b.ITT() == ctlLogout {
			select {
			case <-s.logout:
			default:
				close(s.logout)
			}
		}
		return nil, nil
	case iscsi.OpTextResponse:
		return nil, nil
	}
	return nil, &iscsi.ProtocolError{Clause: "11.2.1.2", Detail: fmt.Sprintf("%s in full-feature phase", op)}
}

// responseLocked reads a SCSI Response (RFC 7143 section 11.4).
func (s *session) responseLocked(b iscsi.BHS, data []byte) (*task, error) {
	t := s.lookupLocked(b.ITT())
	if t == nil || t.life != taskSent {
		return nil, &iscsi.ProtocolError{Clause: "11.4", Detail: fmt.Sprintf("a response to tag 0x%08x, of which no command is out", b.ITT())}
	}
	var p iscsi.SCSIResponse
	p.Parse(b)
	if p.Response != iscsi.ResponseCompleted {
		taskLives.Move(&t.life, taskAnswered)
		t.err = fmt.Errorf("block: the target failed to execute the command (iSCSI response %d)", p.Response)
		return t, nil
	}
	var sense []byte
	if len(data) >= 2 {
		n := int(data[0])<<8 | int(data[1])
		sense = data[2:min(2+n, len(data))]
	}
	residual, over := int64(0), p.Overflow
	if p.Underflow || p.Overflow {
		residual = int64(p.Residual)
	}
	s.statusLocked(t, p.Status, sense, residual, over)
	return t, nil
}

// statusLocked sets a task's outcome.
func (s *session) statusLocked(t *task, status uint8, sense []byte, residual int64, over bool) {
	taskLives.Move(&t.life, taskAnswered)
	r := t.req
	r.code = status
	moved := t.edtl
	if !over {
		moved = max(t.edtl-residual, 0)
	}
	if t.in {
		moved = min(moved, t.rcvd)
	}
	switch status {
	case statusGood, statusConditionMet:
		s.succeededLocked(t, moved, residual)
	case statusCheck:
		e := parseSense(sense)
		s.heedLocked(t.cmdSN, e)
		if !e.Deferred && (e.Key == keyNoSense && len(sense) > 0 || e.Key == keyRecovered) {
			s.succeededLocked(t, moved, residual) // and has something to tell
			break
		}
		if e.Key == keyMiscompare && !e.Deferred {
			r.Miss = -1
			if e.HasInfo {
				r.Miss = int64(e.Info)
			}
		}
		r.transferred = moved
		t.err = e
	default:
		if status == statusTaskAborted {
			s.doubtLocked() // what took it away may have changed what the unit is
		}
		t.err = &StatusError{Status: status}
	}
}

// succeededLocked takes what a command that has ended well has moved.
func (s *session) succeededLocked(t *task, moved, residual int64) {
	r := t.req
	switch {
	case r.Op == rawCommand:
		r.transferred = moved
	case r.Op == blockdev.Status && r.step == stepOwn:
		t.status(r, moved, &s.limits)
	case residual != 0 && (r.Op == blockdev.Read || r.Op == blockdev.Write && r.step == stepOwn):
		// Parameter lists are another matter: tgt reports the whole of UNMAP's as not moved, and has used it.
		t.err = fmt.Errorf("%w: the target moved %d bytes of %d without an error", blockdev.ErrMedium, moved, t.edtl)
	}
}

// taskResponseLocked ends the task that an abort named. A response that was on its way came before (section 11.6.1).
func (s *session) taskResponseLocked(b iscsi.BHS) (*task, error) {
	var p iscsi.TaskResponse
	p.Parse(b)
	switch p.ITT & ctlMask {
	case ctlAbort:
		s.nextAbortLocked()
		i := int(p.ITT & 0xffff)
		if i >= len(s.tasks) || s.tasks[i].life != taskSent || s.tasks[i].abortITT != p.ITT {
			return nil, nil
		}
		t := &s.tasks[i]
		if p.Response != iscsi.TaskComplete && p.Response != iscsi.TaskNotFound {
			return nil, fmt.Errorf("the target will not abort a command: %s", p.Response)
		}
		taskLives.Move(&t.life, taskAnswered)
		t.err = t.abortedErr(s.ini.o.CommandTimeout)
		return t, nil
	case ctlReset:
		s.resetDoneLocked(p.ITT, p.Response)
		return nil, nil
	}
	return nil, &iscsi.ProtocolError{Clause: "11.6", Detail: "a task management response to no request of ours"}
}

func (s *session) nopInLocked(b iscsi.BHS, data []byte) error {
	if b.ITT() != iscsi.Reserved {
		s.pinging = false
		return nil
	}
	if b.TTT() == iscsi.Reserved {
		return nil
	}
	// The target's ping is answered with its transfer tag and LUN (section 11.18).
	nop := iscsi.NopOut{Immediate: true, LUN: b.LUN(), ITT: iscsi.Reserved, TTT: b.TTT(), CmdSN: s.cmdSN, ExpStatSN: s.statSN}
	return s.sendControlLocked(&nop, nil)
}

func (s *session) rejectedLocked(b iscsi.BHS, data []byte) error {
	var p iscsi.Reject
	p.Parse(b)
	if len(data) >= iscsi.BHSLen {
		bad := iscsi.BHS(data)
		if bad.Opcode() == iscsi.OpNopOut { // a ping that cannot be answered is an answer
			s.pinging = false
			return nil
		}
		return fmt.Errorf("the target rejects our %s: %s", bad.Opcode(), p.Reason)
	}
	return fmt.Errorf("the target rejects a PDU of ours: %s", p.Reason)
}

var errLogoutAsked = errors.New("the target asked for a logout")

func (s *session) asyncLocked(b iscsi.BHS, data []byte) error {
	var p iscsi.Async
	p.Parse(b)
	s.log.Info("asynchronous message", "portal", s.portal, "event", uint8(p.Event))
	switch p.Event {
	case iscsi.AsyncSCSI:
		if len(data) >= 2 {
			n := int(data[0])<<8 | int(data[1])
			s.heedLocked(s.cmdSN, parseSense(data[2:min(2+n, len(data))]))
		}
	case iscsi.AsyncLogout:
		// Commands without an answer are replayed by the login that follows.
		if err := s.sendLogoutLocked(); err != nil {
			return err
		}
		return errLogoutAsked
	case iscsi.AsyncDropConnection, iscsi.AsyncDropSession:
		return errors.New("the target announces the end of the session")
	case iscsi.AsyncNegotiate:
		req := iscsi.TextRequest{Immediate: true, Final: true, ITT: ctlText, TTT: iscsi.Reserved, CmdSN: s.cmdSN, ExpStatSN: s.statSN}
		return s.sendControlLocked(&req, nil)
	}
	return nil
}

func (s *session) sendLogoutLocked() error {
	return s.sendControlLocked(&iscsi.LogoutRequest{Immediate: true, Reason: iscsi.LogoutSession, ITT: ctlLogout, CmdSN: s.cmdSN, ExpStatSN: s.statSN}, nil)
}
