package verbs

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// limit is for a hang, not for a slow machine.
const limit = 60 * time.Second

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}

// side is one end of a connection. The goroutine that asks for a completion polls.
type side struct {
	testing.TB
	d    *Device
	qp   transport.QP
	slab *mem.Slab
	wc   [16]transport.WC
	n, k int
}

func newSide(t testing.TB, d *Device) *side {
	t.Helper()
	slab, err := mem.NewSlab(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Register(slab); err != nil {
		t.Fatal(err)
	}
	x := &side{TB: t, d: d, slab: slab}
	t.Cleanup(func() {
		if x.qp != nil {
			_ = x.qp.Close(transport.Reason{})
			x.drain()
		}
		if err := errors.Join(d.Unregister(slab), slab.Close()); err != nil {
			t.Error(err)
		}
	})
	return x
}

func (x *side) newQP(o transport.QPOptions) {
	x.Helper()
	if x.qp != nil {
		_ = x.qp.Close(transport.Reason{})
		x.drain()
	}
	var err error
	if x.qp, err = x.d.NewQP(o); err != nil {
		x.Fatal(err)
	}
	x.n, x.k = 0, 0
}

func (x *side) at(off, n int) mem.Span { return mem.Span{Slab: x.slab, Off: off, Len: n} }

// join connects a to b, whose listener is at addr.
func join(a, b *side, addr string) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	l, err := b.d.Listen(ctx, addr)
	if err != nil {
		return err
	}
	p := transport.ConnParams{ReadsIn: 4, ReadsOut: 4}
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			err = r.Accept(ctx, b.qp, p)
		}
		accepted <- err
	}()
	_, err = a.d.Dial(ctx, l.Addr().String(), a.qp, p)
	if err != nil {
		cancel() // the request may never have come
	}
	return errors.Join(err, <-accepted, l.Close())
}

func connected(t testing.TB, kind string, o Options) (s *sim, a, b *side) {
	t.Helper()
	s, da, db := twoEnds(t, kind, o)
	a, b = newSide(t, da), newSide(t, db)
	a.newQP(transport.QPOptions{Sends: 64, Recvs: 64})
	b.newQP(transport.QPOptions{Sends: 64, Recvs: 64})
	if err := join(a, b, "10.0.0.2:0"); err != nil {
		t.Fatal(err)
	}
	return s, a, b
}

// next is the next completion, or the end.
func (x *side) next() (transport.WC, error) {
	for x.k == x.n {
		var err error
		if x.n, err = x.qp.Poll(x.wc[:]); err != nil {
			x.n, x.k = 0, 0
			return transport.WC{}, err
		}
		if x.k = 0; x.n == 0 {
			if err := x.qp.Wait(background); err != nil {
				return transport.WC{}, err
			}
		}
	}
	x.k++
	return x.wc[x.k-1], nil
}

var background = context.Background()

// parkedNext begins to wait for the next completion, and returns when that has come to a rest.
func (x *side) parkedNext() <-chan error {
	got := make(chan error, 1)
	go func() {
		wc, err := x.next()
		got <- errors.Join(err, wc.Err)
	}()
	for q := x.qp.(*QP); !q.parked.Load() && len(got) == 0; {
		runtime.Gosched()
	}
	return got
}

// drain polls to the end and returns it.
func (x *side) drain() (wcs []transport.WC, last error) {
	for {
		wc, err := x.next()
		if err != nil {
			return wcs, err
		}
		wcs = append(wcs, wc)
	}
}

func (x *side) post(wrs ...transport.WR) error {
	_, err := x.qp.Post(wrs)
	return err
}

// must is a completion of this request, and a success.
func (x *side) must(op transport.Op, token uint64) transport.WC {
	x.Helper()
	wc, err := x.next()
	if err != nil || wc.Err != nil || wc.Op != op || wc.Token != token {
		x.Fatalf("want operation %d, token %d; have %+v, %v", op, token, wc, err)
	}
	return wc
}

func (x *side) mustPost(wrs ...transport.WR) {
	x.Helper()
	if err := x.post(wrs...); err != nil {
		x.Fatal(err)
	}
}

func (x *side) mustRecv(token uint64, s mem.Span) {
	x.Helper()
	if _, err := x.qp.PostRecv([]transport.Recv{{Token: token, Buf: s}}); err != nil {
		x.Fatal(err)
	}
}
