package iscsi

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"testing"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

func testReadWriteISER(t *testing.T, p *peer, inv, whole bool) {
	for i, blocks := range []int{1, 8, 9, 128, 300, 2048} {
		data := pattern(blocks*512, i)
		for _, imm := range []int{0, 512, 4096} {
			if imm > len(data) {
				continue
			}
			if r := p.writeISER(i*2048, data, imm, whole, inv); r.b[3] != 0 {
				t.Fatalf("write of %d blocks, %d immediate: % x %x", blocks, imm, []byte(r.b), r.data)
			}
			if got := p.readISER(i*2048, blocks, inv); !bytes.Equal(got, data) {
				t.Fatalf("%d blocks read back differ", blocks)
			}
		}
	}
}

func TestReadAndWriteOverISER(t *testing.T) {
	for _, c := range []struct {
		name    string
		private []byte
		keys    []string
		inv     bool
		whole   bool
	}{
		{"Linux", iscsi.CMPrivate(true), nil, true, false},
		{"without remote invalidation", iscsi.CMPrivate(false), nil, false, false},
		{"without private data", nil, nil, false, false},
		{"base covers solicited data only", iscsi.CMPrivate(true), []string{"TaggedBufferForSolicitedDataOnly=Yes"}, true, false},
		{"base covers everything", iscsi.CMPrivate(true), []string{"TaggedBufferForSolicitedDataOnly=No"}, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newTwinFixture(t)
			p := f.dialISER(c.private)
			if got := p.wire().reply; len(got) != 4 && !f.rnic.Caps().PaddedPrivate || got[0]&0x80 == 0 || (got[0]&0x40 == 0) != c.inv {
				t.Fatalf("private data of the reply: % x", got)
			}
			p.loginISER(c.keys...)
			p.ready()
			testReadWriteISER(t, p, c.inv, c.whole)
			i := f.srv.Sessions()
			if len(i) != 1 || i[0].Transport != "iSER" || i[0].Commands == 0 {
				t.Fatalf("sessions: %+v", i)
			}
		})
	}
}

// One port serves both: what comes first tells an MPA request from a login.
func TestOnePortServesBothTransports(t *testing.T) {
	near, far := iwarp.New(iwarp.Options{}), iwarp.New(iwarp.Options{})
	f := newFixture(t, func(o *Options) { o.Device = near })
	t.Cleanup(func() { must(t, far.Close()); must(t, near.Close()) })
	pool := mem.NewPool(32 << 20)
	must(t, pool.OnSlab(far))
	p := f.dialDevice(far, pool, f.addr, iscsi.CMPrivate(true))
	p.loginISER()
	p.ready()
	testReadWriteISER(t, p, true, false)
	q := f.dial()
	q.isid[5] = 2
	q.login()
	q.ready()
	if got := q.readTCP(0, 1); !bytes.Equal(got, pattern(512, 0)) {
		t.Fatal("TCP reads something else than iSER wrote")
	}
	if n := len(f.srv.Sessions()); n != 2 {
		t.Fatalf("%d sessions", n)
	}
}

// interop.md: what ib_iser sends is answered as LIO does where it matters.
func TestKeysOfLinuxOverISER(t *testing.T) {
	f := newTwinFixture(t)
	p := f.dialISER(iscsi.CMPrivate(true))
	p.wire().full(16)
	ans := p.login("HeaderDigest=CRC32C,None", "DataDigest=CRC32C", "DefaultTime2Wait=2", "DefaultTime2Retain=0", "IFMarker=No", "OFMarker=No", "ErrorRecoveryLevel=2",
		"MaxBurstLength=16776192", "FirstBurstLength=262144", "InitialR2T=No", "ImmediateData=Yes", "MaxOutstandingR2T=4", "MaxConnections=8", "DataPDUInOrder=Yes",
		"DataSequenceInOrder=No", "InitiatorRecvDataSegmentLength=262144", "TargetRecvDataSegmentLength=8192", "X-com.example=1", "RDMAExtensions=Yes")
	for k, want := range map[string]string{"HeaderDigest": "None", "DataDigest": "None", "RDMAExtensions": "Yes", "ErrorRecoveryLevel": "0", "MaxConnections": "1",
		"InitialR2T": "Yes", "ImmediateData": "Yes", "MaxOutstandingR2T": "1", "TargetRecvDataSegmentLength": fmt.Sprint(recvSegmentISER), "InitiatorRecvDataSegmentLength": "262144",
		"DataSequenceInOrder": "Yes", "X-com.example": "NotUnderstood", "TargetPortalGroupTag": "1", "MaxOutstandingUnexpectedPDUs": "(absent)"} {
		if got := value(ans, k); got != want {
			t.Errorf("%s=%s, expected %s", k, got, want)
		}
	}
}

// RFC 7145 section 6.3: iSER-assisted mode needs RDMAExtensions=Yes from both.
func TestNormalSessionOverISERNeedsRDMAExtensions(t *testing.T) {
	f := newTwinFixture(t)
	p := f.dialISER(nil)
	l, _ := p.step(iscsi.StageOperational, iscsi.StageFullFeature, true, "InitiatorName="+testInitiator, "TargetName="+testTarget)
	if l.Status != iscsi.LoginInitiatorError {
		t.Fatalf("status %v", l.Status)
	}
	p.wantEnd()
}

// open-iscsi discovers over iSER without RDMAExtensions; it has one login-size buffer.
func TestDiscoveryOverISER(t *testing.T) {
	f := newTwinFixture(t)
	p := f.dialISER(iscsi.CMPrivate(true))
	l, _ := p.step(iscsi.StageOperational, iscsi.StageFullFeature, true, "InitiatorName="+testInitiator, "SessionType=Discovery", "MaxRecvDataSegmentLength=32768")
	if l.Status != 0 || !l.Transit {
		t.Fatalf("%+v", l)
	}
	p.send(&iscsi.TextRequest{Final: true, ITT: 5, TTT: iscsi.Reserved, CmdSN: p.cmdSN}, nil, keys("SendTargets=All"))
	r := p.want(iscsi.OpTextResponse)
	if got := value(r.data, "TargetAddress"); got != f.rdma+",1" {
		t.Fatalf("TargetAddress %q in %q", got, r.data)
	}
	p.cmdSN++
	p.send(&iscsi.LogoutRequest{Immediate: true, ITT: 6, CmdSN: p.cmdSN}, nil, nil)
	p.want(iscsi.OpLogoutResp)
	p.wantEnd()
}

// A message shorter than its PDU says, and a type nobody knows, end the connection.
func TestBadMessagesOverISER(t *testing.T) {
	for name, m := range map[string][]byte{
		"short":    {0x10, 0, 0},
		"no BHS":   append([]byte{0x10}, make([]byte, 40)...),
		"reserved": append([]byte{0x70}, make([]byte, 75)...),
		"lies": func() []byte {
			h := (&iscsi.ISERHeader{}).Append(nil)
			h = iscsi.Append(h, &iscsi.NopOut{Immediate: true, ITT: 1, TTT: iscsi.Reserved, DataLen: 100})
			return append(h, make([]byte, 50)...)
		}(),
	} {
		t.Run(name, func(t *testing.T) {
			f := newTwinFixture(t)
			p := f.dialISER(iscsi.CMPrivate(true))
			p.loginISER()
			must(t, p.wire().raw(m))
			p.wantEnd()
			q := f.dialISER(iscsi.CMPrivate(true))
			q.isid[5] = 9
			q.loginISER()
			q.ready()
		})
	}
}

// No PDU over iSER carries more than 128 bytes of data after login: the receives of Linux end there.
func TestNeverMoreThan128BytesOverISER(t *testing.T) {
	f := newTwinFixture(t)
	for i := range 40 {
		must(t, f.srv.AddTarget(Target{Name: fmt.Sprintf("%s%02d", testTarget, i), SCSI: f.st}))
	}
	p := f.dialISER(iscsi.CMPrivate(true))
	p.loginISER()
	p.send(&iscsi.NopOut{Immediate: true, ITT: 9, TTT: iscsi.Reserved, CmdSN: p.cmdSN}, nil, make([]byte, 1000))
	if r := p.want(iscsi.OpNopIn); r.b.DataLen() != 128 {
		t.Fatalf("the ping brought %d bytes back", r.b.DataLen())
	}
	p.send(&iscsi.TextRequest{Immediate: true, Final: true, ITT: 10, TTT: iscsi.Reserved, CmdSN: p.cmdSN}, nil, keys("SendTargets="))
	r := p.want(iscsi.OpTextResponse)
	if got := value(r.data, "TargetName"); got != testTarget {
		t.Fatalf("SendTargets: %q", r.data)
	}
	p.send(&iscsi.SNACK{ITT: 3, Tag: iscsi.Reserved}, nil, nil)
	if r := p.want(iscsi.OpReject); r.b.DataLen() != 48 {
		t.Fatalf("Reject with %d bytes", r.b.DataLen())
	}
}

// A read without memory to put it in is a mistake of the initiator's that ends its session only.
func TestReadWithoutSTag(t *testing.T) {
	f := newTwinFixture(t)
	p := f.dialISER(iscsi.CMPrivate(true))
	p.loginISER()
	p.ready()
	c := p.command(read10(0, 8))
	c.Read, c.EDTL = true, 4096
	p.send(c, nil, nil)
	p.wantEnd()
}

func TestWriteWithoutSTag(t *testing.T) {
	f := newTwinFixture(t)
	p := f.dialISER(iscsi.CMPrivate(true))
	p.loginISER()
	p.ready()
	c := p.command(write10(0, 8))
	c.Write, c.EDTL = true, 4096
	p.sendISER(&iscsi.ISERHeader{WriteValid: true}, c, nil, make([]byte, 512))
	p.wantEnd()
}

// The window widens with use and more Reads than the depth wait their turn.
func TestDepthOverISER(t *testing.T) {
	f := newTwinFixture(t)
	p := f.dialISER(iscsi.CMPrivate(true))
	p.loginISER()
	p.ready()
	type io struct {
		c   *iscsi.SCSICommand
		win transport.Window
	}
	const n = 200
	flying := map[uint32]io{}
	data := pattern(16384, 3)
	sent, peak := 0, uint32(0)
	for done := 0; done < n; {
		for sent < n && iscsi.SNLessEq(p.cmdSN, p.max) {
			buf, rem, win := p.expose(len(data), transport.RemoteRead)
			copy(buf.Bytes(), data)
			c := p.command(write10(sent%32*32, 32))
			c.Write, c.EDTL = true, uint32(len(data))
			p.sendISER(&iscsi.ISERHeader{WriteValid: true, WriteSTag: rem.STag, WriteBase: rem.Off}, c, nil, nil)
			flying[c.ITT] = io{c, win}
			sent++
		}
		peak = max(peak, uint32(len(flying)))
		r := p.want(iscsi.OpSCSIResponse)
		o, ok := flying[r.b.ITT()]
		if !ok || r.b[3] != 0 || o.win.Valid() {
			t.Fatalf("response % x", []byte(r.b))
		}
		delete(flying, r.b.ITT())
		done++
	}
	if peak <= firstWindow {
		t.Errorf("the window never opened beyond %d", peak)
	}
	if got := p.readISER(0, 32, true); !bytes.Equal(got, data) {
		t.Fatal("data differs")
	}
}

func TestServeRefusesAPortalWithoutGroup(t *testing.T) {
	f := newFixture(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	if err := f.srv.Serve(context.Background(), l, Portal{}); err == nil {
		t.Fatal("no error")
	}
}

// libiscsi 1.19 says in the header that immediate data follow, and sends none: all of it is behind the STag.
func TestImmediateDataThatAreOnlyAnnouncedOverISER(t *testing.T) {
	f := newTwinFixture(t)
	p := f.dialISER(iscsi.CMPrivate(true))
	p.loginISER()
	p.ready()
	data := pattern(4096, 5)
	buf, rem, _ := p.expose(len(data), transport.RemoteRead)
	copy(buf.Bytes(), data)
	c := p.command(write10(0, 8))
	c.Write, c.EDTL = true, uint32(len(data))
	b := iscsi.BHS(iscsi.Append(nil, c))
	b.SetDataLen(len(data))
	must(t, p.wire().raw(append((&iscsi.ISERHeader{WriteValid: true, WriteSTag: rem.STag, WriteBase: rem.Off}).Append(nil), b...)))
	if r := p.want(iscsi.OpSCSIResponse); r.b[3] != 0 {
		t.Fatalf("response % x", []byte(r.b))
	}
	if got := p.readISER(0, 8, true); !bytes.Equal(got, data) {
		t.Fatal("data differ")
	}
}
