package iscsi

import (
	"bytes"
	"testing"

	"github.com/sluice-storage/sluice/internal/iscsi"
)

// late makes writes that leave their host now and arrive when they are sent.
func (p *peer) late(n, seed int) (send func()) {
	p.t.Helper()
	var all []*iscsi.SCSICommand
	for k := range n {
		c := p.command(write10(8*k, 1))
		c.Write, c.EDTL = true, 512
		all = append(all, c)
	}
	return func() {
		p.t.Helper()
		for k, c := range all {
			p.send(c, nil, pattern(512, seed+k))
		}
	}
}

func (p *peer) wantReset(n int) {
	p.t.Helper()
	for k := range n {
		r := p.want(iscsi.OpSCSIResponse)
		if key, asc := sense(r); key != 6 || asc != 0x2903 {
			p.t.Fatalf("command %d of %d: status %02X, sense %X/%04X, expected 6/2903", k+1, n, r.b[3], key, asc)
		}
	}
}

// resets performs fn for LUN 0 and has it answered, and takes what the host that asks is told of it, which is one report.
func (p *peer) resets(fn iscsi.TaskFunction) {
	p.t.Helper()
	p.tmf(fn, iscsi.Reserved)
	if r := p.want(iscsi.OpTaskResponse); r.b[2] != byte(iscsi.TaskComplete) {
		p.t.Fatalf("response %d", r.b[2])
	}
	c, d := p.command(make([]byte, 6)), p.command(make([]byte, 6)) // the second has not heard what the first is told
	p.send(c, nil, nil)
	p.wantReset(1)
	p.send(d, nil, nil)
	p.wantGood()
}

// twoHosts are two that know the unit and have a window of 16 commands.
func twoHosts(dial func() *peer) (a, b *peer) {
	b = dial()
	b.isid[5] = 9
	b.enter()
	b.ready()
	b.widen(16)
	a = dial()
	a.enter()
	a.ready()
	return a, b
}

// A host that has lost a path resets the unit over another one and writes again. What is still under way on the lost path gets
// there later, and must not land on newer writes: not one of the commands that were sent before the reset was heard of does.
func TestAResetEndsWritesThatAreStillUnderWay(t *testing.T) {
	for name, fn := range map[string]iscsi.TaskFunction{"unit": iscsi.LogicalUnitReset, "target": iscsi.TargetWarmReset} {
		t.Run(name, func(t *testing.T) {
			either(t, func(t *testing.T, f *fixture, dial func() *peer) {
				a, b := twoHosts(dial)
				send := b.late(8, 1)
				again := b.late(2, 20)
				sense := b.command([]byte{3, 0, 0, 0, 252, 0})
				name := b.command([]byte{0x12, 1, 0x83, 0, 252, 0})
				a.resets(fn)
				send()
				b.wantReset(8)
				isBlank(t, f.dev)
				again() // sent before the first of the responses was read
				b.wantReset(2)
				for _, c := range []*iscsi.SCSICommand{sense, name} { // these say what there is to say, and change nothing
					b.sendInquiry(c)
					b.inquiryEnd()
				}
				isBlank(t, f.dev)
				// Each of them is sent again after its refusal: none is refused twice.
				b.late(8, 40)()
				for range 8 {
					b.wantGood()
				}
				for k := range 8 {
					if got, err := blocksOf(f.dev, int64(8*k)*512, 512); err != nil || !bytes.Equal(got, pattern(512, 40+k)) {
						t.Fatalf("write %d is not there: %v", k, err)
					}
				}
			})
		})
	}
}

// The first command that was sent with the report read is let in, and the one before it is not; after another reset it begins again.
func TestAResetIsHeardOfWhenExpStatSNSaysSo(t *testing.T) {
	either(t, func(t *testing.T, f *fixture, dial func() *peer) {
		a, b := twoHosts(dial)
		for round := range 3 {
			a.resets(iscsi.LogicalUnitReset)
			first := b.statSN // the number that the report will have
			b.late(1, 1)()
			b.wantReset(1)
			second := b.late(1, 2)
			a.resets(iscsi.LogicalUnitReset) // the one that was just read is not the last
			second()
			b.wantReset(1)
			isBlankAt(t, f, round)
			report := b.statSN - 1
			for k, heard := range []uint32{first, report} {
				c := b.command(write10(8, 1))
				c.Write, c.EDTL, c.ExpStatSN = true, 512, heard
				b.send(c, nil, pattern(512, 3))
				if k < 2 {
					b.wantReset(1)
				}
			}
			c := b.command(write10(0, 1))
			c.Write, c.EDTL, c.ExpStatSN = true, 512, report+1
			b.send(c, nil, pattern(512, 100+round))
			b.wantGood()
		}
	})
}

func isBlankAt(t *testing.T, f *fixture, round int) {
	t.Helper()
	want := make([]byte, 512)
	if round > 0 {
		want = pattern(512, 100+round-1)
	}
	if got, err := blocksOf(f.dev, 0, 512); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("round %d: a write that was under way has landed: %v", round, err)
	}
	if got, err := blocksOf(f.dev, 8*512, 512); err != nil || !bytes.Equal(got, make([]byte, 512)) {
		t.Fatalf("round %d: a write that was under way has landed: %v", round, err)
	}
}

// The response to a write waits for its unsolicited data (RFC 7143 section 11.4.2), and has the number of another one until it is sent.
func TestAReportThatWaitsForDataIsNotHeardOfYet(t *testing.T) {
	f := newFixture(t)
	enter := func(p *peer) {
		p.login("InitialR2T=No", "FirstBurstLength=65536")
		p.ready()
	}
	b := f.dial()
	b.isid[5] = 9
	enter(b)
	b.widen(16)
	a := f.dial()
	enter(a)
	a.resets(iscsi.LogicalUnitReset)
	c := b.command(write10(0, 2))
	c.Write, c.EDTL, c.Final = true, 1024, false
	b.send(c, nil, pattern(512, 1)) // the other half is under way
	b.late(3, 10)()
	b.wantReset(3)
	b.send(&iscsi.DataOut{Final: true, ITT: c.ITT, TTT: iscsi.Reserved, Offset: 512, ExpStatSN: b.statSN}, nil, pattern(512, 2))
	b.wantReset(1)
	isBlank(t, f.dev)
	b.late(1, 3)()
	b.wantGood()
}
