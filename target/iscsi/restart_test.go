package iscsi

import (
	"bytes"
	"testing"

	"github.com/sluice-storage/sluice/target/scsi"
)

// A LUN that is given to another unit while the daemon is away is closed as one that is remapped below it: a host that begins its new
// session with the 32 writes which were in flight in the last one changes nothing on the new unit until it has asked for the unit's
// name and has read the answer. A unit that stayed is open at once, and so is any to a host that has never been here.
func TestALUNThatBecameAnotherUnitWhileTheDaemonWasAwayIsClosed(t *testing.T) {
	dir := t.TempDir()
	life := func(name, serial string, fn func(t *testing.T, f *fixture)) {
		t.Run(name, func(t *testing.T) {
			f := bareIn(t, dir, serial).listen()
			fn(t, f)
			f.lu.Close() // and what is written down in the background
		})
	}
	life("first", "0001", func(_ *testing.T, f *fixture) {
		p := f.dial()
		p.login()
		p.ready()
	})
	life("the same unit", "0001", func(_ *testing.T, f *fixture) {
		p := f.dial()
		p.login()
		p.ready()
	})
	life("another", "0002", func(t *testing.T, f *fixture) {
		q := f.dial()
		q.isid[5] = 9
		q.login()
		q.ready()
		p := f.dial()
		p.login()
		burst := func() {
			t.Helper()
			for k := 0; k < 32; {
				n := min(firstWindow, 32-k)
				for range n {
					c := p.command(write10(8*k, 1))
					c.Write, c.EDTL = true, 512
					p.send(c, nil, pattern(512, k))
					k++
				}
				p.wantChanged(n)
			}
		}
		burst()
		burst()
		// A write behind the INQUIRY was sent before its answer was read.
		p.sendInquiry(nil)
		c := p.command(write10(0, 1))
		c.Write, c.EDTL = true, 512
		p.send(c, nil, pattern(512, 1))
		p.inquiryEnd()
		p.wantChanged(1)
		isBlank(t, f.dev)
		p.ready()
		c = p.command(write10(0, 1))
		c.Write, c.EDTL = true, 512
		p.send(c, nil, pattern(512, 77))
		p.wantGood()
		if b, err := blocksOf(f.dev, 0, 512); err != nil || !bytes.Equal(b, pattern(512, 77)) {
			t.Fatal("the host knows the unit and its write is not there", err)
		}
	})
	life("it has looked", "0002", func(_ *testing.T, f *fixture) {
		p := f.dial()
		p.login()
		p.ready()
	})
	// A target that was deleted makes way for another of its name just as fast as a daemon starts.
	must(t, scsi.Forget(dir, testTarget))
	must(t, scsi.Tidy(dir, nil))
	life("another target of that name", "0003", func(t *testing.T, f *fixture) {
		p := f.dial()
		p.login()
		for k := range firstWindow {
			c := p.command(write10(8*k, 1))
			c.Write, c.EDTL = true, 512
			p.send(c, nil, pattern(512, k))
		}
		p.wantChanged(firstWindow)
		isBlank(t, f.dev)
		p.sendInquiry(nil)
		p.inquiryEnd()
		p.ready()
		q := f.dial()
		q.isid[5] = 7 // has never been here
		q.login()
		q.ready()
	})
}
