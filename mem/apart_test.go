package mem

import (
	"errors"
	"testing"

	"pgregory.net/rapid"
)

func apart(t testing.TB, p *Pool, max int64) *Pool {
	t.Helper()
	a, err := p.Apart(max, Shared)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Whatever pools apart and their pool are asked for, in any order, together they never map more than the bound, and each of them can
// always have a buffer of each class.
func TestPoolsApartKeepToTheBoundTogether(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const bound = 40 << 20
		p := NewPool(bound)
		type held struct {
			from *Pool
			b    *Buf
		}
		var apart []*Pool
		var out []held
		mapped := func() (n int64) {
			n = p.Stats().Mapped
			for _, a := range apart {
				n += a.Stats().Mapped
			}
			return n
		}
		for range rapid.IntRange(0, 120).Draw(t, "steps") {
			switch k := rapid.IntRange(0, 9).Draw(t, "step"); {
			case k == 0:
				if a, err := p.Apart(rapid.Int64Range(0, 64<<20).Draw(t, "max"), Private); err == nil {
					apart = append(apart, a)
				} else if !errors.Is(err, ErrNoMemory) {
					t.Fatal(err)
				}
			case k == 1 && len(apart) > 0:
				i := rapid.IntRange(0, len(apart)-1).Draw(t, "which")
				a := apart[i]
				apart = append(apart[:i:i], apart[i+1:]...)
				a.Retire()
				left := out[:0]
				for _, h := range out {
					if h.from == a {
						h.b.Release()
					} else {
						left = append(left, h)
					}
				}
				out = left
				if _, err := a.Get(1); !errors.Is(err, ErrClosed) {
					t.Fatalf("a retired pool without buffers: %v", err)
				}
			case k < 7:
				from := p
				if i := rapid.IntRange(0, len(apart)).Draw(t, "of"); i > 0 {
					from = apart[i-1]
				}
				n := rapid.SampledFrom(classes[:]).Draw(t, "bytes")
				b, err := from.Get(n)
				if errors.Is(err, ErrNoMemory) {
					mine := 0
					for _, h := range out {
						if h.from == from && h.b.span.Len >= n {
							mine++
						}
					}
					if mine == 0 {
						t.Fatalf("%d bytes refused to a pool that has handed out none so large", n)
					}
				} else if err != nil {
					t.Fatal(err)
				} else {
					out = append(out, held{from, b})
				}
			case len(out) > 0:
				i := rapid.IntRange(0, len(out)-1).Draw(t, "buffer")
				out[i].b.Release()
				out = append(out[:i:i], out[i+1:]...)
			}
			if n := mapped(); n > bound {
				t.Fatalf("%d bytes are mapped, the bound is %d", n, bound)
			}
		}
		for _, h := range out {
			h.b.Release()
		}
		for _, a := range apart {
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if st := p.Stats(); st.Lent != 0 || st.Used != 0 {
			t.Fatalf("left: %+v", st)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// A pool that grew gives idle slabs up for one apart, and none that is used, or that a quota waits for.
func TestIdleSlabsMakeRoomForAPoolApart(t *testing.T) {
	p := NewPool(10 * slabSize)
	q := p.Quota(5 * slabSize)
	bufs, err := q.GetAll(5*slabSize, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range classes[:4] {
		b, err := p.Get(c)
		if err != nil {
			t.Fatal(err)
		}
		bufs = append(bufs, b)
	}
	if a, err := p.Apart(0, Shared); !errors.Is(err, ErrNoMemory) {
		t.Fatalf("%d bytes are in use of %d, and there is room for another pool: %v, %v", p.Stats().Used, p.Stats().Max, a, err)
	}
	for _, b := range bufs {
		b.Release()
	}
	a := apart(t, p, 0)
	if st := p.Stats(); st.Mapped+st.Lent > st.Max || st.Lent != minApart {
		t.Errorf("%+v", st)
	}
	b, err := a.Get(MaxBuf)
	if err != nil || b.Span().Slab.Kind() != Shared {
		t.Fatal(err)
	}
	a.Retire()
	if p.Stats().Lent == 0 {
		t.Error("a pool has gone whose buffer is out")
	}
	b.Release()
	if st := p.Stats(); st.Lent != 0 {
		t.Errorf("after the last buffer: %+v", st)
	}
	a.Retire()
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	q.Close()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if _, err := p.Apart(0, Shared); !errors.Is(err, ErrNoMemory) {
		t.Errorf("apart from a closed pool: %v", err)
	}
}

// What a pool apart gives back ends a wait for the pool that it is apart from; nothing is lent while that waits.
func TestTheEndOfAPoolApartEndsAWait(t *testing.T) {
	p := NewPool(minPool + 8<<20)
	a := apart(t, p, 8<<20)
	var mine []*Buf
	for range 8 {
		b, err := a.Get(MaxBuf)
		if err != nil {
			break
		}
		mine = append(mine, b)
	}
	q := p.Quota(p.max / 2)
	var bufs []*Buf
	var err error
	for err == nil {
		var b *Buf
		if b, err = q.Get(MaxBuf); err == nil {
			bufs = append(bufs, b)
		}
	}
	if !errors.Is(err, ErrNoMemory) || len(bufs) == 0 {
		t.Fatalf("%d buffers, %v", len(bufs), err)
	}
	there := make(chan struct{})
	q.Wait(func() { close(there) })
	if _, err := p.Apart(0, Shared); !errors.Is(err, ErrNoMemory) {
		t.Errorf("memory is lent that another waits for: %v", err)
	}
	for _, b := range mine {
		b.Release()
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	<-there
	b, err := q.Get(MaxBuf)
	if err != nil {
		t.Fatal(err)
	}
	b.Release()
	for _, b := range bufs {
		b.Release()
	}
	q.Close()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// A pool is shared while nothing of it is out, whatever it mapped before.
func TestAPoolCanBeSharedBeforeItIsUsed(t *testing.T) {
	p := NewPool(0)
	b, err := p.Get(4096)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Share(); !errors.Is(err, ErrInUse) || p.Kind() != Private {
		t.Errorf("a pool whose buffer is out: %v", err)
	}
	b.Release()
	if err := p.Share(); err != nil {
		t.Fatal(err)
	}
	if b, err = p.Get(4096); err != nil || b.Span().Slab.Kind() != Shared || p.Kind() != Shared {
		t.Fatal(err)
	}
	if err := p.Share(); err != nil {
		t.Error(err)
	}
	b.Release()
	if st := p.Stats(); st.Mapped != slabSize {
		t.Errorf("%d bytes are mapped", st.Mapped)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// A connection that has gone idle keeps a slab of each class, and what it took beyond that is there for all again.
func TestAPoolApartShrinks(t *testing.T) {
	p := NewPool(64 << 20)
	a := apart(t, p, 16<<20)
	q := a.Quota(16 << 20)
	bufs, err := q.GetAll(12<<20, nil)
	if err != nil {
		t.Fatal(err)
	}
	if lent := p.Stats().Lent; lent < 12<<20 {
		t.Errorf("%d bytes are lent for 12 MiB", lent)
	}
	a.Shrink()
	if st := a.Stats(); st.Used < 12<<20 {
		t.Errorf("memory that is in use was given back: %+v", st)
	}
	for _, b := range bufs {
		b.Release()
	}
	a.Shrink()
	if lent := p.Stats().Lent; lent != minApart {
		t.Errorf("%d bytes are lent to an idle pool", lent)
	}
	if st := a.Stats(); st.Mapped > minApart {
		t.Errorf("%+v", st)
	}
	if bufs, err = q.GetAll(12<<20, bufs[:0]); err != nil {
		t.Fatal(err)
	}
	for _, b := range bufs {
		b.Release()
	}
	q.Close()
	if err := errors.Join(a.Close(), p.Close()); err != nil {
		t.Error(err)
	}
	p.Shrink() // which is no pool apart
}
