package faults

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/sluice-storage/sluice/internal/iscsi"
)

// session is an iSCSI session of one connection, over iSER or TCP, that does what it is told.
type session struct {
	r       *rnic    // over iSER
	c       net.Conn // over TCP
	isid    iscsi.ISID
	tsih    uint16
	cmdSN   uint32
	statSN  uint32 // ExpStatSN
	itt     uint32
	written int // bytes that the target wrote by RDMA
}

// pdu is a PDU of the target.
type pdu struct {
	bhs  iscsi.BHS
	data []byte
}

func newISID() (id iscsi.ISID) {
	_, _ = rand.Read(id[:]) // it never fails
	id[0] = 0x80            // "random" (RFC 7143 section 11.12.5)
	return id
}

func openTCP(ctx context.Context, rig *Rig) (*session, error) {
	c, err := dial(ctx, rig.Addr)
	if err != nil {
		return nil, err
	}
	return &session{c: c, isid: newISID(), itt: 1, cmdSN: 1}, nil
}

func openISER(ctx context.Context, rig *Rig) (*session, error) {
	r, err := connect(ctx, rig, false)
	if err != nil {
		return nil, err
	}
	return &session{r: r, c: r.c, isid: newISID(), itt: 1, cmdSN: 1}, nil
}

func (s *session) close() { _ = s.c.Close() }

// reset ends the connection as a machine does that loses its power and answers again: with an RST.
func (s *session) reset() {
	if tc, ok := s.c.(*net.TCPConn); ok {
		_ = tc.SetLinger(0)
	}
	_ = s.c.Close()
}

// raw is a PDU on the wire of TCP.
func raw(bhs iscsi.BHS, data []byte) []byte {
	b := append([]byte(nil), bhs...)
	b = append(b, data...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// put sends a PDU, over iSER behind the header.
func (s *session) put(bhs iscsi.BHS, data []byte, h iscsi.ISERHeader) error {
	if s.r == nil {
		_, err := s.c.Write(raw(bhs, data))
		return err
	}
	b := h.Append(nil)
	b = append(b, bhs...)
	return s.r.send(append(b, data...))
}

func (s *session) pdu(p iscsi.PDU) iscsi.BHS {
	b := make(iscsi.BHS, iscsi.BHSLen)
	p.Put(b)
	return b
}

// hear returns the next PDU of the target.
func (s *session) hear() (*pdu, error) {
	if s.r != nil {
		f, err := s.r.message(func(f *frame) { s.written += len(f.data) })
		if err != nil {
			return nil, err
		}
		if f.op == opTerminate {
			return nil, fmt.Errorf("the target sent a Terminate: % x", f.data)
		}
		if f.op == opReadReq {
			return &pdu{data: f.data}, nil
		}
		if len(f.data) < iscsi.ISERHeaderLen+iscsi.BHSLen {
			return nil, fmt.Errorf("the target sent a Send of %d bytes", len(f.data))
		}
		p := &pdu{bhs: iscsi.BHS(f.data[iscsi.ISERHeaderLen:][:iscsi.BHSLen]), data: f.data[iscsi.ISERHeaderLen+iscsi.BHSLen:]}
		s.heard(p)
		return p, nil
	}
	p := &pdu{bhs: make(iscsi.BHS, iscsi.BHSLen)}
	if _, err := io.ReadFull(s.c, p.bhs); err != nil {
		return nil, err
	}
	n := p.bhs.DataLen()
	p.data = make([]byte, n+(-n&3))
	if _, err := io.ReadFull(s.c, p.data); err != nil {
		return nil, err
	}
	p.data = p.data[:n]
	s.heard(p)
	return p, nil
}

func (s *session) heard(p *pdu) {
	switch p.bhs.Opcode() {
	case iscsi.OpR2T:
	case iscsi.OpDataIn:
		if p.bhs.Flags()&1 != 0 {
			s.statSN = p.bhs.StatSN() + 1
		}
	default:
		s.statSN = p.bhs.StatSN() + 1
	}
}

// loginRequest is the one request of a login that skips the security stage.
func (s *session) loginRequest() *iscsi.LoginRequest {
	return &iscsi.LoginRequest{Transit: true, CSG: iscsi.StageOperational, NSG: iscsi.StageFullFeature, ISID: s.isid, TSIH: s.tsih,
		ITT: s.itt, CmdSN: s.cmdSN, ExpStatSN: s.statSN}
}

func (s *session) loginKeys(rig *Rig, more ...string) []byte {
	var b []byte
	keys := []string{"InitiatorName=iqn.2026-11.io.sluice:bad", "TargetName=" + rig.Target, "SessionType=Normal"}
	if s.r != nil {
		keys = append(keys, "RDMAExtensions=Yes", "InitiatorRecvDataSegmentLength=8192", "TargetRecvDataSegmentLength=8192")
	}
	for _, k := range append(keys, more...) {
		b = append(append(b, k...), 0)
	}
	return b
}

// try sends a login request and returns the response's status.
func (s *session) try(q *iscsi.LoginRequest, data []byte) (*iscsi.LoginResponse, error) {
	q.DataLen = len(data)
	if err := s.put(s.pdu(q), data, iscsi.ISERHeader{}); err != nil {
		return nil, err
	}
	p, err := s.hear()
	if err != nil {
		return nil, fmt.Errorf("the login response: %w", err)
	}
	if op := p.bhs.Opcode(); op != iscsi.OpLoginResponse {
		return nil, fmt.Errorf("a login was answered by %v", op)
	}
	var r iscsi.LoginResponse
	r.Parse(p.bhs)
	return &r, nil
}

// login brings the session to its full-feature phase.
func (s *session) login(rig *Rig, more ...string) error {
	r, err := s.try(s.loginRequest(), s.loginKeys(rig, more...))
	if err != nil {
		return err
	}
	if r.Status != iscsi.LoginSuccess || !r.Transit || r.NSG != iscsi.StageFullFeature {
		return fmt.Errorf("the login was refused: %v (%+v)", r.Status, r)
	}
	s.tsih = r.TSIH
	return nil
}

// full opens a session and logs in.
func full(ctx context.Context, rig *Rig, iser bool, more ...string) (*session, error) {
	open := openTCP
	if iser {
		open = openISER
	}
	s, err := open(ctx, rig)
	if err != nil {
		return nil, err
	}
	if err := s.login(rig, more...); err != nil {
		s.close()
		return nil, err
	}
	// The first command may meet a unit attention: not of interest here.
	for range 4 {
		st, err := s.do(rig, s.command(rig, cdb(0x00, 0, 0)), nil, iscsi.ISERHeader{})
		if err != nil {
			s.close()
			return nil, err
		}
		if st.status == 0 {
			return s, nil
		}
	}
	s.close()
	return nil, errors.New("the unit is never ready")
}

// cdb is a 16-byte CDB of a command with a 64-bit LBA and a 32-bit length.
func cdb(op byte, lba uint64, blocks uint32) (b [16]byte) {
	b[0] = op
	for i := range 8 {
		b[2+i] = byte(lba >> (56 - 8*i))
	}
	for i := range 4 {
		b[10+i] = byte(blocks >> (24 - 8*i))
	}
	return b
}

const (
	cdbRead16  = 0x88
	cdbWrite16 = 0x8a
)

// command is the next command of the session.
func (s *session) command(rig *Rig, c [16]byte) *iscsi.SCSICommand {
	s.itt++
	q := &iscsi.SCSICommand{Final: true, Attr: iscsi.Attr(1), LUN: uint64(rig.LUN) << 48, ITT: s.itt, CmdSN: s.cmdSN, ExpStatSN: s.statSN, CDB: c}
	s.cmdSN++
	return q
}

// status is the end of a command.
type status struct {
	response, status byte
	key, asc, ascq   byte
	overflow, under  bool
	residual         uint32
	dataIn           int
}

func (s status) String() string {
	return fmt.Sprintf("response %02x status %02x sense %x/%02x/%02x residual %d over %v under %v after %d bytes", s.response, s.status, s.key, s.asc, s.ascq, s.residual, s.overflow, s.under, s.dataIn)
}

// do sends a command and waits for its end. It answers no R2T.
func (s *session) do(_ *Rig, q *iscsi.SCSICommand, data []byte, h iscsi.ISERHeader) (*status, error) {
	q.DataLen = len(data)
	q.ExpStatSN = s.statSN
	s.written = 0
	if err := s.put(s.pdu(q), data, h); err != nil {
		return nil, err
	}
	return s.end(q.ITT)
}

// end waits for the end of a command.
func (s *session) end(itt uint32) (*status, error) {
	st := &status{}
	for {
		p, err := s.hear()
		if err != nil {
			return nil, err
		}
		if p.bhs == nil {
			continue // an RDMA Read Request
		}
		switch p.bhs.Opcode() {
		case iscsi.OpDataIn:
			st.dataIn += len(p.data)
			var d iscsi.DataIn
			d.Parse(p.bhs)
			if d.HasStatus && d.ITT == itt {
				st.status, st.overflow, st.under, st.residual = d.Status, d.Overflow, d.Underflow, d.Residual
				return st, nil
			}
		case iscsi.OpSCSIResponse:
			var r iscsi.SCSIResponse
			r.Parse(p.bhs)
			if r.ITT != itt {
				continue
			}
			st.response, st.status, st.overflow, st.under, st.residual = r.Response, r.Status, r.Overflow, r.Underflow, r.Residual
			st.dataIn += s.written
			if len(p.data) >= 2+14 {
				b := p.data[2:]
				if b[0]&0x7f >= 0x72 {
					st.key, st.asc, st.ascq = b[1]&15, b[2], b[3]
				} else {
					st.key, st.asc, st.ascq = b[2]&15, b[12], b[13]
				}
			}
			return st, nil
		case iscsi.OpReject:
			return nil, &rejected{reason: p.bhs[2]}
		case iscsi.OpR2T, iscsi.OpNopIn:
		default:
			return nil, fmt.Errorf("a command was answered by %v", p.bhs.Opcode())
		}
	}
}

// rejected is a Reject PDU.
type rejected struct{ reason byte }

func (r *rejected) Error() string {
	return fmt.Sprintf("the target rejected the PDU, reason 0x%02x", r.reason)
}

// ended waits for the target to end the connection.
func (s *session) ended() error {
	defer s.close()
	for {
		_, err := s.hear()
		if err == nil {
			continue
		}
		if gone(err) || s.r != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		return fmt.Errorf("the target should have ended the connection: %w", err)
	}
}

// read is a READ command.
func (s *session) read(rig *Rig, lba uint64, blocks uint32) *iscsi.SCSICommand {
	q := s.command(rig, cdb(cdbRead16, lba, blocks))
	q.Read, q.EDTL = true, blocks*sector
	return q
}

// write writes blocks over TCP, as the target's R2Ts ask.
func (s *session) write(rig *Rig, lba uint64, blocks uint32, fill byte) (*status, error) {
	q := s.command(rig, cdb(cdbWrite16, lba, blocks))
	q.Write, q.EDTL = true, blocks*sector
	if err := s.put(s.pdu(q), nil, iscsi.ISERHeader{}); err != nil {
		return nil, err
	}
	p, err := s.hear()
	if err != nil {
		return nil, err
	}
	if p.bhs.Opcode() != iscsi.OpR2T {
		return nil, fmt.Errorf("a WRITE was answered by %v", p.bhs.Opcode())
	}
	var r iscsi.R2T
	r.Parse(p.bhs)
	if r.Length != q.EDTL {
		return nil, fmt.Errorf("an R2T for %d bytes of %d", r.Length, q.EDTL)
	}
	data := make([]byte, r.Length)
	for i := range data {
		data[i] = fill
	}
	const piece = 8192
	for off := 0; off < len(data); off += piece {
		d := &iscsi.DataOut{Final: off+piece >= len(data), LUN: q.LUN, ITT: q.ITT, TTT: r.TTT, ExpStatSN: s.statSN, DataSN: uint32(off / piece), Offset: uint32(off), DataLen: piece}
		if err := s.put(s.pdu(d), data[off:off+piece], iscsi.ISERHeader{}); err != nil {
			return nil, err
		}
	}
	return s.end(q.ITT)
}
