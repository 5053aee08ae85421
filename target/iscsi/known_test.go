package iscsi

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/sluice-storage/sluice/blockdev"
	bmem "github.com/sluice-storage/sluice/blockdev/mem"
	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/transport"
)

// unit makes another logical unit and the device below it.
func (f *fixture) unit(name string) (*scsi.LogicalUnit, *gate) {
	f.t.Helper()
	below, err := bmem.Open(bmem.Options{Size: diskSize, Logical: 512})
	must(f.t, err)
	g := &gate{Device: below, arrived: make(chan struct{}, 1024)}
	lu, err := scsi.NewLogicalUnit(scsi.LUOptions{Device: g, Name: name, Serial: name})
	must(f.t, err)
	return lu, g
}

// remap gives LUN 0 another unit, in two steps as the administrative interface does.
func (f *fixture) remap(lu *scsi.LogicalUnit) {
	f.t.Helper()
	must(f.t, f.st.RemoveLUN(0))
	must(f.t, f.st.AddLUN(0, lu))
}

// widen uses the command window until it holds n commands.
func (p *peer) widen(n int) {
	p.t.Helper()
	for int(p.max-p.cmdSN)+1 < n {
		k := int(p.max-p.cmdSN) + 1
		for range k {
			p.send(p.command(make([]byte, 6)), nil, nil)
		}
		for range k {
			p.want(iscsi.OpSCSIResponse)
		}
	}
}

// sendInquiry sends INQUIRY as c, which may have been made earlier; nil makes it now.
func (p *peer) sendInquiry(c *iscsi.SCSICommand) {
	p.t.Helper()
	if c == nil {
		c = p.command([]byte{0x12, 1, 0x83, 0, 252, 0})
	}
	c.Read, c.EDTL = true, 252
	if _, ok := p.w.(*iserWire); ok {
		_, rem, _ := p.expose(252, transport.RemoteWrite)
		p.sendISER(&iscsi.ISERHeader{ReadValid: true, ReadSTag: rem.STag, ReadBase: rem.Off}, c, nil, nil)
		return
	}
	p.send(c, nil, nil)
}

// inquiryEnd is the PDU with the status of an INQUIRY.
func (p *peer) inquiryEnd() pdu {
	p.t.Helper()
	r := p.recv()
	if op := r.b.Opcode(); op != iscsi.OpDataIn && op != iscsi.OpSCSIResponse || r.b[3] != 0 {
		p.t.Fatalf("INQUIRY: % x %x", []byte(r.b), r.data)
	}
	return r
}

// wantChanged takes n responses, each of which says REPORTED LUNS DATA HAS CHANGED.
func (p *peer) wantChanged(n int) {
	p.t.Helper()
	for k := range n {
		r := p.want(iscsi.OpSCSIResponse)
		if key, asc := sense(r); key != 6 || asc != 0x3F0E {
			p.t.Fatalf("command %d of %d: status %02X, sense %X/%04X, expected 6/3F0E", k+1, n, r.b[3], key, asc)
		}
	}
}

func (p *peer) wantGood() {
	p.t.Helper()
	if r := p.want(iscsi.OpSCSIResponse); r.b[3] != 0 {
		p.t.Fatalf("% x %x", []byte(r.b), r.data)
	}
}

// blocksOf reads a device.
func blocksOf(d blockdev.Device, off, n int64) ([]byte, error) {
	slab, err := mem.NewSlab(int(n))
	if err != nil {
		return nil, err
	}
	r := blockdev.Request{Op: blockdev.Read, Offset: off, Length: n, Data: []mem.Span{{Slab: slab, Len: int(n)}}}
	err = blockdev.Do(context.Background(), d, &r)
	b := bytes.Clone(slab.Bytes()[:n])
	return b, errors.Join(err, slab.Close())
}

// either runs a test on both movers in real time, for more requests in flight than a pipe takes.
func either(t *testing.T, fn func(t *testing.T, f *fixture, dial func() *peer)) {
	t.Run("TCP", func(t *testing.T) {
		f := newFixture(t)
		fn(t, f, f.dial)
	})
	t.Run("iSER", func(t *testing.T) {
		f := newTwinFixture(t)
		fn(t, f, func() *peer { return f.dialISER(iscsi.CMPrivate(true)) })
	})
}

func isBlank(t *testing.T, g *gate) {
	t.Helper()
	b, err := blocksOf(g, 0, diskSize)
	must(t, err)
	if !bytes.Equal(b, make([]byte, diskSize)) {
		t.Fatal("something was written to the unit that the host does not know")
	}
}

// A LUN number that comes to mean another unit: of 32 writes that are under way for the old one none lands on the new
// one, however often they are sent again, until the initiator has asked who is there and has read the answer.
func TestNothingIsWrittenToAUnitThatTheHostDoesNotKnow(t *testing.T) {
	either(t, func(t *testing.T, f *fixture, dial func() *peer) {
		p := dial()
		p.enter()
		p.ready()
		p.widen(40)
		other, g := f.unit("another")
		// An INQUIRY and 32 writes leave the host before the change and arrive after it.
		early := p.command([]byte{0x12, 0, 0, 0, 96, 0})
		var writes []*iscsi.SCSICommand
		for k := range 32 {
			c := p.command(write10(8*k, 1))
			c.Write, c.EDTL = true, 512
			writes = append(writes, c)
		}
		f.remap(other)
		p.sendInquiry(early)
		for k, c := range writes {
			p.send(c, nil, pattern(512, k))
		}
		p.inquiryEnd()
		p.wantChanged(32)
		// They are sent again, and once more: the INQUIRY was asked of the old unit.
		for range 2 {
			for k := range 32 {
				c := p.command(write10(8*k, 1))
				c.Write, c.EDTL = true, 512
				p.send(c, nil, pattern(512, k))
			}
			p.wantChanged(32)
		}
		isBlank(t, g)
		// The inventory says which LUNs there are, not what they are.
		luns := p.command([]byte{0xA0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0})
		p.sendInquiry(luns)
		p.inquiryEnd()
		p.send(p.command(make([]byte, 6)), nil, nil)
		p.wantChanged(1)
		// A write behind the INQUIRY was sent before its answer was read.
		p.sendInquiry(nil)
		c := p.command(write10(0, 1))
		c.Write, c.EDTL = true, 512
		p.send(c, nil, pattern(512, 1))
		p.inquiryEnd()
		p.wantChanged(1)
		isBlank(t, g)
		c = p.command(write10(0, 1))
		c.Write, c.EDTL = true, 512
		p.send(c, nil, pattern(512, 77))
		p.wantGood()
		if b, err := blocksOf(g, 0, 512); err != nil || !bytes.Equal(b, pattern(512, 77)) {
			t.Fatal("the host knows the unit and its write is not there", err)
		}
	})
}

// A login is no look at a LUN: Linux's session recovery sends what was in flight under the same name and does not ask who is
// there. Only the initiator port that used the old unit is concerned.
func TestALoginUnderTheSameNameOpensNoOtherUnit(t *testing.T) {
	both(t, func(t *testing.T, f *fixture, dial func() *peer) {
		stranger := dial() // uses nothing
		stranger.isid[5] = 8
		stranger.enter()
		p := dial()
		p.enter()
		p.ready()
		other, g := f.unit("another")
		f.remap(other)
		q := dial()
		q.isid[5] = 9
		q.enter()
		q.ready()
		p.send(p.command(make([]byte, 6)), nil, nil)
		p.wantChanged(1)
		for range 2 {
			r := dial() // in p's place
			r.enter()
			for k := range 3 {
				c := r.command(write10(8*k, 1))
				c.Write, c.EDTL = true, 512
				r.send(c, nil, pattern(512, k))
				r.wantChanged(1)
			}
			p = r
		}
		isBlank(t, g)
		p.sendInquiry(nil)
		p.inquiryEnd()
		p.ready()
		r := dial() // now that it has looked
		r.enter()
		r.ready()
		s := dial() // in the stranger's
		s.isid[5] = 8
		s.enter()
		s.ready()
	})
}

// What opens a LUN that is another unit is its name: not the data that all units share, and no part of a page that ends before
// the name does.
func TestOnlyItsNameOpensAnotherUnit(t *testing.T) {
	both(t, func(t *testing.T, f *fixture, dial func() *peer) {
		p := dial()
		p.enter()
		p.ready()
		ask := func(cdb ...byte) {
			t.Helper()
			p.sendInquiry(p.command(cdb))
			p.inquiryEnd()
		}
		for k, name := range [][]byte{{0x12, 1, 0x83, 0, 252, 0}, {0x12, 1, 0x80, 0, 252, 0}} {
			other, _ := f.unit([]string{"one", "two"}[k])
			f.remap(other)
			for _, cdb := range [][]byte{
				{0x12, 0, 0, 0, 96, 0}, {0x12, 0, 0, 0, 0, 0}, {0x12, 0, 0, 0, 5, 0}, {0x12, 1, 0, 0, 252, 0}, {0x12, 1, 0xB0, 0, 252, 0},
				{0x12, 1, 0x83, 0, 0, 0}, {0x12, 1, 0x83, 0, 4, 0}, {0x12, 1, 0x83, 0, 15, 0}, {0x12, 1, 0x80, 0, 6, 0}, {0x12, 1, 0x01, 0, 252, 0},
			} {
				p.sendInquiry(p.command(cdb))
				p.recv() // some end with CHECK CONDITION
				p.send(p.command(make([]byte, 6)), nil, nil)
				p.wantChanged(1)
			}
			ask(name...)
			p.ready()
		}
	})
}

func TestAUnitThatComesBackIsKnown(t *testing.T) {
	both(t, func(t *testing.T, f *fixture, dial func() *peer) {
		p := dial()
		p.enter()
		p.ready()
		same := f.st.LUN(0)
		other, _ := f.unit("another")
		f.remap(other)
		p.send(p.command(make([]byte, 6)), nil, nil)
		p.wantChanged(1)
		f.remap(same)
		p.want(iscsi.OpAsync)
		p.ready()
	})
}

// What a host resets that it takes for another unit is not reset: commands of hosts that know the unit go on.
func TestAResetOfAnUnknownUnitEndsNoOtherHostsCommands(t *testing.T) {
	both(t, func(t *testing.T, f *fixture, dial func() *peer) {
		p := dial()
		p.enter()
		p.ready()
		other, g := f.unit("another")
		f.remap(other)
		q := dial()
		q.isid[5] = 9
		q.enter()
		q.ready()
		g.shut()
		q.startWrite(0, 1)
		<-g.arrived
		for fn, want := range map[iscsi.TaskFunction]iscsi.TaskStatus{iscsi.LogicalUnitReset: iscsi.TaskNoLUN, iscsi.TargetWarmReset: iscsi.TaskComplete} {
			p.tmf(fn, iscsi.Reserved)
			if r := p.want(iscsi.OpTaskResponse); r.b[2] != byte(want) {
				t.Errorf("function %d: response %d", fn, r.b[2])
			}
		}
		g.open()
		q.wantGood()
	})
}

// open-iscsi answers the event 3F/0E by looking at every LUN, kernel's INQUIRY included. It is not sent where that would
// open a LUN which is another unit, or has none for the moment, to writes that are for the old one.
func TestNoEventHasAHostLookAtAUnitThatItsWritesAreNotFor(t *testing.T) {
	both(t, func(t *testing.T, f *fixture, dial func() *peer) {
		p := dial()
		p.enter()
		p.ready()
		one, _ := f.unit("one")
		must(t, f.st.AddLUN(1, one))
		r := p.want(iscsi.OpAsync) // a LUN more changes nothing of those that are in use
		if key, asc := sense(r); key != 6 || asc != 0x3F0E {
			t.Fatalf("event %X/%04X", key, asc)
		}
		p.want(iscsi.OpAsync) // and of the other LUN
		p.ready()
		ch := p.arrivals()
		two, _ := f.unit("two")
		three, _ := f.unit("three")
		f.remap(two)
		must(t, f.st.AddLUN(2, three))
		synctest.Wait()
		select {
		case r := <-ch:
			t.Fatalf("received % x %x", []byte(r.b), r.data)
		default:
		}
		p.w.close()
		for range ch { //nolint:revive // until the reader has gone
		}
	})
}
