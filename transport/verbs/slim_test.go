package verbs

import (
	"errors"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// Where each connection has memory regions of its own, one that has proved nothing locks the memory that it uses, and not all there is once
// more: those that never log in keep neither others out nor a pool from growing.
func TestAConnectionThatHasProvedNothingLocksTheMemoryThatItUses(t *testing.T) {
	s, da, db := twoEnds(t, "siw", Options{})
	pool := mem.NewPool(64 << 20)
	if err := pool.OnSlab(db); err != nil {
		t.Fatal(err)
	}
	quota := pool.Quota(48 << 20)
	bufs, err := quota.GetAll(3*mem.SlabSize, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.lock(8)
	var as, bs []*side
	hello := func(k int, token uint64) {
		t.Helper()
		bs[k].mustRecv(token, bufs[0].Span())
		as[k].mustPost(transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: token})
		as[k].must(transport.OpSend, token)
		bs[k].must(transport.OpRecv, token)
	}
	for k := range 4 {
		a, b := &side{TB: t, d: da}, &side{TB: t, d: db}
		a.newQP(transport.QPOptions{})
		b.newQP(transport.QPOptions{Slim: true})
		as, bs = append(as, a), append(bs, b)
		if err := join(a, b, "10.0.0.2:0"); err != nil {
			t.Fatal(err)
		}
		hello(k, 1)
	}
	widen := func(k int) error { return bs[k].qp.(transport.Widener).Widen() }
	if err := widen(0); err != nil {
		t.Errorf("one that has logged in: %v", err)
	}
	if bufs, err = quota.GetAll(mem.SlabSize, bufs); err != nil {
		t.Fatalf("the pool grows: %v", err)
	}
	if err := widen(1); !errors.Is(err, mem.ErrNoRoom) || !strings.Contains(err.Error(), "LimitMEMLOCK=") {
		t.Errorf("another, for which there is no room: %v", err)
	}
	for k := range bs {
		hello(k, 2)
	}
	for _, x := range append(as, bs...) {
		_ = x.qp.Close(transport.Reason{})
		x.drain()
	}
	for _, b := range bufs {
		b.Release()
	}
	quota.Close()
	if err := pool.Close(); err != nil {
		t.Error(err)
	}
}

// While a connection is given all memory the lock of all connections' memory is held for one slab at a time, and nothing is shown to its
// work requests before all of it is there: where the room ends it goes on as it was, and no request names what is taken back.
func TestWhatDoesNotFitIsShownToNoRequest(t *testing.T) {
	s, da, db := twoEnds(t, "siw", Options{})
	pool := mem.NewPool(64 << 20)
	if err := pool.OnSlab(db); err != nil {
		t.Fatal(err)
	}
	quota := pool.Quota(48 << 20)
	bufs, err := quota.GetAll(4*mem.SlabSize, nil)
	if err != nil {
		t.Fatal(err)
	}
	a, b := &side{TB: t, d: da}, &side{TB: t, d: db}
	a.newQP(transport.QPOptions{})
	b.newQP(transport.QPOptions{Slim: true})
	if err := join(a, b, "10.0.0.2:0"); err != nil {
		t.Fatal(err)
	}
	hello := func(token uint64, in *mem.Buf) {
		t.Helper()
		b.mustRecv(token, in.Span())
		a.mustPost(transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: token})
		a.must(transport.OpSend, token)
		b.must(transport.OpRecv, token)
	}
	hello(1, bufs[0])
	q := b.qp.(*QP)
	shown := func() int { return len(*q.dom.local.Load()) }
	registered := func() (n int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, o := range s.obj {
			if mr, ok := o.(*simMR); ok && mr.pd == s.obj[q.dom.pd] {
				n++
			}
		}
		return n
	}
	if shown() != 1 || registered() != 1 {
		t.Fatalf("%d regions are shown and %d registered of the one in use", shown(), registered())
	}
	for want := 2; want <= 3; want++ {
		if done, err := db.mem.widenSome(q.dom); done || err != nil || registered() != want || shown() != 1 {
			t.Errorf("a step: done %v, %v, %d regions, %d shown", done, err, registered(), shown())
		}
	}
	other := bufs[len(bufs)-1]
	for _, b := range bufs { // of a slab that is registered and not shown
		if _, is := (*q.dom.coming.Load())[b.Span().Slab.ID()]; is {
			other = b
		}
	}
	hello(2, other)
	if shown() != 2 || registered() != 3 {
		t.Errorf("%d regions are shown and %d registered after a request has used one that came", shown(), registered())
	}
	s.lock(0)
	if err := q.Widen(); !errors.Is(err, mem.ErrNoRoom) {
		t.Errorf("no room for the last: %v", err)
	}
	if shown() != 2 || registered() != 2 {
		t.Errorf("%d regions are shown and %d registered, of those in use, where there is no room for all", shown(), registered())
	}
	hello(3, other)
	s.lock(99)
	if err := q.Widen(); err != nil || shown() != len(db.mem.slabs) || registered() != shown() {
		t.Errorf("with room: %v, %d regions are shown of %d", err, shown(), registered())
	}
	hello(4, bufs[1])
	for _, x := range []*side{a, b} {
		_ = x.qp.Close(transport.Reason{})
		x.drain()
	}
	for _, b := range bufs {
		b.Release()
	}
	quota.Close()
	if err := pool.Close(); err != nil {
		t.Error(err)
	}
}

// A slab that goes, and the connection that ends, while that is given all memory take with them what was not shown yet.
func TestASlabGoesWhileAConnectionIsGivenAllMemory(t *testing.T) {
	_, da, db := twoEnds(t, "siw", Options{})
	var slabs []*mem.Slab
	for range 3 {
		slab, err := mem.NewSlab(64 << 10)
		if err == nil {
			err = db.Register(slab)
		}
		if err != nil {
			t.Fatal(err)
		}
		slabs = append(slabs, slab)
	}
	a, b := &side{TB: t, d: da}, &side{TB: t, d: db}
	a.newQP(transport.QPOptions{})
	b.newQP(transport.QPOptions{Slim: true})
	if err := join(a, b, "10.0.0.2:0"); err != nil {
		t.Fatal(err)
	}
	q := b.qp.(*QP)
	for range 2 {
		if done, err := db.mem.widenSome(q.dom); done || err != nil {
			t.Fatal(done, err)
		}
	}
	for _, slab := range slabs[:2] {
		if err := errors.Join(db.Unregister(slab), slab.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(*q.dom.coming.Load()); n > 1 {
		t.Errorf("%d regions, of one slab", n)
	}
	for _, x := range []*side{a, b} { // as it is: twoEnds looks for what is left
		_ = x.qp.Close(transport.Reason{})
		x.drain()
	}
	if err := errors.Join(db.Unregister(slabs[2]), slabs[2].Close()); err != nil {
		t.Error(err)
	}
}
