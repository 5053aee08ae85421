package blockdevtest

import (
	"encoding/binary"
	"errors"
	"sync"
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
)

// atomicWrites checks the limits of Request.Atomic and that no read sees a part of one. What a loss of power leaves is
// PowerCut's to check.
func atomicWrites(t *testing.T, o Options) {
	d := o.Open(t)
	defer Close(t, d)
	m := o.memory(t, 1<<20)
	g := d.Geometry()
	write := func(off int64, n int) error {
		data := m.All().Cut(0, n)
		return Do(t, d, &blockdev.Request{Op: blockdev.Write, Atomic: true, Offset: off, Length: int64(n), Data: []mem.Span{data}})
	}
	if g.AtomicMax == 0 {
		if err := write(0, g.Logical); !errors.Is(err, blockdev.ErrUnsupported) {
			t.Errorf("an atomic write on a device without: %v", err)
		}
		return
	}
	unit := g.AtomicUnit
	if unit < g.Logical || unit%g.Logical != 0 || g.AtomicMax < int64(unit) || g.AtomicMax%int64(unit) != 0 {
		t.Fatalf("atomic writes in units of %d bytes up to %d, blocks of %d", unit, g.AtomicMax, g.Logical)
	}
	if err := write(0, int(g.AtomicMax)+unit); !errors.Is(err, blockdev.ErrRange) {
		t.Errorf("an atomic write that is too long: %v", err)
	}
	data := m.All().Cut(0, g.Logical)
	r := &blockdev.Request{Op: blockdev.CompareWrite, Atomic: true, Length: int64(g.Logical), Data: []mem.Span{data}, Compare: []mem.Span{data}}
	if err := Do(t, d, r); !errors.Is(err, blockdev.ErrUnsupported) {
		t.Errorf("Atomic of another operation: %v", err)
	}
	for _, n := range []int{unit, int(g.AtomicMax)} {
		for _, off := range []int64{0, 1<<20 - int64(unit)} { // across a MiB, where engines like to have seams
			Fill(m.All().Cut(0, n).Bytes(), uint64(n)+uint64(off))
			if err := write(off, n); err != nil {
				t.Fatalf("atomic write of %d bytes at %d: %v", n, off, err)
			}
			want := make([]byte, n)
			Fill(want, uint64(n)+uint64(off))
			if !o.Forgets {
				expect(t, "after an atomic write", Read(t, d, m, off, n), want)
			}
		}
	}
	if !o.Forgets {
		atomicIsolated(t, d, int(min(g.AtomicMax, 16<<10)))
	}
}

// atomicIsolated has two writers and two readers of one range.
func atomicIsolated(t *testing.T, d blockdev.Device, n int) {
	const rounds = 40
	at := int64(1<<20 - d.Geometry().AtomicUnit)
	var wg sync.WaitGroup
	for w := range 4 {
		m := NewMemory(t, n)
		wg.Go(func() {
			b := m.All().Bytes()
			for i := range rounds {
				r := &blockdev.Request{Op: blockdev.Read, Offset: at, Length: int64(n), Data: []mem.Span{m.All()}}
				if w%2 == 0 {
					r.Op, r.Atomic = blockdev.Write, true
					for k := 0; k < n; k += 8 {
						binary.LittleEndian.PutUint64(b[k:], uint64(w<<20|i|1<<32))
					}
				}
				if err := blockdev.Do(t.Context(), d, r); err != nil {
					t.Error(err)
					return
				}
				first := binary.LittleEndian.Uint64(b)
				for k := 0; w%2 == 1 && first>>32 == 1 && k < n; k += 8 {
					if got := binary.LittleEndian.Uint64(b[k:]); got != first {
						t.Errorf("a reader saw a part of an atomic write: %x and %x", first, got)
						return
					}
				}
			}
		})
	}
	wait(t, &wg)
}
