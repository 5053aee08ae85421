package mem

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func mustPanic(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s did not panic", what)
		}
	}()
	f()
}

func TestMisuseOfAHandlePanics(t *testing.T) {
	p := NewPool(0)
	b, err := p.Get(100)
	if err != nil {
		t.Fatal(err)
	}
	if len(b.Bytes()) != 100 || cap(b.Bytes()) != 100 || b.Span().Off%PageSize != 0 {
		t.Fatalf("len %d cap %d off %d", len(b.Bytes()), cap(b.Bytes()), b.Span().Off)
	}
	mustPanic(t, "cut beyond the end", func() { b.Span().Cut(50, 51) })
	mustPanic(t, "cut before the start", func() { b.Span().Cut(-1, 1) })
	b.Release()
	mustPanic(t, "second release", b.Release)
	mustPanic(t, "use after release", func() { b.Bytes() })
	mustPanic(t, "get of nothing", func() { _, _ = p.Get(0) })
	mustPanic(t, "get of too much", func() { _, _ = p.Get(MaxBuf + 1) })
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestSlabRegistrationFailureFailsTheGet(t *testing.T) {
	p := NewPool(0)
	boom := errors.New("boom")
	if err := p.OnSlab(&registrar{fail: boom}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Get(1); !errors.Is(err, boom) {
		t.Fatalf("got %v", err)
	}
	if st := p.Stats(); st.Mapped != 0 || st.Used != 0 {
		t.Fatalf("a failed slab is counted: %+v", st)
	}
}

func TestOnSlabSeesEverySlab(t *testing.T) {
	p := NewPool(0)
	reg := &registrar{seen: map[uint32]int{}}
	seen := reg.seen
	bufs := get(t, p.Quota(8<<20), 4096)
	if err := p.OnSlab(reg); err != nil {
		t.Fatal(err)
	}
	bufs = append(bufs, get(t, p.Quota(8<<20), MaxBuf)...)
	for _, b := range bufs {
		if seen[b.Span().Slab.ID()] != 1 {
			t.Errorf("slab %d was registered %d times", b.Span().Slab.ID(), seen[b.Span().Slab.ID()])
		}
		b.Release()
	}
}

// registrar counts what it knows.
type registrar struct {
	seen map[uint32]int
	fail error // of Register
	busy error // of Unregister
}

func (r *registrar) Register(s *Slab) error {
	if r.fail == nil {
		r.seen[s.ID()]++
	}
	return r.fail
}

func (r *registrar) Unregister(s *Slab) error {
	if r.busy == nil {
		r.seen[s.ID()]--
	}
	return r.busy
}

func (r *registrar) known() (n int) {
	for _, k := range r.seen {
		n += k
	}
	return n
}

func TestEverySlabIsUnregisteredBeforeItIsUnmapped(t *testing.T) {
	p := NewPool(0)
	first, second := &registrar{seen: map[uint32]int{}}, &registrar{seen: map[uint32]int{}}
	for _, r := range []*registrar{first, second} {
		if err := p.OnSlab(r); err != nil {
			t.Fatal(err)
		}
	}
	release(get(t, p.Quota(8<<20), 4096))
	release(get(t, p.Quota(8<<20), MaxBuf))
	if first.known() != 2 || second.known() != 2 {
		t.Fatalf("%d and %d slabs are registered", first.known(), second.known())
	}
	if err := p.Forget(first); err != nil || first.known() != 0 || second.known() != 2 {
		t.Fatalf("after Forget: %v, %d and %d slabs", err, first.known(), second.known())
	}
	if err := p.Close(); err != nil || second.known() != 0 {
		t.Fatalf("after Close: %v, %d slabs", err, second.known())
	}
}

func TestASlabThatAProviderKeepsStaysMapped(t *testing.T) {
	p := NewPool(0)
	r := &registrar{seen: map[uint32]int{}, busy: errors.New("busy")}
	if err := p.OnSlab(r); err != nil {
		t.Fatal(err)
	}
	bufs := get(t, p.Quota(8<<20), 4096)
	m := bufs[0].Bytes()
	release(bufs)
	if err := p.Close(); !errors.Is(err, r.busy) {
		t.Fatalf("closed: %v", err)
	}
	m[0] = 1 // an adapter may do this still
}

func get(t *testing.T, s *Quota, n int) []*Buf {
	t.Helper()
	bufs, err := s.GetAll(n, nil)
	if err != nil {
		t.Fatalf("GetAll(%d): %v", n, err)
	}
	return bufs
}

func release(bufs []*Buf) {
	for _, b := range bufs {
		b.Release()
	}
}

// drain takes everything the pool has through as many quotas as it needs.
func drain(t *testing.T, p *Pool, leave int64) (bufs []*Buf) {
	t.Helper()
	for {
		b, err := p.Get(4096)
		if err != nil {
			break
		}
		bufs = append(bufs, b)
	}
	for _, n := range []int{16 << 10, 64 << 10, 256 << 10, 1 << 20} {
		for {
			b, err := p.Get(n)
			if err != nil {
				break
			}
			bufs = append(bufs, b)
		}
	}
	if used := p.Used(); used+leave != p.Stats().Max {
		t.Fatalf("drained to %d of %d bytes, %d should be left", used, p.Stats().Max, leave)
	}
	return bufs
}

func TestEveryClassHasItsSlabWhateverOthersTake(t *testing.T) {
	p := NewPool(0)
	var bufs []*Buf
	for {
		b, err := p.Get(4096)
		if err != nil {
			break
		}
		bufs = append(bufs, b)
	}
	b, err := p.Get(MaxBuf)
	if err != nil {
		t.Fatalf("small buffers crowded the large out: %v", err)
	}
	b.Release()
	release(bufs)
}

func TestGetAllFallsBackToSmallerPieces(t *testing.T) {
	p := NewPool(0)
	var big []*Buf
	for range slabSize / MaxBuf {
		b, err := p.Get(MaxBuf)
		if err != nil {
			t.Fatal(err)
		}
		big = append(big, b)
	}
	s := p.Quota(8 << 20)
	bufs := get(t, s, 3<<20+17)
	total := 0
	for _, b := range bufs {
		total += b.Len()
	}
	if total != 3<<20+17 || len(bufs) < 12 {
		t.Fatalf("%d bytes in %d pieces", total, len(bufs))
	}
	release(append(bufs, big...))
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestAQuotaStopsAtItsLimit(t *testing.T) {
	p := NewPool(64 << 20)
	s := p.Quota(100 << 10)
	bufs := get(t, s, 90<<10) // 64 + 16 + 16 KiB: rounding must not be what fails it
	if _, err := s.Get(16 << 10); !errors.Is(err, ErrNoMemory) {
		t.Fatalf("beyond the limit: %v", err)
	}
	called := make(chan struct{})
	s.Wait(func() { close(called) })
	select {
	case <-called:
		t.Fatal("called back with nothing freed")
	default:
	}
	release(bufs)
	<-called
	b, err := s.Get(16 << 10)
	if err != nil {
		t.Fatal(err)
	}
	b.Release()
	if _, err := s.GetAll(100<<10+1, nil); !errors.Is(err, ErrTooLarge) {
		t.Fatalf("more than the limit: %v", err)
	}
	if _, err := s.Get(256 << 10); !errors.Is(err, ErrTooLarge) {
		t.Fatalf("more than the limit: %v", err)
	}
	s.Close()
	if _, err := s.Get(1); !errors.Is(err, ErrClosed) {
		t.Fatalf("closed quota: %v", err)
	}
}

func TestWaitersAreServedOldestFirstAndWithWhatTheyAskedFor(t *testing.T) {
	p := NewPool(0)
	all := drain(t, p, 0)
	var order []int
	called := make(chan int, 3)
	quotas := make([]*Quota, 3)
	for i := range quotas {
		quotas[i] = p.Quota(4 << 20)
		if _, err := quotas[i].GetAll(1<<20, nil); !errors.Is(err, ErrNoMemory) {
			t.Fatal(err)
		}
		quotas[i].Wait(func() { called <- i })
	}
	thief := p.Quota(8 << 20)
	for i, b := range all {
		b.Release()
		for len(order) < 3-p.Stats().Waiting {
			order = append(order, <-called)
		}
		if stolen, err := thief.Get(4096); err == nil && len(order) < 3 {
			t.Fatalf("release %d: a newcomer got memory while %d quotas waited", i, 3-len(order))
		} else if err == nil {
			stolen.Release()
		}
	}
	if len(order) != 3 || order[0] != 0 || order[1] != 1 || order[2] != 2 {
		t.Fatalf("served in order %v", order)
	}
	for _, s := range quotas {
		release(get(t, s, 1<<20))
		s.Close()
	}
	thief.Close()
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestWaitReturnsWhatItHadWhenTakenBack(t *testing.T) {
	p := NewPool(0)
	all := drain(t, p, 0)
	s := p.Quota(8 << 20)
	_, err := s.GetAll(2<<20, nil)
	if !errors.Is(err, ErrNoMemory) {
		t.Fatal(err)
	}
	s.Wait(func() { t.Error("called after it was taken back") })
	release(all[:10])
	s.Wait(nil)
	release(all[10:])
	if st := p.Stats(); st.Used != 0 || st.Waiting != 0 {
		t.Fatalf("left: %+v", st)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
}

// A callback takes a lock that whoever releases, trims, waits or closes may hold.
func TestACallbackMayWantTheCallersLock(t *testing.T) {
	for name, f := range map[string]func(p *Pool, all []*Buf, s, other *Quota){
		"a release":             func(_ *Pool, all []*Buf, _, _ *Quota) { release(all) },
		"a release of a quota":  func(_ *Pool, all []*Buf, _, other *Quota) { release(all) },
		"a wait":                func(_ *Pool, all []*Buf, _, other *Quota) { release(all); other.Wait(func() {}) },
		"a trim, then a close":  func(_ *Pool, all []*Buf, _, other *Quota) { other.Trim(); release(all); other.Close() },
		"a Get that hands back": func(_ *Pool, all []*Buf, _, other *Quota) { release(all); _, _ = other.GetAll(8<<20, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			p := NewPool(0)
			s, other := p.Quota(4<<20), p.Quota(4<<20)
			b, err := other.Get(4096)
			if err != nil {
				t.Fatal(err)
			}
			all := append(drain(t, p, 0), b)
			if _, err := s.Get(4096); !errors.Is(err, ErrNoMemory) {
				t.Fatal(err)
			}
			var mu sync.Mutex
			called := make(chan struct{})
			mu.Lock()
			s.Wait(func() {
				mu.Lock()
				defer mu.Unlock()
				close(called)
			})
			f(p, all, s, other)
			mu.Unlock()
			<-called
		})
	}
}

// Two owners, each with a lock of its own, release to each other while they hold it.
func TestTwoOwnersServeEachOther(t *testing.T) {
	p := NewPool(0)
	all := drain(t, p, 0)
	release(all[len(all)-2:]) // of 1 MiB each
	all = all[:len(all)-2]
	type owner struct {
		sync.Mutex
		s    *Quota
		left int
		done chan struct{}
	}
	owners := [3]*owner{}
	var try func(o *owner)
	try = func(o *owner) {
		o.Lock()
		defer o.Unlock()
		for o.left > 0 {
			bufs, err := o.s.GetAll(1<<20, nil)
			if err != nil {
				o.s.Wait(func() { try(o) })
				return
			}
			o.left--
			release(bufs)
			o.s.Trim()
		}
		select {
		case <-o.done:
		default:
			close(o.done)
		}
	}
	for i := range owners {
		owners[i] = &owner{s: p.Quota(2 << 20), left: 500, done: make(chan struct{})}
	}
	for _, o := range owners {
		go try(o)
	}
	for _, o := range owners {
		<-o.done
	}
	release(all)
}

// Where only a larger buffer is free it is set aside, and it serves the request that waited for a small one.
func TestALargerBufferEndsTheWaitForASmallOne(t *testing.T) {
	for name, get := range map[string]func(*Quota) error{
		"Get":    func(s *Quota) error { _, err := s.Get(4096); return err },
		"GetAll": func(s *Quota) error { _, err := s.GetAll(5000, nil); return err },
	} {
		t.Run(name, func(t *testing.T) {
			p := NewPool(0)
			all := drain(t, p, 0)
			s := p.Quota(4 << 20)
			if err := get(s); !errors.Is(err, ErrNoMemory) {
				t.Fatal(err)
			}
			called := make(chan struct{})
			s.Wait(func() { close(called) })
			for _, b := range all {
				if classes[b.class] == MaxBuf {
					b.Release()
					break
				}
			}
			<-called
			if err := get(s); err != nil {
				t.Errorf("after the wait: %v", err)
			}
		})
	}
}

// What was set aside for a waiter that wants it no longer goes to the next.
func TestAWaitTakenBackAfterItsCallHandsOn(t *testing.T) {
	p := NewPool(0)
	all := drain(t, p, 0)
	first, second := p.Quota(4<<20), p.Quota(4<<20)
	calls := [2]chan struct{}{make(chan struct{}), make(chan struct{})}
	for i, s := range []*Quota{first, second} {
		if _, err := s.GetAll(1<<20, nil); !errors.Is(err, ErrNoMemory) {
			t.Fatal(err)
		}
		s.Wait(func() { close(calls[i]) })
	}
	for i, b := range all {
		b.Release()
		if p.Stats().Waiting == 1 {
			all = all[i+1:]
			break
		}
	}
	<-calls[0]
	first.Wait(nil)
	<-calls[1]
	release(get(t, second, 1<<20))
	release(all)
}

func TestWaitSeesMemoryFreedBeforeIt(t *testing.T) {
	p := NewPool(0)
	all := drain(t, p, 0)
	s := p.Quota(1 << 20)
	if _, err := s.Get(4096); !errors.Is(err, ErrNoMemory) {
		t.Fatal(err)
	}
	release(all)
	called := make(chan struct{})
	s.Wait(func() { close(called) })
	<-called
}

func TestCloseRefusesWhileBuffersAreOut(t *testing.T) {
	p := NewPool(0)
	b, err := p.Quota(1 << 20).Get(1)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err == nil {
		t.Fatal("closed under a buffer")
	}
	b.Release()
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Get(1); !errors.Is(err, ErrClosed) {
		t.Fatalf("after Close: %v", err)
	}
}

// TestNobodyStarves has more demand than memory: each worker needs a given number of transfers and waits its turn.
func TestNobodyStarves(t *testing.T) {
	p := NewPool(0)
	var wg sync.WaitGroup
	var peak, now atomic.Int64
	for w := range 12 {
		wg.Go(func() {
			s := p.Quota(8 << 20)
			defer s.Close()
			wake := make(chan struct{}, 1)
			for i := range 60 {
				n := 1 << (12 + (w*7+i)%11)
				bufs, err := s.GetAll(n, nil)
				for errors.Is(err, ErrNoMemory) {
					s.Wait(func() { wake <- struct{}{} })
					<-wake
					bufs, err = s.GetAll(n, nil)
				}
				if err != nil {
					t.Error(err)
					return
				}
				v := now.Add(int64(n))
				for m := peak.Load(); v > m && !peak.CompareAndSwap(m, v); m = peak.Load() {
				}
				for _, b := range bufs {
					b.Bytes()[0] = byte(w)
				}
				for _, b := range bufs {
					if b.Bytes()[0] != byte(w) {
						t.Error("a buffer has two owners")
					}
				}
				now.Add(-int64(n))
				release(bufs)
			}
		})
	}
	wg.Wait()
	if st := p.Stats(); st.Used != 0 || st.Waiting != 0 {
		t.Fatalf("left: %+v", st)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestTheHotPathAllocatesNothing(t *testing.T) {
	s := NewPool(0).Quota(8 << 20)
	into := make([]*Buf, 0, 8)
	n := testing.AllocsPerRun(1000, func() {
		bufs, err := s.GetAll(128<<10, into[:0])
		if err != nil {
			t.Fatal(err)
		}
		release(bufs)
	})
	if n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

// TestModel drives quotas at random and holds the pool against a plain account of who has what.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := NewPool(0)
		type out struct {
			bufs []*Buf
			id   uint64
		}
		type client struct {
			s       *Quota
			limit   int64
			outs    []out
			pending int // bytes of the GetAll that is waited for
			called  chan struct{}
		}
		var clients []*client
		for range rapid.IntRange(1, 4).Draw(rt, "quotas") {
			limit := int64(rapid.IntRange(1, 10<<20).Draw(rt, "limit"))
			c := &client{s: p.Quota(limit), limit: max(limit, 4096) &^ 4095}
			clients = append(clients, c)
		}
		var id uint64
		take := func(c *client, n int) bool {
			bufs, err := c.s.GetAll(n, nil)
			if errors.Is(err, ErrTooLarge) && int64(n) <= c.limit {
				rt.Fatalf("%d bytes refused for good below the limit of %d", n, c.limit)
			}
			if err != nil {
				return false
			}
			id++
			total := 0
			for _, b := range bufs {
				total += b.Len()
				mem := b.Bytes()
				if len(mem) >= 8 {
					binary.LittleEndian.PutUint64(mem, id)
				}
			}
			if total != n {
				rt.Fatalf("%d bytes for %d", total, n)
			}
			c.outs = append(c.outs, out{bufs, id})
			return true
		}
		drop := func(c *client, i int) {
			o := c.outs[i]
			for _, b := range o.bufs {
				if mem := b.Bytes(); len(mem) >= 8 && binary.LittleEndian.Uint64(mem) != o.id {
					rt.Fatal("a buffer has two owners")
				}
				b.Release()
			}
			c.outs = append(c.outs[:i], c.outs[i+1:]...)
		}
		settle := func(c *client, patience <-chan time.Time) {
			if c.pending == 0 {
				return
			}
			select {
			case <-c.called:
				n := c.pending
				c.pending = 0
				if !take(c, n) {
					rt.Fatalf("GetAll(%d) failed right after its Wait callback", n)
				}
			case <-patience:
			}
		}
		now := make(chan time.Time)
		close(now)
		check := func() {
			var used int64
			for _, c := range clients {
				var held int64
				for _, o := range c.outs {
					for _, b := range o.bufs {
						held += int64(classes[b.class])
					}
				}
				if got := c.s.Held(); got != held || got > c.limit {
					rt.Fatalf("a quota holds %d, counts %d, may hold %d", held, got, c.limit)
				}
				used += held
			}
			if st := p.Stats(); st.Used != used || st.Mapped > st.Max {
				rt.Fatalf("%d bytes are out, stats %+v", used, st)
			}
		}
		pick := func() *client { return clients[rapid.IntRange(0, len(clients)-1).Draw(rt, "quota")] }
		rt.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) { check() },
			"take": func(rt *rapid.T) {
				c := pick()
				if c.pending == 0 {
					take(c, rapid.IntRange(1, 6<<20).Draw(rt, "bytes"))
				}
			},
			"take or wait": func(rt *rapid.T) {
				c := pick()
				n := rapid.IntRange(1, 6<<20).Draw(rt, "bytes")
				if c.pending > 0 || int64(n) > c.limit-4096 || take(c, n) {
					return
				}
				called := make(chan struct{})
				c.pending, c.called = n, called
				c.s.Wait(func() { close(called) })
			},
			"release": func(rt *rapid.T) {
				c := pick()
				if len(c.outs) > 0 {
					drop(c, rapid.IntRange(0, len(c.outs)-1).Draw(rt, "which"))
				}
				for _, c := range clients {
					settle(c, now)
				}
			},
			"trim": func(*rapid.T) { pick().s.Trim() },
		})
		for again := true; again; { // everything released: everybody who waits must have been served
			again = false
			for _, c := range clients {
				for len(c.outs) > 0 {
					drop(c, 0)
					again = true
				}
				settle(c, now)
			}
		}
		for _, c := range clients {
			settle(c, time.After(time.Minute))
			for len(c.outs) > 0 {
				drop(c, 0)
			}
		}
		for _, c := range clients {
			if c.pending > 0 {
				rt.Fatal("a quota waits although all memory is free")
			}
			c.s.Close()
		}
		if err := p.Close(); err != nil {
			rt.Fatal(err)
		}
	})
}

func BenchmarkQuota(b *testing.B) {
	s := NewPool(0).Quota(8 << 20)
	b.ReportAllocs()
	for b.Loop() {
		buf, err := s.Get(4096)
		if err != nil {
			b.Fatal(err)
		}
		buf.Release()
	}
}

// Await gets what comes free, and gives up with its context what was set aside for it.
func TestAwait(t *testing.T) {
	p := NewPool(minPool)
	holder, s := p.Quota(64<<10), p.Quota(1<<20)
	held, err := s.Get(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.Await(ctx, 4096); !errors.Is(err, ErrNoMemory) {
		t.Errorf("got %v", err)
	}
	got := make(chan *Buf)
	go func() {
		b, err := s.Await(context.Background(), 4096)
		if err != nil {
			t.Error(err)
		}
		got <- b
	}()
	held.Release()
	(<-got).Release()
	if _, err := holder.Await(context.Background(), 1<<20); !errors.Is(err, ErrTooLarge) {
		t.Errorf("more than the quota: %v", err)
	}
	holder.Close()
	s.Close()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
