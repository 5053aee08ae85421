package lockstep

import (
	"errors"
	"testing"

	"go.uber.org/goleak"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/transporttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// end makes a side with two receives of 64 bytes and 64 bytes to send from.
func end(t *testing.T, dev transport.Device) (*Conn, mem.Span) {
	t.Helper()
	slab, err := mem.NewSlab(4096)
	if err != nil {
		t.Fatal(err)
	}
	if err := dev.Register(slab); err != nil {
		t.Fatal(err)
	}
	qp, err := dev.NewQP(transport.QPOptions{Sends: 4, Recvs: 2})
	if err != nil {
		t.Fatal(err)
	}
	cut := func(i int) mem.Span { return mem.Span{Slab: slab, Off: 64 * i, Len: 64} }
	c, err := New(qp, []mem.Span{cut(0), cut(1)})
	if err != nil {
		t.Fatal(err)
	}
	return c, cut(2)
}

func connected(t *testing.T) (a, b *Conn, out mem.Span) {
	t.Helper()
	da, db := transporttest.Twin()
	t.Cleanup(func() {
		if err := errors.Join(da.Close(), db.Close()); err != nil {
			t.Error(err)
		}
	})
	a, out = end(t, da)
	b, _ = end(t, db)
	l, err := db.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		r, err := l.Accept(t.Context())
		if err == nil {
			err = r.Accept(t.Context(), b.QP, transport.ConnParams{})
		}
		done <- err
	}()
	if _, err := da.Dial(t.Context(), l.Addr().String(), a.QP, transport.ConnParams{}); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return a, b, out
}

func send(t *testing.T, c *Conn, out mem.Span, text string) {
	t.Helper()
	n := copy(out.Bytes(), text)
	if err := c.Do(t.Context(), transport.WR{Op: transport.OpSend, Local: []mem.Span{out.Cut(0, n)}}); err != nil {
		t.Fatal(err)
	}
}

func TestMessagesComeInOrderAndBuffersComeBack(t *testing.T) {
	a, b, out := connected(t)
	for round := range 3 {
		send(t, a, out, "one")
		send(t, a, out, "three")
		for _, want := range []string{"one", "three"} {
			got, i, err := b.Recv(t.Context())
			if err != nil || string(got) != want {
				t.Fatalf("round %d: %q, %v", round, got, err)
			}
			if err := b.Repost(i); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.Recv(t.Context()); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("after the peer's close: %v", err)
	}
}

func TestDoSaysWhyTheConnectionEnded(t *testing.T) {
	a, b, out := connected(t)
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := a.Recv(t.Context()); !errors.Is(err, transport.ErrClosed) {
		t.Fatalf("%v", err)
	}
	if err := a.Do(t.Context(), transport.WR{Op: transport.OpSend, Local: []mem.Span{out}}); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("%v", err)
	}
}
