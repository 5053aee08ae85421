package verbs

import (
	"errors"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/internal/mem"
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
	share := pool.Share(48 << 20)
	bufs, err := share.GetAll(3*mem.SlabSize, nil)
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
	if bufs, err = share.GetAll(mem.SlabSize, bufs); err != nil {
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
	share.Close()
	if err := pool.Close(); err != nil {
		t.Error(err)
	}
}
