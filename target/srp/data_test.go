package srp

import (
	"bytes"
	"fmt"
	"testing"

	wire "github.com/sluice-storage/sluice/internal/srp"
	"github.com/sluice-storage/sluice/test/lib/srpinit"
)

// shapes are the ways in which an initiator describes a buffer.
var shapes = map[string]srpinit.Command{
	"direct":    {},
	"immediate": {Immediate: true},
	"indirect":  {Pieces: []int{512, 1, 4095, 100, 4096, 8192}},
	"tiny":      {Pieces: tiny(100)},
	"table":     {Pieces: tiny(300), Within: 3},
}

func tiny(n int) []int {
	l := make([]int, n)
	for i := range l {
		l[i] = 1 + i*7%61
	}
	return l
}

// What an initiator writes is what lies on the medium, and what it reads is what lies there, however its memory is described.
func TestBytesArrive(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		c := f.login(1)
		if c.Login.Flags&wire.ImmedSupport == 0 || c.Login.MaxITUnit < srpinit.Unit {
			t.Fatalf("login response %+v", c.Login)
		}
		seed := uint64(0)
		for name, shape := range shapes {
			for _, n := range []int{512, 4096, 8192, 64 << 10, 1 << 20} {
				if shape.Immediate && n > 8192 {
					continue
				}
				seed++
				lba := int(seed) * 3
				want := noise(n, seed)
				w := shape
				w.CDB, w.Out = write10(lba, n), want
				good(t, c.Do(f.ctx(), w))
				if !bytes.Equal(f.stored(lba*block, n), want) {
					t.Fatalf("%s: the medium has other bytes after a write of %d", name, n)
				}
				r := shape
				r.CDB, r.In = read10(lba, n), n
				if got := good(t, c.Do(f.ctx(), r)); !bytes.Equal(got.In, want) {
					t.Fatalf("%s: a read of %d has other bytes", name, n)
				}
			}
		}
		for _, s := range f.srv.Sessions() {
			if s.Commands == 0 || s.BytesIn == 0 || s.BytesOut == 0 || s.Channels != 1 {
				t.Errorf("counted: %+v", s)
			}
		}
	})
}

// Many commands at once, more than there are credits, each with its own bytes.
func TestManyAtOnce(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		c := f.login(1)
		const n, size = 300, 4096
		errs := make(chan error, n)
		for i := range n {
			go func() {
				want := noise(size, uint64(i))
				r := c.Do(f.ctx(), srpinit.Command{CDB: write10(i*8, size), Out: want, Immediate: i%2 == 0})
				if r.Err == nil && r.Status == 0 {
					r = c.Do(f.ctx(), srpinit.Command{CDB: read10(i*8, size), In: size})
				}
				if r.Err == nil && (r.Status != 0 || !bytes.Equal(r.In, want)) {
					r.Err = fmt.Errorf("command %d: status %02Xh, sense %x", i, r.Status, r.Sense)
				}
				errs <- r.Err
			}()
		}
		for range n {
			must(t, <-errs)
		}
		if got := c.Credits(); got != int(c.Login.Credits) {
			t.Errorf("%d credits after all commands, %d at the login", got, c.Login.Credits)
		}
	})
}

// A response says by how much a command differs from its buffers.
func TestResiduals(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		c := f.login(1)
		want := noise(4096, 1)
		for name, x := range map[string]struct {
			cmd             srpinit.Command
			flags           uint8
			in, out         uint32
			got             int // bytes of the buffer that have changed
			writes, refused bool
		}{
			"a read as long as its buffer":   {cmd: srpinit.Command{CDB: read10(0, 4096), In: 4096}, got: 4096},
			"a read into more":               {cmd: srpinit.Command{CDB: read10(0, 1024), In: 4096}, flags: wire.InUnder, in: 3072, got: 1024},
			"a read into less":               {cmd: srpinit.Command{CDB: read10(0, 4096), In: 1536}, flags: wire.InOver, in: 2560, got: 1536},
			"a read into pieces of more":     {cmd: srpinit.Command{CDB: read10(0, 1024), In: 4096, Pieces: tiny(20)}, flags: wire.InUnder, in: 3072, got: 1024},
			"a read without a buffer":        {cmd: srpinit.Command{CDB: read10(0, 512)}, flags: wire.InOver, in: 512},
			"a write of more than is wanted": {cmd: srpinit.Command{CDB: write10(0, 512), Out: want}, flags: wire.OutUnder, out: 3584, writes: true},
			"a write of less":                {cmd: srpinit.Command{CDB: write10(0, 4096), Out: want[:1024]}, flags: wire.OutOver, out: 3072, writes: true},
			"immediate data of less":         {cmd: srpinit.Command{CDB: write10(0, 4096), Out: want[:1024], Immediate: true}, flags: wire.OutOver, out: 3072, writes: true},
			"INQUIRY into much":              {cmd: srpinit.Command{CDB: []byte{0x12, 0, 0, 0, 0xFF, 0}, In: 255}, flags: wire.InUnder, in: 255 - 96, got: 96},
			"an unknown command":             {cmd: srpinit.Command{CDB: []byte{0xD0}, In: 64}, flags: wire.InUnder, in: 64, refused: true},
			"a LUN that is not there":        {cmd: srpinit.Command{LUN: 7, CDB: read10(0, 512), In: 512}, flags: wire.InUnder, in: 512, refused: true},
			"no data at all":                 {cmd: srpinit.Command{CDB: []byte{0}}},
		} {
			good(t, c.Do(f.ctx(), srpinit.Command{CDB: write10(0, 4096), Out: want}))
			r := c.Do(f.ctx(), x.cmd)
			must(t, r.Err)
			if r.Flags != x.flags || r.InResidual != x.in || r.OutResidual != x.out || (r.Status != 0) != x.refused || (len(r.Sense) > 0) != x.refused {
				t.Errorf("%s: flags %02X, residuals %d and %d, status %02X, sense %x", name, r.Flags, r.InResidual, r.OutResidual, r.Status, r.Sense)
			}
			if x.got > 0 && x.cmd.CDB[0] == 0x28 && !bytes.Equal(r.In[:x.got], want[:x.got]) {
				t.Errorf("%s: other bytes", name)
			}
		}
	})
}

// Logical unit numbers come in the two forms of SAM-5 section 4.7 that name units here; others find none.
func TestLUNForms(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		must(t, f.st.AddLUN(300, f.secondUnit()))
		c := f.login(1)
		for name, x := range map[string]struct {
			field uint64
			there bool
		}{
			"peripheral, 0": {0, true}, "flat, 0": {0x4000 << 48, true}, "flat, 300": {(0x4000 | 300) << 48, true}, "peripheral, of another bus": {0x0100 << 48, false},
			"logical unit, of another target": {0x8100 << 48, false}, "two levels": {0x0000_0001 << 32, false}, "flat, 1": {0x4001 << 48, false},
		} {
			field := x.field
			if field == 0 {
				field = 0x4000 << 48 // 0 is the default of the tool; the same unit
			}
			r := c.Do(f.ctx(), srpinit.Command{Field: field, CDB: []byte{0x12, 0, 0, 0, 96, 0}, In: 96})
			must(t, r.Err)
			if got := r.Status == 0 && r.In[0] == 0; got != x.there {
				t.Errorf("%s: status %02X, qualifier and type %02X", name, r.Status, r.In[0])
			}
		}
		r := good(t, c.Do(f.ctx(), srpinit.Command{CDB: []byte{0xA0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0}, In: 256}))
		if want := []byte{0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x41, 44, 0, 0, 0, 0, 0, 0}; !bytes.Equal(r.In[:24], want) {
			t.Errorf("REPORT LUNS %x", r.In[:24])
		}
	})
}

// An ORDERED command runs alone; a HEAD OF QUEUE one does not wait for it.
func TestTaskAttributes(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		c := f.login(1)
		if r := c.Do(f.ctx(), srpinit.Command{CDB: []byte{0}, Attr: wire.ACA}); r.Err != nil || r.Status == 0 {
			t.Errorf("an ACA command without the condition: %v, status %02X", r.Err, r.Status)
		}
		f.dev.shut()
		first := f.start(c, srpinit.Command{CDB: write10(0, 512), Out: noise(512, 1)})
		<-f.dev.arrived
		ordered := f.start(c, srpinit.Command{CDB: write10(0, 512), Out: noise(512, 2), Attr: wire.Ordered})
		behind := f.start(c, srpinit.Command{CDB: write10(0, 512), Out: noise(512, 3), Immediate: true})
		head := f.start(c, srpinit.Command{CDB: write10(8, 512), Out: noise(512, 4), Attr: wire.HeadOfQueue})
		<-f.dev.arrived // the one at the head, beside the first
		select {
		case <-f.dev.arrived:
			t.Error("the ordered write did not wait")
		default:
		}
		f.dev.open()
		for _, p := range []*srpinit.Pending{first, ordered, behind, head} {
			good(t, p.Wait())
		}
		if !bytes.Equal(f.stored(0, 512), noise(512, 3)) {
			t.Error("the writes have not landed in their order")
		}
	})
}

// A response says that it is a notification where the command asked for one of such an end.
func TestNotifications(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		c := f.login(1)
		for _, x := range []struct {
			notify byte
			cdb    byte
			want   bool
		}{{0, 0, false}, {2, 0, true}, {4, 0, false}, {0, 0xD0, false}, {2, 0xD0, false}, {4, 0xD0, true}, {6, 0xD0, true}} {
			if r := c.Do(f.ctx(), srpinit.Command{CDB: []byte{x.cdb}, Notify: x.notify}); r.Err != nil || r.Notify != x.want {
				t.Errorf("SOLNT %d, opcode %02X: %v, %v", x.notify, x.cdb, r.Notify, r.Err)
			}
		}
	})
}
