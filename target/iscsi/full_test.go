package iscsi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"
	"testing/synctest"

	"github.com/sluice-storage/sluice/internal/iscsi"
)

// RFC 7143 section 4.2.2.1: "the target MUST silently ignore any non-immediate command outside of this range or
// non-immediate duplicates within the range."
func TestCommandsOutsideTheWindowAreIgnored(t *testing.T) {
	f := newFixture(t)
	p := f.dial()
	p.login()
	p.ready()
	for _, sn := range []uint32{p.cmdSN - 1, p.max + 1, p.max + 1000, p.cmdSN - 100} {
		c := p.command(make([]byte, 6))
		p.cmdSN--
		c.CmdSN = sn
		p.send(c, nil, nil)
	}
	c := p.command(make([]byte, 6))
	p.send(c, nil, nil)
	if r := p.want(iscsi.OpSCSIResponse); r.b.ITT() != c.ITT {
		t.Fatal("an ignored command was answered")
	}
}

func TestGapInCmdSNEndsTheConnection(t *testing.T) {
	f := newFixture(t)
	p := f.dial()
	p.login()
	p.ready()
	c := p.command(make([]byte, 6))
	c.CmdSN++
	p.send(c, nil, nil)
	if r := p.want(iscsi.OpReject); r.b[2] != byte(iscsi.RejectProtocol) || !bytes.Equal(r.data[16:20], []byte{0, 0, 0, byte(c.ITT)}) {
		t.Fatalf("% x", []byte(r.b))
	}
	p.wantEnd()
}

// The window opens with use and never beyond the limit.
func TestWindowOpensWithUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, dial := newPipeFixture(t, func(o *Options) { o.Limits.Queue = 16 })
		p := dial()
		p.login()
		p.ready()
		peak := 0
		for range 6 {
			f.dev.shut()
			ch := 0
			for iscsi.SNLessEq(p.cmdSN, p.max) {
				p.startWrite(ch*8, ch)
				<-f.dev.arrived
				ch++
			}
			peak = max(peak, ch)
			f.dev.open()
			for range ch {
				p.want(iscsi.OpSCSIResponse)
			}
		}
		if peak != 16 {
			t.Fatalf("%d commands at once, expected the limit of 16", peak)
		}
	})
}

func TestNOPTextAndUnknown(t *testing.T) {
	f := newFixture(t)
	p := f.dial()
	p.login()
	for _, n := range []int{0, 1, 8192} {
		ping := pattern(n, n)
		p.itt++
		p.send(&iscsi.NopOut{Immediate: true, ITT: p.itt, TTT: iscsi.Reserved, CmdSN: p.cmdSN}, nil, ping)
		if r := p.want(iscsi.OpNopIn); r.b.ITT() != p.itt || r.b.TTT() != iscsi.Reserved || !bytes.Equal(r.data, ping) {
			t.Fatalf("ping of %d: % x", n, []byte(r.b))
		}
	}
	p.send(&iscsi.NopOut{ITT: 77, TTT: iscsi.Reserved, CmdSN: p.cmdSN}, nil, nil)
	p.cmdSN++
	if r := p.want(iscsi.OpNopIn); r.b.ExpCmdSN() != p.cmdSN {
		t.Fatal("a non-immediate NOP-Out does not advance ExpCmdSN")
	}
	p.send(&iscsi.TextRequest{Immediate: true, Final: true, ITT: 5, TTT: iscsi.Reserved, CmdSN: p.cmdSN}, nil, keys("MaxRecvDataSegmentLength=4096", "X-what=1"))
	if r := p.want(iscsi.OpTextResponse); value(r.data, "X-what") != "NotUnderstood" || !r.b.Final() {
		t.Fatalf("% x %q", []byte(r.b), r.data)
	}
	for op, why := range map[byte]iscsi.RejectReason{0x10: iscsi.RejectSNACK, 0x1c: iscsi.RejectNotSupported, 0x3f: iscsi.RejectNotSupported} {
		b := make(iscsi.BHS, iscsi.BHSLen)
		b[0], b[1] = op, 0x80
		must(t, p.w.send(nil, b, nil, nil))
		if r := p.want(iscsi.OpReject); r.b[2] != byte(why) || !bytes.Equal(r.data, b) {
			t.Fatalf("opcode %02x: % x", op, []byte(r.b))
		}
	}
	// What was declared in full-feature phase holds.
	p.ready()
	c := p.command(read10(0, 32))
	c.Read, c.EDTL = true, 16384
	p.send(c, nil, nil)
	if r := p.want(iscsi.OpDataIn); r.b.DataLen() != 4096 {
		t.Fatalf("Data-In of %d bytes", r.b.DataLen())
	}
}

func TestLogout(t *testing.T) {
	f := newFixture(t)
	p := f.dial()
	p.login()
	p.send(&iscsi.LogoutRequest{Immediate: true, Reason: iscsi.LogoutRecovery, ITT: 5, CmdSN: p.cmdSN}, nil, nil)
	if r := p.want(iscsi.OpLogoutResp); r.b[2] != byte(iscsi.LogoutNoRecovery) {
		t.Fatalf("% x", []byte(r.b))
	}
	p.send(&iscsi.LogoutRequest{Immediate: true, Reason: iscsi.LogoutConnection, CID: 9, ITT: 6, CmdSN: p.cmdSN}, nil, nil)
	if r := p.want(iscsi.OpLogoutResp); r.b[2] != byte(iscsi.LogoutNoCID) {
		t.Fatalf("% x", []byte(r.b))
	}
	p.send(&iscsi.LogoutRequest{Reason: iscsi.LogoutConnection, ITT: 7, CmdSN: p.cmdSN}, nil, nil)
	if r := p.want(iscsi.OpLogoutResp); r.b[2] != byte(iscsi.LogoutOK) || r.b.ITT() != 7 {
		t.Fatalf("% x", []byte(r.b))
	}
	p.wantEnd()
}

// The answer to a logout comes after the session's commands have ended.
func TestLogoutWaitsForCommands(t *testing.T) {
	both(t, func(t *testing.T, f *fixture, dial func() *peer) {
		p := dial()
		p.enter()
		p.ready()
		f.dev.shut()
		p.startWrite(0, 1)
		<-f.dev.arrived
		p.send(&iscsi.LogoutRequest{Immediate: true, ITT: 7, CmdSN: p.cmdSN}, nil, nil)
		ch := p.arrivals()
		synctest.Wait()
		select {
		case r := <-ch:
			t.Fatalf("received % x", []byte(r.b))
		default:
		}
		f.dev.open()
		if r := <-ch; r.b.Opcode() != iscsi.OpLogoutResp {
			t.Fatalf("received % x", []byte(r.b))
		}
		p.w.close()
		for range ch { //nolint:revive // until the reader has gone
		}
	})
}

// A second logout is answered no earlier than the first: it says too that the tasks have ended. Those beyond a bound are rejected.
func TestASecondLogoutWaitsForCommandsToo(t *testing.T) {
	both(t, func(t *testing.T, f *fixture, dial func() *peer) {
		p := dial()
		p.enter()
		p.ready()
		f.dev.shut()
		p.startWrite(0, 1)
		<-f.dev.arrived
		ch := p.arrivals()
		for i := range uint32(maxImmediate + 1) {
			p.send(&iscsi.LogoutRequest{Immediate: true, ITT: 700 + i, CmdSN: p.cmdSN}, nil, nil)
			synctest.Wait()
		}
		rejects := 0
		for len(ch) > 0 {
			if r := <-ch; r.b.Opcode() != iscsi.OpReject || rejects > 0 {
				t.Fatalf("received % x", []byte(r.b))
			}
			rejects++
		}
		if rejects != 1 {
			t.Errorf("%d of %d logouts were rejected, want 1", rejects, maxImmediate+1)
		}
		f.dev.open()
		for i := range uint32(maxImmediate) {
			if r := <-ch; r.b.Opcode() != iscsi.OpLogoutResp || r.b[2] != byte(iscsi.LogoutOK) || r.b.ITT() != 700+i {
				t.Fatalf("received % x", []byte(r.b))
			}
		}
		if r, more := <-ch; more {
			t.Errorf("received % x behind the answers", []byte(r.b))
		}
		p.w.close()
	})
}

func (p *peer) tmf(fn iscsi.TaskFunction, ref uint32) {
	p.t.Helper()
	p.send(&iscsi.TaskRequest{Immediate: true, Function: fn, ITT: 5000, RefTag: ref, RefCmdSN: p.cmdSN, CmdSN: p.cmdSN, ExpStatSN: p.statSN}, nil, nil)
}

// ABORT TASK is answered after the command has left the medium, and the command is not answered at all.
func TestAbortTaskIsAnsweredWhenTheTaskHasGone(t *testing.T) {
	both(t, func(t *testing.T, f *fixture, dial func() *peer) {
		p := dial()
		p.enter()
		p.ready()
		f.dev.shut()
		c := p.startWrite(0, 1)
		<-f.dev.arrived
		p.tmf(iscsi.AbortTask, c.ITT)
		ch := p.arrivals()
		synctest.Wait()
		select {
		case r := <-ch:
			t.Fatalf("received % x", []byte(r.b))
		default:
		}
		f.dev.open()
		if r := <-ch; r.b.Opcode() != iscsi.OpTaskResponse || r.b[2] != byte(iscsi.TaskComplete) {
			t.Fatalf("received % x", []byte(r.b))
		}
		p.w.close()
		for range ch { //nolint:revive // until the reader has gone
		}
	})
}

// An initiator that aborts a write does not answer its R2T; late data for it is dropped.
func TestAbortOfAWriteThatWaitsForData(t *testing.T) {
	f := newFixture(t)
	p := f.dial()
	p.login()
	p.ready()
	c := p.command(write10(0, 16))
	c.Write, c.EDTL = true, 8192
	p.send(c, nil, nil)
	r2t := p.want(iscsi.OpR2T)
	p.tmf(iscsi.AbortTask, c.ITT)
	if r := p.want(iscsi.OpTaskResponse); r.b[2] != byte(iscsi.TaskComplete) {
		t.Fatalf("% x", []byte(r.b))
	}
	p.answerR2T(r2t, make([]byte, 8192), 8192)
	p.ready()
	p.tmf(iscsi.AbortTask, c.ITT)
	if r := p.want(iscsi.OpTaskResponse); r.b[2] != byte(iscsi.TaskNotFound) {
		t.Fatalf("% x", []byte(r.b))
	}
	p.tmf(iscsi.TaskReassign, c.ITT)
	if r := p.want(iscsi.OpTaskResponse); r.b[2] != byte(iscsi.TaskNoReassign) {
		t.Fatalf("% x", []byte(r.b))
	}
	p.tmf(iscsi.LogicalUnitReset, iscsi.Reserved)
	if r := p.want(iscsi.OpTaskResponse); r.b[2] != byte(iscsi.TaskComplete) {
		t.Fatalf("% x", []byte(r.b))
	}
	p.ready()
	p.tmf(iscsi.TargetColdReset, iscsi.Reserved)
	p.want(iscsi.OpTaskResponse)
	p.wantEnd()
}

// Data that does not follow its R2T fails the task, once the initiator is done sending, and nothing else.
func TestDataOutOfSequence(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*iscsi.DataOut)
	}{
		{"DataSN", func(d *iscsi.DataOut) { d.DataSN = 3 }},
		{"offset", func(d *iscsi.DataOut) { d.Offset = 512 }},
		{"early F", func(d *iscsi.DataOut) { d.DataLen = 512 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			p := f.dial()
			p.login()
			p.ready()
			w := p.command(write10(0, 16))
			w.Write, w.EDTL = true, 8192
			p.send(w, nil, nil)
			r := p.want(iscsi.OpR2T)
			d := &iscsi.DataOut{Final: true, ITT: r.b.ITT(), TTT: r.b.TTT(), DataLen: 8192}
			c.edit(d)
			n := d.DataLen
			p.send(d, nil, make([]byte, n))
			resp := p.want(iscsi.OpSCSIResponse)
			if key, asc := sense(resp); resp.b[3] != 2 || key != 0xb || asc != 0x4705 {
				t.Fatalf("status %x, sense %x %04x", resp.b[3], key, asc)
			}
			p.ready()
		})
	}
}

func TestDataForNobodyIsDropped(t *testing.T) {
	f := newFixture(t)
	p := f.dial()
	p.login()
	p.send(&iscsi.DataOut{Final: true, ITT: 4242, TTT: 4242}, nil, make([]byte, 5000))
	p.send(&iscsi.DataOut{Final: true, ITT: 4242, TTT: iscsi.Reserved}, nil, make([]byte, 100000))
	p.ready()
}

// Rules whose breach ends the connection, each with its Reject.
func TestProtocolErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		keys []string
		make func(p *peer) (*iscsi.SCSICommand, []byte)
	}{
		{"immediate data, ImmediateData=No", []string{"ImmediateData=No"}, func(p *peer) (*iscsi.SCSICommand, []byte) {
			w := p.command(write10(0, 1))
			w.Write, w.EDTL = true, 512
			return w, make([]byte, 512)
		}},
		{"F=0, InitialR2T=Yes", []string{"InitialR2T=Yes"}, func(p *peer) (*iscsi.SCSICommand, []byte) {
			w := p.command(write10(0, 1))
			w.Write, w.EDTL, w.Final = true, 512, false
			return w, nil
		}},
		{"more than EDTL", nil, func(p *peer) (*iscsi.SCSICommand, []byte) {
			w := p.command(write10(0, 1))
			w.Write, w.EDTL = true, 512
			return w, make([]byte, 1024)
		}},
		{"more than FirstBurstLength", []string{"FirstBurstLength=512"}, func(p *peer) (*iscsi.SCSICommand, []byte) {
			w := p.command(write10(0, 8))
			w.Write, w.EDTL = true, 4096
			return w, make([]byte, 1024)
		}},
		{"data with a read", nil, func(p *peer) (*iscsi.SCSICommand, []byte) {
			w := p.command(read10(0, 1))
			w.Read, w.EDTL = true, 512
			return w, make([]byte, 512)
		}},
		{"more than MaxRecvDataSegmentLength", nil, func(p *peer) (*iscsi.SCSICommand, []byte) {
			w := p.command(write10(0, 1024))
			w.Write, w.EDTL = true, 524288
			return w, make([]byte, 300000)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			p := f.dial()
			p.login(c.keys...)
			p.ready()
			w, data := c.make(p)
			b := iscsi.BHS(iscsi.Append(nil, w))
			b.SetDataLen(len(data))
			_ = p.w.send(nil, b, nil, data) // the target may have closed before it took everything
			r, err := p.w.recv()
			if err == nil && r.b.Opcode() != iscsi.OpReject {
				t.Fatalf("received %s", r.b.Opcode())
			}
			p.wantEnd()
			q := f.dial()
			q.isid[5] = 9
			q.login()
			q.ready()
		})
	}
}

// A wrong header digest ends the connection; a wrong data digest rejects the PDU and fails the command.
func TestDigestErrors(t *testing.T) {
	f := newFixture(t)
	p := f.dial()
	p.login("HeaderDigest=CRC32C", "DataDigest=CRC32C")
	p.ready()
	w := p.command(write10(0, 64))
	w.Write, w.EDTL = true, 32768
	p.send(w, nil, nil)
	r := p.want(iscsi.OpR2T)
	b := iscsi.BHS(iscsi.Append(nil, &iscsi.DataOut{Final: true, ITT: r.b.ITT(), TTT: r.b.TTT(), DataLen: 32768}))
	tw := p.w.(*tcpWire)
	raw := append([]byte(nil), b...)
	raw = binary.LittleEndian.AppendUint32(raw, iscsi.Digest(b))
	raw = append(raw, make([]byte, 32768)...)
	raw = append(raw, 1, 2, 3, 4)
	_, err := tw.nc.Write(raw)
	must(t, err)
	if r := p.want(iscsi.OpReject); r.b[2] != byte(iscsi.RejectDataDigest) {
		t.Fatalf("% x", []byte(r.b))
	}
	resp := p.want(iscsi.OpSCSIResponse)
	if key, asc := sense(resp); resp.b[3] != 2 || key != 0xb || asc != 0x4705 {
		t.Fatalf("status %x, sense %x %04x", resp.b[3], key, asc)
	}
	p.ready()
	_, err = tw.nc.Write(make([]byte, 52))
	must(t, err)
	for {
		if _, err := tw.recv(); err != nil {
			if !errors.Is(err, io.EOF) {
				t.Logf("end: %v", err)
			}
			return
		}
	}
}

// Commands with additional headers: a 32-byte CDB and a bidirectional read length arrive whole.
func TestAdditionalHeaders(t *testing.T) {
	f := newFixture(t)
	p := f.dial()
	p.login()
	p.ready()
	cdb := make([]byte, 32)
	cdb[0], cdb[7] = 0x7f, 24
	binary.BigEndian.PutUint16(cdb[8:], 0x0009) // READ(32), which nobody has to know: ILLEGAL REQUEST is an answer
	c := p.command(cdb[:16])
	p.send(c, iscsi.AppendExtendedCDB(nil, cdb), nil)
	if r := p.want(iscsi.OpSCSIResponse); r.b.ITT() != c.ITT {
		t.Fatalf("% x", []byte(r.b))
	}
	c = p.command(make([]byte, 6))
	p.send(c, []byte{0, 200, 1, 0}, nil)
	if r := p.want(iscsi.OpReject); r.b[2] != byte(iscsi.RejectField) {
		t.Fatalf("% x", []byte(r.b))
	}
	p.wantEnd()
}

func TestResiduals(t *testing.T) {
	f := newFixture(t)
	p := f.dial()
	p.login()
	p.ready()
	for _, c := range []struct {
		edtl  uint32
		flags byte
		n     uint32
		want  int
	}{{4096, 0, 0, 4096}, {8192, iscsi.FlagUnderflow, 4096, 4096}, {1024, iscsi.FlagOverflow, 3072, 1024}} {
		r := p.command(read10(0, 8))
		r.Read, r.EDTL = true, c.edtl
		p.send(r, nil, nil)
		in := p.want(iscsi.OpDataIn)
		if in.b.Flags()&(iscsi.FlagUnderflow|iscsi.FlagOverflow) != c.flags || in.b.Residual() != c.n || len(in.data) != c.want || in.b.Flags()&iscsi.FlagStatus == 0 {
			t.Errorf("EDTL %d: % x, %d bytes", c.edtl, []byte(in.b), len(in.data))
		}
		w := p.command(write10(0, 8))
		w.Write, w.EDTL = true, c.edtl
		p.send(w, nil, make([]byte, min(c.edtl, 4096)))
		out := p.finishWrite(make([]byte, 8192), 8192)
		if out.b.Flags()&(iscsi.FlagUnderflow|iscsi.FlagOverflow) != c.flags || out.b.Residual() != c.n {
			t.Errorf("write with EDTL %d: % x", c.edtl, []byte(out.b))
		}
	}
}

// An initiator that sends and never reads is cut instead of being buffered for.
func TestPeerThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, dial := newPipeFixture(t)
		p := dial()
		p.login()
		for i := range 10 * maxQueuedControl {
			b := iscsi.BHS(iscsi.Append(nil, &iscsi.NopOut{Immediate: true, ITT: uint32(i), TTT: iscsi.Reserved, CmdSN: p.cmdSN}))
			if p.w.send(nil, b, nil, nil) != nil {
				synctest.Wait()
				f.logged("session lost", "does not read")
				return
			}
		}
		t.Fatal("never cut")
	})
}

// RFC 7143 section 11.4.2: "the target MUST wait until it receives a Data PDU with the F bit set in the last expected
// sequence before sending the Response PDU."
func TestResponseWaitsForTheLastUnsolicitedData(t *testing.T) {
	f := newFixture(t)
	p := f.dial()
	p.login("InitialR2T=No")
	p.ready()
	c := p.command(write10(diskSize/512, 8)) // beyond the end: the outcome is known at once
	c.Write, c.Final, c.EDTL = true, false, 4096
	p.send(c, nil, make([]byte, 512))
	p.send(&iscsi.DataOut{ITT: c.ITT, TTT: iscsi.Reserved, Offset: 512}, nil, make([]byte, 512))
	p.send(&iscsi.NopOut{Immediate: true, ITT: 9, TTT: iscsi.Reserved, CmdSN: p.cmdSN}, nil, nil)
	p.want(iscsi.OpNopIn)
	p.send(&iscsi.DataOut{Final: true, ITT: c.ITT, TTT: iscsi.Reserved, DataSN: 1, Offset: 1024}, nil, make([]byte, 3072))
	r := p.want(iscsi.OpSCSIResponse)
	if key, asc := sense(r); r.b.ITT() != c.ITT || key != 5 || asc != 0x2100 {
		t.Fatalf("% x, sense %x %04x", []byte(r.b), key, asc)
	}
	p.ready()
}

// A task tag that is in use is refused, and the task goes on.
func TestTagInUse(t *testing.T) {
	f := newFixture(t)
	p := f.dial()
	p.login()
	p.ready()
	c := p.command(write10(0, 16))
	c.Write, c.EDTL = true, 8192
	p.send(c, nil, nil)
	r2t := p.want(iscsi.OpR2T)
	d := p.command(make([]byte, 6))
	d.ITT = c.ITT
	p.send(d, nil, nil)
	if r := p.want(iscsi.OpReject); r.b[2] != byte(iscsi.RejectInProgress) {
		t.Fatalf("% x", []byte(r.b))
	}
	p.answerR2T(r2t, make([]byte, 8192), 4096)
	if r := p.want(iscsi.OpSCSIResponse); r.b.ITT() != c.ITT || r.b[3] != 0 {
		t.Fatalf("% x", []byte(r.b))
	}
}
