package faults

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/sluice-storage/sluice/internal/iscsi"
)

// refused logs in with a request that do spoils, and wants one of the statuses, or the end of the connection if none is
// given.
func refused(iser bool, do func(s *session, q *iscsi.LoginRequest, keys []byte) []byte, want ...iscsi.LoginStatus) func(context.Context, *Rig) error {
	return func(ctx context.Context, rig *Rig) error {
		open := openTCP
		if iser {
			open = openISER
		}
		s, err := open(ctx, rig)
		if err != nil {
			return err
		}
		defer s.close()
		q := s.loginRequest()
		r, err := s.try(q, do(s, q, s.loginKeys(rig)))
		if err != nil {
			if len(want) == 0 && !errors.Is(err, os.ErrDeadlineExceeded) {
				return nil
			}
			return err
		}
		for _, w := range want {
			if r.Status == w {
				return s.ended()
			}
		}
		if len(want) == 0 && r.Status.Class() != 0 {
			return s.ended()
		}
		return fmt.Errorf("the login was answered with %04x; want one of %04x", uint16(r.Status), want)
	}
}

func foreignTSIH(_ *session, q *iscsi.LoginRequest, keys []byte) []byte {
	q.TSIH = 0x7777
	return keys
}

func futureVersion(_ *session, q *iscsi.LoginRequest, keys []byte) []byte {
	q.VersionMin, q.VersionMax = 7, 9
	return keys
}

// loginPeers break RFC 7143 section 6.
var loginPeers = []Peer{
	{"login: TSIH of no session, TCP", refused(false, foreignTSIH, 0x020a)},
	{"login: TSIH of no session, iSER", refused(true, foreignTSIH, 0x020a)},
	{"login: a version to come, TCP", refused(false, futureVersion, 0x0205)},
	{"login: a version to come, iSER", refused(true, futureVersion, 0x0205)},
	{"login: another connection for a session", func(ctx context.Context, rig *Rig) error {
		s, err := full(ctx, rig, false)
		if err != nil {
			return err
		}
		defer s.close()
		o, err := openTCP(ctx, rig)
		if err != nil {
			return err
		}
		defer o.close()
		o.isid, o.tsih = s.isid, s.tsih
		q := o.loginRequest()
		q.CID = 1
		r, err := o.try(q, o.loginKeys(rig))
		if err != nil {
			return err
		}
		if r.Status != 0x0206 { // too many connections: MaxConnections is 1
			return fmt.Errorf("a second connection was answered with %04x, want 0206", uint16(r.Status))
		}
		return s.still(rig)
	}},
	{"login: no such target", refused(false, func(_ *session, _ *iscsi.LoginRequest, _ []byte) []byte {
		return []byte("InitiatorName=iqn.2026-11.io.sluice:bad\x00TargetName=iqn.2026-11.io.sluice:nowhere\x00SessionType=Normal\x00")
	}, 0x0203)},
	{"login: no initiator name", refused(false, func(_ *session, _ *iscsi.LoginRequest, _ []byte) []byte {
		return []byte("SessionType=Normal\x00")
	}, 0x0207, 0x0200)},
	{"login: keys that are noise", refused(false, func(_ *session, _ *iscsi.LoginRequest, keys []byte) []byte {
		return append(keys, "no equals sign\x00=\x00\x00\xff\xfe=\x80"...)
	})},
	{"login: 8 KiB of one key", refused(false, func(_ *session, _ *iscsi.LoginRequest, keys []byte) []byte {
		return append(append(append(keys, "X-"...), make([]byte, 7000)...), 0)
	})},
	{"login: a data segment of 16 MiB", func(ctx context.Context, rig *Rig) error {
		s, err := openTCP(ctx, rig)
		if err != nil {
			return err
		}
		q := s.loginRequest()
		q.DataLen = 1<<24 - 1
		if _, err := s.c.Write(s.pdu(q)); err != nil {
			s.close()
			return err
		}
		return s.ended()
	}},
	{"login: continued without end", func(ctx context.Context, rig *Rig) error {
		s, err := openTCP(ctx, rig)
		if err != nil {
			return err
		}
		q := s.loginRequest()
		q.Transit, q.Continue, q.NSG = false, true, 0
		keys := append([]byte("InitiatorName="), make([]byte, 8000)...)
		for i := range keys[14:] {
			keys[14+i] = 'a'
		}
		for range 1000 {
			r, err := s.try(q, keys)
			if err != nil || r.Status.Class() != 0 {
				return s.ended()
			}
			keys = keys[14:][:7000]
		}
		s.close()
		return errors.New("the target takes 7 MB of one key")
	}},
	{"login: a full-feature PDU first", func(ctx context.Context, rig *Rig) error {
		s, err := openTCP(ctx, rig)
		if err != nil {
			return err
		}
		q := s.command(rig, cdb(cdbRead16, 0, 1))
		q.Read, q.EDTL = true, 512
		if _, err := s.c.Write(s.pdu(q)); err != nil {
			s.close()
			return err
		}
		return s.ended()
	}},
	{"login: cut in the middle", func(ctx context.Context, rig *Rig) error {
		s, err := openTCP(ctx, rig)
		if err != nil {
			return err
		}
		q := s.loginRequest()
		q.DataLen = 500
		b := raw(s.pdu(q), make([]byte, 500))
		_, err = s.c.Write(b[:200])
		return errors.Join(err, s.c.Close())
	}},
}

// onTCP is onISER over TCP.
func onTCP(do func(s *session, rig *Rig) error, more ...string) func(context.Context, *Rig) error {
	return func(ctx context.Context, rig *Rig) error {
		s, err := full(ctx, rig, false, more...)
		if err != nil {
			return err
		}
		if err := do(s, rig); err != nil && !gone(err) {
			s.close()
			return err
		}
		return s.ended()
	}
}

// r2t starts a WRITE of blocks and waits for the target's R2T.
func (s *session) r2t(rig *Rig, blocks uint32) (*iscsi.R2T, error) {
	q := s.command(rig, cdb(cdbWrite16, 0, blocks))
	q.Write, q.EDTL = true, blocks*sector
	if err := s.put(s.pdu(q), nil, iscsi.ISERHeader{}); err != nil {
		return nil, err
	}
	for {
		p, err := s.hear()
		if err != nil {
			return nil, err
		}
		if p.bhs.Opcode() == iscsi.OpR2T {
			var r iscsi.R2T
			r.Parse(p.bhs)
			return &r, nil
		}
	}
}

// An answer is how the target has to take a PDU that breaks a rule.
type answer int

const (
	ends    answer = iota // it ends the connection: what follows could not be understood, or is not to be trusted
	rejects               // it sends a Reject and goes on
	refuses               // it sends a Reject and ends the connection
	fails                 // it ends the command with CHECK CONDITION and goes on
	ignores               // it drops the PDU, whose task it may have aborted, and goes on
)

func (a answer) String() string {
	return [...]string{"ends the connection", "rejects the PDU", "rejects the PDU and ends the connection", "fails the command", "ignores the PDU"}[a]
}

// answered waits for what the target makes of a PDU. Our direction stays open, so that an end of the connection is the
// target's own, and in time: before the login timeout or a lost peer could be its cause.
func (s *session) answered() (answer, error) {
	for {
		p, err := s.hear()
		switch {
		case gone(err) || s.r != nil && err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
			return ends, nil
		case err != nil:
			return ends, fmt.Errorf("the target neither answered nor ended the connection: %w", err)
		case p.bhs == nil:
		case p.bhs.Opcode() == iscsi.OpReject:
			return rejects, nil
		case p.bhs.Opcode() == iscsi.OpSCSIResponse:
			var r iscsi.SCSIResponse
			if r.Parse(p.bhs); r.Status == 2 {
				return fails, nil
			}
			return ends, fmt.Errorf("the command ended with status 0x%02x", r.Status)
		}
	}
}

// must checks the answer, and that a session which goes on does so.
func (s *session) must(rig *Rig, want answer) error {
	defer s.close()
	if want == ignores {
		return s.still(rig)
	}
	got, err := s.answered()
	if err != nil {
		return err
	}
	if want == refuses && got == rejects {
		return s.ended()
	}
	if got != want {
		return fmt.Errorf("the target %v; it should be that it %v", got, want)
	}
	if got == ends {
		return nil
	}
	return s.still(rig)
}

// inSession runs do in the full-feature phase, and checks what the target makes of it.
func inSession(iser bool, want answer, do func(s *session, rig *Rig) error, more ...string) func(context.Context, *Rig) error {
	return func(ctx context.Context, rig *Rig) error {
		s, err := full(ctx, rig, iser, more...)
		if err != nil {
			return err
		}
		if err := do(s, rig); err != nil && !gone(err) {
			s.close()
			return err
		}
		return s.must(rig, want)
	}
}

// dataOut answers an R2T with one PDU that do may spoil.
func dataOut(want answer, do func(d *iscsi.DataOut, r *iscsi.R2T)) func(context.Context, *Rig) error {
	return inSession(false, want, func(s *session, rig *Rig) error {
		r, err := s.r2t(rig, 64)
		if err != nil {
			return err
		}
		d := &iscsi.DataOut{Final: true, LUN: uint64(rig.LUN) << 48, ITT: r.ITT, TTT: r.TTT, ExpStatSN: s.statSN, Offset: r.Offset, DataLen: int(r.Length)}
		do(d, r)
		return s.put(s.pdu(d), make([]byte, d.DataLen), iscsi.ISERHeader{})
	}, "InitialR2T=Yes", "ImmediateData=No")
}

// tcpPeers break RFC 7143 in the full-feature phase.
var tcpPeers = []Peer{
	{"tcp: noise", func(ctx context.Context, rig *Rig) error {
		return sendRaw(ctx, rig, []byte("GET / HTTP/1.1\r\nHost: storage\r\n\r\n0123456789012345678901234567890123456789"), false)
	}},
	{"tcp: nothing", func(ctx context.Context, rig *Rig) error { return sendRaw(ctx, rig, nil, true) }},
	{"tcp: a header cut short", onTCP(func(s *session, rig *Rig) error {
		if _, err := s.c.Write(s.pdu(s.command(rig, cdb(0, 0, 0)))[:20]); err != nil {
			return err
		}
		return s.c.(*net.TCPConn).CloseWrite()
	})},
	{"tcp: a data segment that is not there", onTCP(func(s *session, rig *Rig) error {
		q := s.command(rig, cdb(cdbWrite16, 0, 8))
		q.Write, q.EDTL, q.DataLen = true, 4096, 4096
		if _, err := s.c.Write(s.pdu(q)); err != nil {
			return err
		}
		return s.c.(*net.TCPConn).CloseWrite()
	})},
	{"tcp: a data segment of 16 MiB", onTCP(func(s *session, rig *Rig) error {
		q := s.command(rig, cdb(cdbWrite16, 0, 8))
		q.Write, q.EDTL, q.DataLen = true, 4096, 1<<24-1
		_, err := s.c.Write(s.pdu(q))
		return err
	})},
	{"tcp: immediate data beyond what is expected", inSession(false, refuses, func(s *session, rig *Rig) error {
		q := s.command(rig, cdb(cdbWrite16, 0, 1))
		q.Write, q.EDTL, q.DataLen = true, 512, 8192
		return s.put(s.pdu(q), make([]byte, 8192), iscsi.ISERHeader{})
	})},
	{"tcp: additional headers that are noise", inSession(false, refuses, func(s *session, rig *Rig) error {
		q := s.command(rig, cdb(0, 0, 0))
		q.AHSLen = 64
		b := append(s.pdu(q), make([]byte, 64)...)
		for i := range 64 {
			b[48+i] = byte(i*37 + 1)
		}
		_, err := s.c.Write(b)
		return err
	})},
	{"tcp: a wrong header digest", func(ctx context.Context, rig *Rig) error {
		s, err := openTCP(ctx, rig)
		if err != nil {
			return err
		}
		if err := s.login(rig, "HeaderDigest=CRC32C"); err != nil {
			s.close()
			return err
		}
		if _, err := s.c.Write(append(s.pdu(s.command(rig, cdb(0, 0, 0))), 1, 2, 3, 4)); err != nil {
			s.close()
			return err
		}
		return s.ended()
	}},
	{"tcp: Data-Out beyond the burst", dataOut(fails, func(d *iscsi.DataOut, r *iscsi.R2T) { d.Offset = r.Offset + r.Length })},
	{"tcp: Data-Out before the burst", dataOut(fails, func(d *iscsi.DataOut, _ *iscsi.R2T) { d.Offset = 1<<32 - 512 })},
	{"tcp: Data-Out longer than the burst", dataOut(fails, func(d *iscsi.DataOut, r *iscsi.R2T) { d.DataLen = int(r.Length) + 512 })},
	{"tcp: Data-Out that ends too early", dataOut(fails, func(d *iscsi.DataOut, _ *iscsi.R2T) { d.DataLen = 512 })},
	{"tcp: Data-Out of a wrong number", dataOut(fails, func(d *iscsi.DataOut, _ *iscsi.R2T) { d.DataSN = 99 })},
	{"tcp: Data-Out of no transfer", dataOut(ignores, func(d *iscsi.DataOut, _ *iscsi.R2T) { d.TTT ^= 0x5555 })},
	{"tcp: Data-Out of no task", dataOut(ignores, func(d *iscsi.DataOut, _ *iscsi.R2T) { d.ITT ^= 0x5555 })},
	{"tcp: gone in the middle of a write", func(ctx context.Context, rig *Rig) error {
		s, err := full(ctx, rig, false, "InitialR2T=Yes", "ImmediateData=No")
		if err != nil {
			return err
		}
		defer s.reset()
		r, err := s.r2t(rig, 2048)
		if err != nil {
			return err
		}
		d := &iscsi.DataOut{Final: true, LUN: uint64(rig.LUN) << 48, ITT: r.ITT, TTT: r.TTT, Offset: r.Offset, DataLen: 65536}
		_, err = s.c.Write(raw(s.pdu(d), make([]byte, 65536))[:30000])
		return err
	}},
	{"tcp: gone in the middle of a read", func(ctx context.Context, rig *Rig) error {
		s, err := full(ctx, rig, false)
		if err != nil {
			return err
		}
		defer s.reset()
		for range 4 {
			q := s.command(rig, cdb(cdbRead16, 0, 2048))
			q.Read, q.EDTL = true, 2048*sector
			if err := s.put(s.pdu(q), nil, iscsi.ISERHeader{}); err != nil {
				return err
			}
		}
		_, err = s.c.Read(make([]byte, 1000))
		return err
	}},
	{"tcp: a command number far away", func(ctx context.Context, rig *Rig) error {
		s, err := full(ctx, rig, false)
		if err != nil {
			return err
		}
		defer s.close()
		q := s.command(rig, cdb(0, 0, 0))
		q.CmdSN += 100_000 // outside the window: ignored (RFC 7143 section 4.2.2.1)
		s.cmdSN--
		if err := s.put(s.pdu(q), nil, iscsi.ISERHeader{}); err != nil {
			return err
		}
		return s.still(rig)
	}},
	{"tcp: a PDU opcode that is none", func(ctx context.Context, rig *Rig) error {
		s, err := full(ctx, rig, false)
		if err != nil {
			return err
		}
		defer s.close()
		return s.unknownPDU(rig)
	}},
	{"tcp: 4 GiB expected of one block", wants(false, 0x88, func(q *iscsi.SCSICommand) {
		q.Read, q.EDTL, q.CDB = true, 1<<32-1, cdb(cdbRead16, 0, 1)
	}, func(s *status) bool { return s.status == 0 && s.under && s.residual == 1<<32-1-512 && s.dataIn == 512 })},
	{"tcp: a block beyond the end", wants(false, 0x88, func(q *iscsi.SCSICommand) {
		q.Read, q.EDTL, q.CDB = true, 512, cdb(cdbRead16, 1<<40, 1)
	}, func(s *status) bool { return s.status == 2 && s.key == 5 && s.asc == 0x21 && s.dataIn == 0 })},
	{"tcp: four billion blocks", wants(false, 0x88, func(q *iscsi.SCSICommand) {
		q.Read, q.EDTL, q.CDB = true, 1<<32-512, cdb(cdbRead16, 0, 1<<32-1)
	}, func(s *status) bool {
		return s.status == 2 && s.key == 5 && (s.asc == 0x21 || s.asc == 0x24) && s.dataIn == 0
	})},
	{"tcp: an operation code that is none", wants(false, 0xff, nil, func(s *status) bool { return s.status == 2 && s.key == 5 && s.asc == 0x20 })},
}

// floodPeers are many at once, or last long.
var floodPeers = []Peer{
	{"flood: 200 logins that are never finished", func(ctx context.Context, rig *Rig) error {
		var open []*session
		defer func() {
			for _, s := range open {
				s.reset()
			}
		}()
		for i := range 200 {
			s, err := openTCP(ctx, rig)
			if err != nil {
				return err
			}
			open = append(open, s)
			q := s.loginRequest()
			q.Transit, q.NSG = false, 0
			b := s.pdu(q)
			switch i % 3 {
			case 0:
				if _, err := s.try(q, s.loginKeys(rig)); err != nil && !gone(err) {
					return err
				}
			case 1:
				b = b[:20]
				fallthrough
			default:
				if _, err := s.c.Write(b); err != nil && !gone(err) {
					return err
				}
			}
		}
		// A good one gets in beside them.
		s, err := full(ctx, rig, false)
		if err != nil {
			return fmt.Errorf("no login beside the flood: %w", err)
		}
		open = append(open, s)
		s, err = full(ctx, rig, true)
		if err != nil {
			return fmt.Errorf("no iSER login beside the flood: %w", err)
		}
		open = append(open, s)
		return nil
	}},
	{"flood: 100 MPA requests without a login", func(ctx context.Context, rig *Rig) error {
		var open []*rnic
		defer func() {
			for _, r := range open {
				_ = r.c.Close()
			}
		}()
		for range 100 {
			r, err := connect(ctx, rig, false)
			if err != nil {
				if gone(err) {
					continue // the oldest unfinished login makes room, and it may be this one
				}
				return err
			}
			open = append(open, r)
		}
		s, err := full(ctx, rig, true)
		if err != nil {
			return fmt.Errorf("no login beside the flood: %w", err)
		}
		s.close()
		return nil
	}},
	{"flood: reads whose answers are never taken", func(ctx context.Context, rig *Rig) error {
		s, err := full(ctx, rig, false)
		if err != nil {
			return err
		}
		defer s.reset()
		if err := s.c.SetWriteDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
			return err
		}
		for range 500 {
			q := s.command(rig, cdb(cdbRead16, 0, 2048))
			q.Read, q.EDTL = true, 2048*sector
			if err := s.put(s.pdu(q), nil, iscsi.ISERHeader{}); err != nil {
				return nil // the target has stopped reading, or has had enough
			}
		}
		return nil
	}},
	{"flood: the same, over iSER", func(ctx context.Context, rig *Rig) error {
		s, err := full(ctx, rig, true)
		if err != nil {
			return err
		}
		defer s.reset()
		for range 8 {
			q := s.command(rig, cdb(cdbRead16, 0, 2048))
			q.Read, q.EDTL = true, 2048*sector
			if err := s.put(s.pdu(q), nil, advertise(false, true)); err != nil {
				return err
			}
		}
		return nil
	}},
	{"flood: sessions that come and go", func(ctx context.Context, rig *Rig) error {
		for i := range 20 {
			s, err := full(ctx, rig, i%2 == 0)
			if err != nil {
				return err
			}
			s.reset()
		}
		return nil
	}},
	{"flood: one session, reinstated again and again", func(ctx context.Context, rig *Rig) error {
		isid := newISID()
		for i := range 20 {
			open := openTCP
			if i%2 == 0 {
				open = openISER
			}
			s, err := open(ctx, rig)
			if err != nil {
				return err
			}
			defer s.close()
			s.isid = isid
			if err := s.login(rig); err != nil {
				return err
			}
			q := s.command(rig, cdb(cdbRead16, 0, 2048))
			q.Read, q.EDTL = true, 2048*sector
			if err := s.put(s.pdu(q), nil, advertise(false, true)); err != nil {
				return err
			}
		}
		return nil
	}},
}
