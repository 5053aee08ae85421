package iscsi

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/internal/iscsi"
)

// script is a connection whose peer has said everything already and reads nothing.
type script struct {
	net.Conn // nil: only what is below is called
	in       []byte
	step     int
}

func (s *script) Read(b []byte) (int, error) {
	if len(s.in) == 0 {
		return 0, io.EOF
	}
	n := min(len(b), s.step, len(s.in))
	copy(b, s.in[:n])
	s.in = s.in[n:]
	return n, nil
}
func (s *script) Write(b []byte) (int, error) { return len(b), nil }
func (s *script) Close() error                { return nil }
func (s *script) LocalAddr() net.Addr         { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 3260} }
func (s *script) RemoteAddr() net.Addr        { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2), Port: 9} }

// play runs a connection on the bytes and fails when anything of it is left.
func (f *fixture) play(t *testing.T, in []byte, step int) {
	t.Helper()
	f.srv.accept(context.Background(), &script{in: in, step: step}, Portal{Group: 1})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := f.srv.changed.Wait(ctx, func() bool { return len(f.srv.conns) == 0 && len(f.srv.sessions) == 0 }); err != nil {
		t.Fatalf("the connection does not end: %v", err)
	}
	if n := f.pool.Used(); n != 0 {
		t.Fatalf("%d registered bytes are still out", n)
	}
}

func frame(q iscsi.PDU, data []byte) []byte {
	b := iscsi.BHS(iscsi.Append(nil, q))
	b.SetDataLen(len(data))
	out := append([]byte(b), data...)
	return append(out, make([]byte, iscsi.Pad(len(data)))...)
}

func loginBytes(kv ...string) []byte {
	return frame(&iscsi.LoginRequest{Transit: true, CSG: iscsi.StageOperational, NSG: iscsi.StageFullFeature, ISID: iscsi.ISID{0x80, 1}, ITT: 1, CmdSN: 1},
		keys(append(names(testInitiator, testTarget), kv...)...))
}

func FuzzLoginDialogue(f *testing.F) {
	fx := bare(f)
	must(f, fx.srv.AddTarget(Target{Name: otherTarget, SCSI: fx.st, Auth: &Auth{Secret: SecretMap(map[string]string{"u": "secretsecret"})}}))
	f.Cleanup(fx.close)
	f.Add(loginBytes(), 1000)
	f.Add(loginBytes("HeaderDigest=CRC32C", "MaxRecvDataSegmentLength=512", "RDMAExtensions=Yes"), 7)
	f.Add(frame(&iscsi.LoginRequest{Transit: true, NSG: iscsi.StageOperational, ITT: 1}, keys(append(names(testInitiator, otherTarget), "AuthMethod=CHAP")...)), 48)
	f.Add(frame(&iscsi.LoginRequest{Continue: true, ITT: 1}, []byte("InitiatorNa")), 3)
	f.Add(append(frame(&iscsi.LoginRequest{NSG: 1, ITT: 1}, keys(append(names(testInitiator, otherTarget), "AuthMethod=CHAP")...)),
		frame(&iscsi.LoginRequest{NSG: 1, ITT: 1}, keys("CHAP_A=5,7"))...), 64)
	f.Add([]byte("MPA ID Req Frame"), 20)
	f.Fuzz(func(t *testing.T, in []byte, step int) {
		if len(in) > 1<<17 {
			return
		}
		fx.play(t, append([]byte(nil), in...), max(1, step))
	})
}

func FuzzFullFeatureStream(f *testing.F) {
	fx := bare(f)
	f.Cleanup(fx.close)
	w := iscsi.SCSICommand{Final: true, Write: true, EDTL: 4096, ITT: 2, CmdSN: 1, CDB: [16]byte{0x2a, 8: 8}}
	r := iscsi.SCSICommand{Final: true, Read: true, EDTL: 8192, ITT: 3, CmdSN: 2, CDB: [16]byte{0x28, 8: 16}}
	u := w
	u.Final, u.ITT, u.CmdSN = false, 4, 3
	var all []byte
	for _, b := range [][]byte{
		frame(&w, make([]byte, 4096)),
		frame(&r, nil),
		append(frame(&u, make([]byte, 512)), frame(&iscsi.DataOut{Final: true, ITT: 4, TTT: iscsi.Reserved, Offset: 512}, make([]byte, 3584))...),
		frame(&iscsi.NopOut{Immediate: true, ITT: 9, TTT: iscsi.Reserved}, make([]byte, 100)),
		frame(&iscsi.TextRequest{Immediate: true, Final: true, ITT: 9, TTT: iscsi.Reserved}, keys("SendTargets=")),
		frame(&iscsi.TaskRequest{Immediate: true, Function: iscsi.AbortTask, ITT: 10, RefTag: 2}, nil),
		frame(&iscsi.LogoutRequest{Immediate: true, ITT: 11}, nil),
		frame(&iscsi.SNACK{ITT: 12}, nil),
	} {
		f.Add(b, 100, false)
		f.Add(b, 1, true)
		all = append(all, b...)
	}
	f.Add(all, 5000, false)
	f.Fuzz(func(t *testing.T, in []byte, step int, digests bool) {
		if len(in) > 1<<17 {
			return
		}
		b := loginBytes("InitialR2T=No")
		if digests {
			b = loginBytes("InitialR2T=No", "HeaderDigest=CRC32C", "DataDigest=CRC32C")
		}
		fx.play(t, append(b, in...), max(1, step))
	})
}

// FuzzISERMessages sends one message after a login over iSER.
func FuzzISERMessages(f *testing.F) {
	fx := newTwinFixture(f)
	var n atomic.Uint32
	msg := func(h iscsi.ISERHeader, q iscsi.PDU, data []byte) []byte {
		b := iscsi.BHS(iscsi.Append(nil, q))
		b.SetDataLen(len(data))
		return append(append(h.Append(nil), b...), data...)
	}
	f.Add(msg(iscsi.ISERHeader{}, &iscsi.NopOut{Immediate: true, ITT: 1, TTT: iscsi.Reserved}, nil))
	f.Add(msg(iscsi.ISERHeader{ReadValid: true, ReadSTag: 5}, &iscsi.SCSICommand{Final: true, Read: true, EDTL: 512, ITT: 2, CmdSN: 7, CDB: [16]byte{0x12, 4: 64}}, nil))
	f.Add(msg(iscsi.ISERHeader{WriteValid: true, WriteSTag: 5}, &iscsi.SCSICommand{Final: true, Write: true, EDTL: 512, ITT: 2, CmdSN: 7, CDB: [16]byte{0x2a, 8: 1}}, make([]byte, 100)))
	f.Add([]byte{0x20, 0, 0, 0})
	f.Fuzz(func(t *testing.T, m []byte) {
		if len(m) == 0 || len(m) > 4<<10 {
			return
		}
		g := *fx
		g.t = t
		p := g.dialISER(iscsi.CMPrivate(true))
		binary.BigEndian.PutUint32(p.isid[2:], n.Add(1))
		p.loginISER()
		if p.wire().raw(m) == nil {
			// Whatever it was, a ping behind it is answered or the connection ends.
			b := iscsi.BHS(iscsi.Append(nil, &iscsi.NopOut{Immediate: true, ITT: 0x7777, TTT: iscsi.Reserved, CmdSN: p.cmdSN}))
			if p.w.send(nil, b, nil, nil) == nil {
				for {
					r, err := p.w.recv()
					if err != nil || r.b.ITT() == 0x7777 {
						break
					}
				}
			}
		}
		p.w.close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := fx.srv.changed.Wait(ctx, func() bool { return len(fx.srv.conns) == 0 && len(fx.srv.sessions) == 0 }); err != nil {
			t.Fatalf("the connection does not end: %v", err)
		}
	})
}
