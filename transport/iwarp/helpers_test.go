package iwarp

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testTimeout = 60 * time.Second

func testCtx(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

func slab(t testing.TB, n int) mem.Span {
	t.Helper()
	s, err := mem.NewSlab(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return mem.Span{Slab: s, Len: n}
}

// end is one side of a test connection.
type end struct {
	t   testing.TB
	dev *Device
	qp  *QP
	wc  [64]transport.WC
	got []transport.WC
}

type pairOptions struct {
	a, b   Options
	qo     transport.QPOptions
	source func(uint64) (mem.Span, bool) // of b's receives
	pa, pb transport.ConnParams
}

// pair connects two QPs over loopback; a dials.
func pair(t testing.TB, o pairOptions) (a, b *end) {
	t.Helper()
	ctx := testCtx(t)
	if o.qo.Sends == 0 {
		o.qo = transport.QPOptions{Sends: 64, Recvs: 64}
	}
	if o.pa.ReadsIn == 0 {
		o.pa.ReadsIn, o.pa.ReadsOut = 16, 16
	}
	if o.pb.ReadsIn == 0 {
		o.pb.ReadsIn, o.pb.ReadsOut = 16, 16
	}
	mk := func(opt Options) *end {
		d := New(opt)
		q, err := d.NewQP(o.qo)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
		return &end{t: t, dev: d, qp: q.(*QP)}
	}
	a, b = mk(o.a), mk(o.b)
	if o.source != nil && !b.qp.RecvMemory(o.source) {
		t.Fatal("receives without memory are not taken")
	}
	t.Cleanup(func() { // both before either device waits for the other's end of the stream
		_ = a.qp.Close(transport.Reason{})
		_ = b.qp.Close(transport.Reason{})
	})
	ln, err := b.dev.Listen(ctx, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	errs := make(chan error, 1)
	go func() {
		r, err := ln.Accept(ctx)
		if err == nil {
			err = r.Accept(ctx, b.qp, o.pb)
		}
		errs <- err
	}()
	if _, err := a.dev.Dial(ctx, ln.Addr().String(), a.qp, o.pa); err != nil {
		t.Fatal("dial:", err)
	}
	if err := <-errs; err != nil {
		t.Fatal("accept:", err)
	}
	return a, b
}

// next returns the next completion.
func (e *end) next() transport.WC {
	e.t.Helper()
	ctx := testCtx(e.t)
	for len(e.got) == 0 {
		n, err := e.qp.Poll(e.wc[:])
		if err != nil {
			e.t.Fatal("poll:", err)
		}
		if n > 0 {
			e.got = append(e.got, e.wc[:n]...)
			break
		}
		if err := e.qp.Wait(ctx); err != nil {
			e.t.Fatal("wait:", err)
		}
	}
	wc := e.got[0]
	e.got = e.got[1:]
	return wc
}

// ok is next, and it must be a success of op and token.
func (e *end) ok(op transport.Op, token uint64) transport.WC {
	e.t.Helper()
	wc := e.next()
	if wc.Err != nil || wc.Op != op || wc.Token != token {
		e.t.Fatalf("completion %+v, want op %d token %d", wc, op, token)
	}
	return wc
}

// drain polls to the end and returns the reason.
func (e *end) drain() error {
	e.t.Helper()
	ctx := testCtx(e.t)
	for {
		n, err := e.qp.Poll(e.wc[:])
		e.got = append(e.got, e.wc[:n]...)
		if err != nil {
			return err
		}
		if n == 0 {
			if err := e.qp.Wait(ctx); err != nil {
				e.t.Fatal("wait:", err)
			}
		}
	}
}

func (e *end) post(wrs ...transport.WR) {
	e.t.Helper()
	if n, err := e.qp.Post(wrs); err != nil {
		e.t.Fatalf("post %d of %d: %v", n, len(wrs), err)
	}
}

func (e *end) recv(token uint64, s mem.Span) {
	e.t.Helper()
	if _, err := e.qp.PostRecv([]transport.Recv{{Token: token, Buf: s}}); err != nil {
		e.t.Fatal(err)
	}
}

func (e *end) window() transport.Window {
	e.t.Helper()
	w, err := e.qp.NewWindow()
	if err != nil {
		e.t.Fatal(err)
	}
	return w
}

func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i)*7 + byte(i>>8)*13 + seed
	}
}

func (h *ddpHeader) len() int {
	if h.tagged {
		return taggedLen
	}
	return untaggedLen
}
