package blockdevtest

import (
	"errors"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
)

func geometry(t *testing.T, o Options) {
	d := o.Open(t)
	defer Close(t, d)
	g := d.Geometry()
	if g.Logical != 512 && g.Logical != 4096 {
		t.Errorf("logical blocks of %d bytes", g.Logical)
	}
	if g.Physical < g.Logical || g.Physical&(g.Physical-1) != 0 {
		t.Errorf("physical blocks of %d bytes on logical ones of %d", g.Physical, g.Logical)
	}
	if g.Size < 2<<20 || g.Size%int64(g.Logical) != 0 {
		t.Errorf("size %d: this suite needs 2 MiB in whole blocks", g.Size)
	}
	if g.OptimalIO%g.Logical != 0 || g.DiscardUnit%g.Logical != 0 {
		t.Errorf("optimal transfer %d and discard unit %d are not in blocks", g.OptimalIO, g.DiscardUnit)
	}
	if (g.DiscardUnit > 0) != blockdev.Can(d, blockdev.Discard) {
		t.Errorf("discard unit %d, but Can(Discard) is %v", g.DiscardUnit, blockdev.Can(d, blockdev.Discard))
	}
	if e, ok := d.(blockdev.Explainer); ok && e.Path() == "" {
		t.Error("the engine cannot say how it works")
	}
}

// ranges is rule 5.
func ranges(t *testing.T, o Options) {
	d := o.Open(t)
	defer Close(t, d)
	g := d.Geometry()
	m := o.memory(t, 4<<20)
	block := int64(g.Logical)
	before := slices.Clone(Read(t, d, m, g.Size-1<<20, 1<<20))
	for _, c := range []struct{ off, n int64 }{
		{-block, block}, {1, block}, {block / 2, block}, {0, 1}, {0, block - 1}, {g.Size, block}, {g.Size - block, 2 * block},
		{g.Size + 1<<40, block}, {math.MaxInt64 &^ (block - 1), block}, {math.MaxInt64 - block + 1, 2 * block}, {0, -block},
	} {
		for op := blockdev.Read; op <= blockdev.Status; op++ {
			if op == blockdev.Flush || !blockdev.Can(d, op) {
				continue
			}
			s := m.All().Cut(1<<20, int(max(c.n, 0)))
			Fill(s.Bytes(), 1)
			r := &blockdev.Request{Op: op, Offset: c.off, Length: c.n, Data: []mem.Span{s}}
			if op == blockdev.CompareWrite {
				r.Compare = []mem.Span{m.All().Cut(0, int(max(c.n, 0)))}
			}
			if op == blockdev.Status {
				r.Extents = make([]blockdev.Extent, 0, 4)
			}
			if err := Do(t, d, r); !errors.Is(err, blockdev.ErrRange) {
				t.Errorf("%v of %d bytes at %d of %d: %v, want ErrRange", op, c.n, c.off, g.Size, err)
			}
		}
	}
	r := &blockdev.Request{Op: blockdev.Write, Length: 2 * block, Data: []mem.Span{m.All().Cut(0, int(block))}}
	if err := Do(t, d, r); !errors.Is(err, blockdev.ErrRange) {
		t.Errorf("data shorter than the request: %v, want ErrRange", err)
	}
	if !o.Forgets {
		expect(t, "after refused writes", Read(t, d, m, g.Size-1<<20, 1<<20), before)
	}
	for _, op := range []blockdev.Op{blockdev.Read, blockdev.Write} { // nothing at the very end is not beyond it
		if err := Do(t, d, &blockdev.Request{Op: op, Offset: g.Size}); err != nil {
			t.Errorf("empty %v at the end: %v", op, err)
		}
	}
}

func unsupported(t *testing.T, o Options) {
	d := o.Open(t)
	defer Close(t, d)
	m := o.memory(t, 1<<20)
	n := d.Geometry().Logical
	for op := blockdev.Discard; op <= blockdev.Status+1; op++ {
		if op <= blockdev.Status && blockdev.Can(d, op) {
			continue
		}
		s := []mem.Span{m.All().Cut(0, n)}
		err := Do(t, d, &blockdev.Request{Op: op, Length: int64(n), Data: s, Compare: s, Extents: make([]blockdev.Extent, 0, 1)})
		if !errors.Is(err, blockdev.ErrUnsupported) {
			t.Errorf("%v: %v, want ErrUnsupported", op, err)
		}
	}
}

func readWrite(t *testing.T, o Options) {
	d := o.Open(t)
	defer Close(t, d)
	g := d.Geometry()
	m := o.memory(t, 2<<20)
	got := Read(t, d, m, 0, 1<<20)
	if !o.Forgets {
		expect(t, "new device", got, make([]byte, 1<<20))
	}
	b := make([]byte, 1<<20)
	for i, c := range []struct {
		off int64
		n   int
		fua bool
	}{{0, g.Logical, false}, {int64(g.Logical), 3 * g.Logical, true}, {g.Size - int64(g.Logical), g.Logical, false},
		{128 << 10, 1 << 20, false}, {64 << 10, 128 << 10, true}} {
		Fill(b[:c.n], uint64(i))
		Write(t, d, m, c.off, b[:c.n], c.fua)
		got := Read(t, d, m, c.off, c.n)
		if !o.Forgets {
			expect(t, "just written", got, b[:c.n])
		}
		Flush(t, d)
	}
}

// spans cuts one request into pieces that have nothing to do with blocks.
func spans(t *testing.T, o Options) {
	d := o.Open(t)
	defer Close(t, d)
	m := o.memory(t, 2<<20)
	const n = 256 << 10
	want := make([]byte, n)
	Fill(want, 7)
	for _, cuts := range [][]int{{1, 511, 512, 1000, 24, 4095}, {4096, 65536}, slices.Repeat([]int{100}, 2000)} {
		var data []mem.Span
		at := 0
		for _, c := range cuts {
			data = append(data, m.All().Cut(1+at, c))
			at += c
		}
		data = append(data, m.All().Cut(1+at, 0), m.All().Cut(1+at, n-at))
		copy(m.All().Bytes()[1:], want)
		if err := Do(t, d, &blockdev.Request{Op: blockdev.Write, Offset: n, Length: n, Data: data}); err != nil {
			t.Fatal(err)
		}
		clear(m.All().Bytes())
		if err := Do(t, d, &blockdev.Request{Op: blockdev.Read, Offset: n, Length: n, Data: data}); err != nil {
			t.Fatal(err)
		}
		if !o.Forgets {
			expect(t, "read in pieces", m.All().Bytes()[1:1+n], want)
			expect(t, "read whole", Read(t, d, m, n, n), want)
		}
	}
}

// doneOnce is rule 1.
func doneOnce(t *testing.T, o Options) {
	d := o.Open(t)
	m := o.memory(t, 1<<20)
	g := d.Geometry()
	const n = 400
	counts := make([]atomic.Int32, n)
	var all sync.WaitGroup
	all.Add(n)
	for i := range n {
		op := blockdev.Op(1 + i%int(blockdev.Status))
		s := []mem.Span{m.All().Cut(0, 4096)}
		if op == blockdev.Read {
			s = []mem.Span{m.All().Cut(8192+4096*(i%200), 4096)}
		}
		d.Submit(&blockdev.Request{
			Op: op, FUA: i%3 == 0, Offset: int64(i%500) * 4096 % g.Size, Length: 4096, Data: s, Compare: s,
			Extents: make([]blockdev.Extent, 0, 4),
			Done: func(*blockdev.Request) {
				if counts[i].Add(1) == 1 {
					all.Done()
				}
			},
		})
	}
	wait(t, &all)
	Close(t, d) // nothing runs any more, so a second call would have been seen
	for i := range counts {
		if c := counts[i].Load(); c != 1 {
			t.Errorf("request %d was done %d times", i, c)
		}
	}
}

func wait(t testing.TB, wg *sync.WaitGroup) {
	t.Helper()
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(Patience):
		t.Fatal("some requests were never done")
	}
}

// helper performs what it is offered, on a goroutine of its own.
type helper struct{}

func (helper) Defer(p blockdev.Performer, r *blockdev.Request) bool {
	go p.Perform(r)
	return true
}

// taker remembers what it is offered.
type taker struct {
	by blockdev.Performer
	r  *blockdev.Request
}

func (k *taker) Defer(p blockdev.Performer, r *blockdev.Request) bool {
	k.by, k.r = p, r
	return true
}

// concurrent has workers on ranges of their own, each of which must see its own writes (rule 3).
func concurrent(t *testing.T, o Options) {
	d := o.Open(t)
	defer Close(t, d)
	var wg sync.WaitGroup
	const each = 256 << 10
	for w := range 8 {
		m := o.memory(t, each)
		wg.Go(func() {
			b := make([]byte, 32<<10)
			for i := range 40 {
				off := int64(w*each) + int64(i*12345%(each-len(b)))&^4095
				n := 4096 * (1 + i%8)
				Fill(b[:n], uint64(w*1000+i))
				s := m.All().Cut(0, n)
				copy(s.Bytes(), b[:n])
				r := blockdev.Request{Op: blockdev.Write, FUA: i%10 == 0, Offset: off, Length: int64(n), Data: []mem.Span{s}}
				if i%3 == 0 {
					r.Deferrer = helper{}
				}
				if err := blockdev.Do(t.Context(), d, &r); err != nil {
					t.Errorf("write: %v", err)
					return
				}
				if i%2 == 0 {
					r.Deferrer = nil
				}
				clear(s.Bytes())
				r.Op = blockdev.Read
				if err := blockdev.Do(t.Context(), d, &r); err != nil {
					t.Errorf("read: %v", err)
					return
				}
				if !o.Forgets && !slices.Equal(s.Bytes(), b[:n]) {
					t.Errorf("worker %d does not see its own write of %d bytes at %d", w, n, off)
					return
				}
			}
		})
	}
	wait(t, &wg)
}

func zeroes(t *testing.T, o Options) {
	d := o.Open(t)
	defer Close(t, d)
	g := d.Geometry()
	m := o.memory(t, 2<<20)
	want := make([]byte, 1<<20)
	Fill(want, 3)
	Write(t, d, m, 0, want, false)
	for i, r := range []blockdev.Request{
		{Op: blockdev.WriteZeroes, Offset: 0, Length: int64(g.Logical)},
		{Op: blockdev.WriteZeroes, Offset: 8192, Length: 100 << 10, Unmap: true},
		{Op: blockdev.WriteZeroes, Offset: 300 << 10, Length: 5 * 4096, FUA: true},
		{Op: blockdev.WriteZeroes, Offset: 400 << 10, Length: 4096, FUA: true, Unmap: true},
	} {
		if !blockdev.Can(d, r.Op) {
			return
		}
		if err := Do(t, d, &r); err != nil {
			t.Fatalf("%d: %v", i, err)
		}
		clear(want[r.Offset : r.Offset+r.Length])
		if !o.Forgets {
			expect(t, "after write zeroes", Read(t, d, m, 0, len(want)), want)
		}
	}
	if !blockdev.Can(d, blockdev.Discard) {
		return
	}
	unit := int64(g.DiscardUnit)
	r := &blockdev.Request{Op: blockdev.Discard, Offset: 512 << 10 / unit * unit, Length: min(16*unit, 512<<10)}
	if err := Do(t, d, r); err != nil {
		t.Fatal(err)
	}
	got := slices.Clone(Read(t, d, m, 0, len(want)))
	if o.Forgets {
		return
	}
	for at := r.Offset; at < r.Offset+r.Length; at += int64(g.Logical) {
		b := got[at : at+int64(g.Logical)]
		if !slices.Equal(b, want[at:at+int64(g.Logical)]) && slices.ContainsFunc(b, func(c byte) bool { return c != 0 }) {
			t.Fatalf("the discarded block at %d reads neither as zeroes nor as before", at)
		}
	}
	copy(want[r.Offset:r.Offset+r.Length], got[r.Offset:])
	expect(t, "around a discard", got, want)
}

// flushes submits many at once: each is done, also those that are joined.
func flushes(t *testing.T, o Options) {
	d := o.Open(t)
	defer Close(t, d)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 5 {
				if err := blockdev.Do(t.Context(), d, &blockdev.Request{Op: blockdev.Flush}); err != nil {
					t.Errorf("flush: %v", err)
				}
			}
		})
	}
	wait(t, &wg)
}

func reopen(t *testing.T, o Options) {
	d := o.Open(t)
	m := o.memory(t, 1<<20)
	want := make([]byte, 512<<10)
	Fill(want, 99)
	Write(t, d, m, 64<<10, want, false)
	Flush(t, d)
	g := d.Geometry()
	d = o.Reopen(t, d)
	defer Close(t, d)
	if h := d.Geometry(); h.Size != g.Size || h.Logical != g.Logical || h.Physical != g.Physical {
		t.Errorf("geometry changed: %+v, was %+v", h, g)
	}
	expect(t, "after reopening", Read(t, d, m, 64<<10, len(want)), want)
}

func readOnly(t *testing.T, o Options) {
	d := o.ReadOnly(t)
	defer Close(t, d)
	if !d.Geometry().ReadOnly {
		t.Error("the geometry does not say so")
	}
	m := o.memory(t, 1<<20)
	before := slices.Clone(Read(t, d, m, 0, 8192))
	for _, op := range []blockdev.Op{blockdev.Write, blockdev.Discard, blockdev.WriteZeroes, blockdev.CompareWrite} {
		s := []mem.Span{m.All().Cut(0, 4096)}
		if err := Do(t, d, &blockdev.Request{Op: op, Length: 4096, Data: s, Compare: s}); !errors.Is(err, blockdev.ErrReadOnly) {
			t.Errorf("%v: %v, want ErrReadOnly", op, err)
		}
	}
	Flush(t, d)
	expect(t, "after refused writes", Read(t, d, m, 0, 8192), before)
}

func resize(t *testing.T, o Options) {
	d := o.Open(t)
	defer Close(t, d)
	m := o.memory(t, 1<<20)
	g := d.Geometry()
	o.Resize(t, d, g.Size*2)
	if r, ok := d.(blockdev.Resizable); !ok {
		t.Fatal("not Resizable")
	} else if _, err := r.Refresh(); err != nil {
		t.Fatal(err)
	}
	h := d.Geometry()
	if h.Size != g.Size*2 || h.Generation == g.Generation {
		t.Fatalf("size %d generation %d after growing to %d from generation %d", h.Size, h.Generation, g.Size*2, g.Generation)
	}
	b := make([]byte, 4096)
	Fill(b, 5)
	Write(t, d, m, h.Size-4096, b, true)
	expect(t, "in the new part", Read(t, d, m, h.Size-4096, 4096), b)
	expect(t, "in the new part, not written", Read(t, d, m, g.Size, 64<<10), make([]byte, 64<<10))
	o.Resize(t, d, g.Size)
	if _, err := d.(blockdev.Resizable).Refresh(); err != nil {
		t.Fatal(err)
	}
	r := &blockdev.Request{Op: blockdev.Read, Offset: g.Size, Length: 4096, Data: []mem.Span{m.All().Cut(0, 4096)}}
	if err := Do(t, d, r); !errors.Is(err, blockdev.ErrRange) {
		t.Errorf("read beyond the end of a shrunken device: %v, want ErrRange", err)
	}
}

// allocations counts what a read, a write and a flush cost the heap.
func allocations(t *testing.T, o Options) {
	d := o.Open(t)
	defer Close(t, d)
	m := o.memory(t, 1<<20)
	done := make(chan struct{}, 1)
	var take taker
	rs := []*blockdev.Request{
		{Op: blockdev.Read, Length: 4096}, {Op: blockdev.Read, Length: 128 << 10}, {Op: blockdev.Write, Length: 4096},
		{Op: blockdev.Write, Length: 128 << 10}, {Op: blockdev.Flush}, {Op: blockdev.Write, Length: 8192, Deferrer: &take},
	}
	for _, r := range rs {
		if r.Length > 0 {
			r.Data = []mem.Span{m.All().Cut(0, int(r.Length))}
		}
		r.Done = func(*blockdev.Request) { done <- struct{}{} }
	}
	round := func() {
		for _, r := range rs {
			d.Submit(r)
			if take.r != nil {
				take.by.Perform(take.r)
				take.r = nil
			}
			<-done
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		}
	}
	for range 20 {
		round()
	}
	const rounds = 100
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range rounds {
		round()
	}
	runtime.ReadMemStats(&after)
	// The runtime itself allocates now and then (a thread, a timer); one allocation a request would be 500.
	if n := after.Mallocs - before.Mallocs; n > rounds {
		t.Errorf("%d allocations for %d requests", n, rounds*len(rs))
	}
}
