package twohosts

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/sluice-storage/sluice/internal/iscsi"
)

// third is a session of another host that only resets, by task management that our initiators send only as a fence.
type third struct {
	c             net.Conn
	cmdSN, statSN uint32
	itt           uint32
}

func newThird(addr string) (*third, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	s := &third{c: c, cmdSN: 1, itt: 1}
	keys := []byte("InitiatorName=iqn.2026-11.org.example:third\x00TargetName=" + iqn + "\x00SessionType=Normal\x00")
	q := &iscsi.LoginRequest{Transit: true, CSG: iscsi.StageOperational, NSG: iscsi.StageFullFeature, ISID: iscsi.RandomISID(0), ITT: 1, CmdSN: 1, DataLen: len(keys)}
	b, err := s.call(q, keys)
	if err != nil {
		c.Close()
		return nil, err
	}
	var r iscsi.LoginResponse
	if r.Parse(b); b.Opcode() != iscsi.OpLoginResponse || r.Status != iscsi.LoginSuccess || !r.Transit {
		c.Close()
		return nil, fmt.Errorf("login: %v %v", b.Opcode(), r.Status)
	}
	return s, nil
}

func (s *third) close() { s.c.Close() }

// call sends a PDU and returns the header of what answers its tag.
func (s *third) call(p iscsi.PDU, data []byte) (iscsi.BHS, error) {
	if err := s.c.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	b := make(iscsi.BHS, iscsi.BHSLen)
	p.Put(b)
	b = append(b, data...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	if _, err := s.c.Write(b); err != nil {
		return nil, err
	}
	for {
		h := make(iscsi.BHS, iscsi.BHSLen)
		if _, err := io.ReadFull(s.c, h); err != nil {
			return nil, err
		}
		n := h.DataLen()
		if _, err := io.CopyN(io.Discard, s.c, int64(n+(-n&3))); err != nil {
			return nil, err
		}
		switch h.Opcode() {
		case iscsi.OpLoginResponse, iscsi.OpTaskResponse:
			s.statSN = h.StatSN() + 1
			return h, nil
		case iscsi.OpReject:
			return nil, errors.New("the target rejects a PDU")
		}
	}
}

// reset clears the commands of all hosts (RFC 7143 section 11.5.1).
func (s *third) reset(f iscsi.TaskFunction) error {
	s.itt++
	b, err := s.call(&iscsi.TaskRequest{Immediate: true, Function: f, ITT: s.itt, RefTag: iscsi.Reserved, CmdSN: s.cmdSN, ExpStatSN: s.statSN}, nil)
	if err != nil {
		return err
	}
	if b.Opcode() != iscsi.OpTaskResponse || iscsi.TaskStatus(b[2]) != iscsi.TaskComplete {
		return fmt.Errorf("%v is answered by %v %d", f, b.Opcode(), b[2])
	}
	return nil
}
