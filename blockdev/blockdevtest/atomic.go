package blockdevtest

import (
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
)

func compareWrite(t *testing.T, o Options) {
	d := o.Open(t)
	defer Close(t, d)
	if o.Forgets || !blockdev.Can(d, blockdev.CompareWrite) {
		return
	}
	m := o.memory(t, 1<<20)
	old, fresh := make([]byte, 16<<10), make([]byte, 16<<10)
	Fill(old, 1)
	Fill(fresh, 2)
	Write(t, d, m, 32<<10, old, false)
	expectation, data := m.All().Cut(128<<10, len(old)), m.All().Cut(256<<10, len(old))
	copy(data.Bytes(), fresh)
	for _, miss := range []int{0, 1, 511, 512, 4096, len(old) - 1} {
		copy(expectation.Bytes(), old)
		expectation.Bytes()[miss] ^= 1
		r := &blockdev.Request{Op: blockdev.CompareWrite, Offset: 32 << 10, Length: int64(len(old)),
			Data: []mem.Span{data}, Compare: []mem.Span{expectation.Cut(0, 1000), expectation.Cut(1000, len(old)-1000)}}
		if err := Do(t, d, r); !errors.Is(err, blockdev.ErrMiscompare) || r.Miss != int64(miss) {
			t.Errorf("difference at %d: %v, said to be at %d", miss, err, r.Miss)
		}
		expect(t, "after a miscompare", Read(t, d, m, 32<<10, len(old)), old)
	}
	copy(expectation.Bytes(), old)
	r := &blockdev.Request{Op: blockdev.CompareWrite, FUA: true, Offset: 32 << 10, Length: int64(len(old)),
		Data: []mem.Span{data}, Compare: []mem.Span{expectation}}
	if err := Do(t, d, r); err != nil {
		t.Fatal(err)
	}
	expect(t, "after a match", Read(t, d, m, 32<<10, len(old)), fresh)
	clear(expectation.Bytes())
	r = &blockdev.Request{Op: blockdev.CompareWrite, Offset: 0, Length: 4096, Data: []mem.Span{data.Cut(0, 4096)}, Compare: []mem.Span{expectation.Cut(0, 4096)}}
	if err := Do(t, d, r); err != nil {
		t.Fatalf("comparing a hole with zeroes: %v", err)
	}
}

// compareWriteAtomic lets several contend for a counter of two blocks, while others overwrite neighbours and read: no
// increment is lost, no reader sees two halves.
func compareWriteAtomic(t *testing.T, o Options) {
	d := o.Open(t)
	defer Close(t, d)
	if o.Forgets || !blockdev.Can(d, blockdev.CompareWrite) {
		return
	}
	const clients, rounds = 4, 25
	size := 2 * d.Geometry().Logical
	at := int64(1<<20 - d.Geometry().Logical) // across a MiB, where engines like to have seams
	var wg, writers sync.WaitGroup
	stop := make(chan struct{})
	for range clients {
		m := o.memory(t, 64<<10)
		wg.Go(func() {
			cur, next := m.Span(size), m.Span(size)
			for range rounds {
				for {
					r := blockdev.Request{Op: blockdev.Read, Offset: at, Length: int64(size), Data: []mem.Span{cur}}
					if err := blockdev.Do(t.Context(), d, &r); err != nil {
						t.Error(err)
						return
					}
					v := binary.LittleEndian.Uint64(cur.Bytes())
					for i := 0; i < size; i += 8 {
						if got := binary.LittleEndian.Uint64(cur.Bytes()[i:]); got != v {
							t.Errorf("a reader saw half of a compare and write: %d and %d", v, got)
							return
						}
						binary.LittleEndian.PutUint64(next.Bytes()[i:], v+1)
					}
					r = blockdev.Request{Op: blockdev.CompareWrite, Offset: at, Length: int64(size), Compare: []mem.Span{cur}, Data: []mem.Span{next}}
					err := blockdev.Do(t.Context(), d, &r)
					if err == nil {
						break
					}
					if !errors.Is(err, blockdev.ErrMiscompare) {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	m := o.memory(t, 64<<10)
	writers.Go(func() {
		s := m.Span(4096)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			off := at - 4096
			if i%2 == 0 {
				off = at + int64(size)
			}
			r := blockdev.Request{Op: blockdev.Write, Offset: off, Length: 4096, Data: []mem.Span{s}}
			if err := blockdev.Do(t.Context(), d, &r); err != nil {
				t.Error(err)
				return
			}
		}
	})
	wait(t, &wg)
	close(stop)
	wait(t, &writers)
	if got := binary.LittleEndian.Uint64(Read(t, d, m, at, size)); got != clients*rounds && !t.Failed() {
		t.Fatalf("%d increments counted, %d were acknowledged", got, clients*rounds)
	}
}

func status(t *testing.T, o Options) {
	d := o.Open(t)
	defer Close(t, d)
	if o.Forgets || !blockdev.Can(d, blockdev.Status) {
		return
	}
	m := o.memory(t, 1<<20)
	g := d.Geometry()
	b := make([]byte, 64<<10)
	Fill(b, 11)
	Write(t, d, m, 256<<10, b, false)
	Write(t, d, m, 768<<10, b, false)
	all := statusOf(t, d, 0, g.Size, 64)
	mapped := func(off int64) bool {
		i := slices.IndexFunc(all, func(e blockdev.Extent) bool { return off >= e.Offset && off < e.Offset+e.Length })
		return i >= 0 && all[i].Mapped
	}
	for off := int64(256 << 10); off < 320<<10; off += 4096 {
		if !mapped(off) || !mapped(off+512<<10) {
			t.Fatalf("a written block is not mapped: %v", all)
		}
	}
	for _, e := range all {
		if e.Mapped {
			continue
		}
		if !g.Thin {
			t.Errorf("a device that is not thin has a hole at %d", e.Offset)
		}
		for off := e.Offset; off < e.Offset+e.Length; off += 1 << 20 {
			n := int(min(1<<20, e.Offset+e.Length-off))
			expect(t, "a hole", Read(t, d, m, off, n), make([]byte, n))
		}
	}
	if one := statusOf(t, d, 256<<10, 4096, 1); len(one) != 1 || !one[0].Mapped {
		t.Errorf("one mapped block: %v", one)
	}
	statusOf(t, d, int64(g.Logical), g.Size-2*int64(g.Logical), 2)
}

// statusOf asks and checks the form of the answer: from off on, in order, without gaps, within the range, alternating.
func statusOf(t testing.TB, d blockdev.Device, off, n int64, room int) []blockdev.Extent {
	t.Helper()
	r := &blockdev.Request{Op: blockdev.Status, Offset: off, Length: n, Extents: make([]blockdev.Extent, 0, room)}
	if err := Do(t, d, r); err != nil {
		t.Fatal(err)
	}
	at := off
	for i, e := range r.Extents {
		if e.Offset != at || e.Length <= 0 || i > 0 && r.Extents[i-1].Mapped == e.Mapped {
			t.Fatalf("extent %d of %v", i, r.Extents)
		}
		at += e.Length
	}
	if len(r.Extents) == 0 || len(r.Extents) > room || at > off+n || len(r.Extents) < room && at != off+n {
		t.Fatalf("%d bytes from %d with room for %d extents: %v", n, off, room, r.Extents)
	}
	return r.Extents
}
