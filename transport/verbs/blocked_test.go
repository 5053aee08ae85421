package verbs

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// blockedDial is a dial over an adapter whose driver connects within the call, as siw does, to a machine that does not answer.
func blockedDial(t *testing.T) (g *gated, x *side, cancel func(), dialled <-chan error) {
	t.Helper()
	s := newSim(t)
	s.add("one", "siw", "10.0.0.1")
	s.add("two", "siw", "10.0.0.2")
	g = gate(s, "Connect", "DestroyID")
	d, err := open(g, Options{Devices: []string{"one"}})
	if err != nil {
		t.Fatal(err)
	}
	x = newSide(t, d)
	x.newQP(transport.QPOptions{})
	x.mustRecv(1, x.at(0, 64))
	ctx, cancel := context.WithCancel(within(t))
	got := make(chan error, 1)
	go func() {
		_, err := d.Dial(ctx, "10.0.0.2:7777", x.qp, transport.ConnParams{})
		got <- err
	}()
	<-g.in
	return g, x, cancel, got
}

// freed waits until the library's objects are freed, in order, once the call has returned.
func freed(t *testing.T, g *gated) {
	t.Helper()
	if g.met.Load() {
		t.Error("the id was destroyed under the call")
	}
	close(g.open)
	for ctx := within(t); len(g.leaks()) != 0; runtime.Gosched() {
		if ctx.Err() != nil {
			t.Fatalf("left behind: %v", g.leaks())
		}
	}
}

func TestADialThatBlocksInTheKernelEndsWithItsContext(t *testing.T) {
	g, x, cancel, dialled := blockedDial(t)
	cancel()
	if err := <-dialled; !errors.Is(err, context.Canceled) {
		t.Errorf("the dial ended with %v", err)
	}
	if wcs := endsWith(t, x, "not made"); len(wcs) != 1 || wcs[0].Token != 1 {
		t.Errorf("left over: %+v", wcs)
	}
	if err := x.d.Unregister(x.slab); err != nil {
		t.Error(err)
	}
	if err := x.d.Close(); err != nil {
		t.Error(err)
	}
	freed(t, g)
}

func TestADialThatBlocksInTheKernelEndsWithItsDevice(t *testing.T) {
	g, x, cancel, dialled := blockedDial(t)
	defer cancel()
	if err := x.d.Close(); err != nil {
		t.Error(err)
	}
	if err := <-dialled; !errors.Is(err, transport.ErrClosed) {
		t.Errorf("the dial ended with %v", err)
	}
	endsWith(t, x, "closed")
	for _, o := range g.leaks() {
		if o[:len("*verbs.simMR")] == "*verbs.simMR" {
			t.Errorf("a closed device has memory: %s", o)
		}
	}
	freed(t, g)
}

// A queue pair that is given up while the library asks is freed when the call has returned, though the device stays.
func TestADialThatBlocksInTheKernelLeavesNothingBehind(t *testing.T) {
	g, x, cancel, dialled := blockedDial(t)
	cancel()
	<-dialled
	endsWith(t, x, "not made")
	close(g.open)
	for ctx := within(t); ; runtime.Gosched() {
		g.mu.Lock()
		n := 0
		for _, o := range g.obj {
			switch o.(type) {
			case *simQP, *simID, *simCQ, *simCh:
				n++
			}
		}
		g.mu.Unlock()
		if n == 0 {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("left behind: %v", g.leaks())
		}
	}
	if err := x.d.Close(); err != nil {
		t.Error(err)
	}
}

// What is left of a dial that was given up has no memory: it would stay locked for as long as the library asks, and grow with the pool.
func TestADialThatIsGivenUpKeepsNoMemoryLocked(t *testing.T) {
	g, x, cancel, dialled := blockedDial(t)
	cancel()
	<-dialled
	endsWith(t, x, "not made")
	slab, err := mem.NewSlab(4096)
	if err != nil {
		t.Fatal(err)
	}
	if err := x.d.Register(slab); err != nil {
		t.Error(err)
	}
	g.mu.Lock()
	for _, o := range g.obj {
		if _, ok := o.(*simMR); ok {
			t.Error("memory is registered for a connection that has ended")
		}
	}
	g.mu.Unlock()
	if err := errors.Join(x.d.Unregister(slab), x.d.Close(), slab.Close()); err != nil {
		t.Error(err)
	}
	freed(t, g)
}

// A queue pair that could not be stopped may be connected yet: its owner hears of the end, and has its memory back, when it is destroyed.
func TestAnEndThatCouldNotBeStoppedIsToldWhenTheQueuePairIsGone(t *testing.T) {
	s := newSim(t)
	s.add("one", "siw", "10.0.0.1")
	s.add("two", "siw", "10.0.0.2")
	g := gate(s, "Connect", "DestroyID")
	tried := make(chan struct{}, 16)
	s.fail = func(call string) error {
		if call == "ErrorQP" {
			tried <- struct{}{}
			return unix.EIO
		}
		return nil
	}
	d, err := open(g, Options{Devices: []string{"one"}})
	if err != nil {
		t.Fatal(err)
	}
	x := newSide(t, d)
	x.newQP(transport.QPOptions{}) // without receives: none has to come back
	ctx, cancel := context.WithCancel(within(t))
	go func() { _, _ = d.Dial(ctx, "10.0.0.2:7777", x.qp, transport.ConnParams{}) }()
	<-g.in
	cancel()
	<-tried
	for range 50 { // that nothing comes has no event
		if x.qp.(*QP).settled() {
			t.Fatal("the owner has heard of the end while the library may connect the queue pair")
		}
		time.Sleep(time.Millisecond)
	}
	close(g.open)
	endsWith(t, x, "not made")
	if err := errors.Join(d.Unregister(x.slab), d.Close()); err != nil {
		t.Error(err)
	}
	if left := g.leaks(); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}
