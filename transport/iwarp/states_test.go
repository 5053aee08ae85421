package iwarp

import (
	"errors"
	"net"
	"testing"

	"github.com/sluice-storage/sluice/internal/state"
	"github.com/sluice-storage/sluice/transport"
)

// What a transition must never do: begin again what has ended, send before a connection is there, or deliver behind an end.
func TestAnIllegalMoveOfAQueuePairPanics(t *testing.T) {
	panics := func(f func()) (is bool) {
		defer func() { _, is = recover().(*state.IllegalError) }()
		f()
		return false
	}
	for to := idle; to <= abandoned; to++ {
		for _, from := range []phase{ended, abandoned} {
			l := life{}
			l.p.Store(uint32(from))
			if !panics(func() { l.moveLocked(to) }) || l.is() != from {
				t.Errorf("%s goes to %s", phases.Name(from), phases.Name(to))
			}
		}
	}
	if l := (life{}); !panics(func() { l.moveLocked(established) }) {
		t.Error("a queue pair is established that was never connecting")
	}
	for from := held; from <= settled; from++ {
		s := from
		if may := from == quiet; panics(func() { sendings.Move(&s, transmitting) }) == may {
			t.Errorf("from %s to transmitting: %t", sendings.Name(from), !may)
		}
	}
	for to := inHeader; to <= closed; to++ {
		p := closed
		if !panics(func() { parsings.Move(&p, to) }) {
			t.Errorf("a closed receiver goes to %s", parsings.Name(to))
		}
	}
	// In every program, and not in tests alone.
	if !phases.Ends(ended) || !phases.Ends(abandoned) || !sendings.Ends(settled) || !parsings.Ends(closed) {
		t.Error("a program goes on behind an end, with memory that its owner has back")
	}
}

func TestAQueuePairIsOneConnectionsAlsoWhileThatIsBeingMade(t *testing.T) {
	ctx := testCtx(t)
	l, err := net.Listen("tcp", "127.0.0.1:0") // and answers nothing
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	d := New(Options{})
	defer func() { _ = d.Close() }()
	q, err := d.NewQP(transport.QPOptions{})
	if err != nil {
		t.Fatal(err)
	}
	first := make(chan error, 1)
	go func() {
		_, err := d.Dial(ctx, l.Addr().String(), q, transport.ConnParams{})
		first <- err
	}()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Dial(ctx, l.Addr().String(), q, transport.ConnParams{}); !errors.Is(err, errUsedQP) {
		t.Errorf("the second Dial of a queue pair: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-first; err == nil || errors.Is(err, errUsedQP) {
		t.Errorf("the first Dial: %v", err)
	}
	if p := q.(*QP).life.is(); p != abandoned {
		t.Errorf("the queue pair is %s", phases.Name(p))
	}
}
