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
