package verbs

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

func endsWith(t *testing.T, x *side, words string) []transport.WC {
	t.Helper()
	wcs, err := x.drain()
	if !errors.Is(err, transport.ErrClosed) || !strings.Contains(err.Error(), words) {
		t.Errorf("the end is %q; want ErrClosed and %q", err, words)
	}
	return wcs
}

func TestAPortThatGoesDownEndsItsConnectionsAndTheyComeBack(t *testing.T) {
	s, a, b := connected(t, "mlx5", Options{})
	a.mustRecv(1, a.at(0, 64))
	s.lose(s.nics[0], true)
	if wcs := endsWith(t, a, "port 1 is down"); len(wcs) != 1 || wcs[0].Token != 1 {
		t.Errorf("left over: %+v", wcs)
	}
	a.newQP(transport.QPOptions{})
	_, err := a.d.Dial(within(t), "10.0.0.2:3260", a.qp, transport.ConnParams{})
	if !errors.Is(err, unix.ENODEV) || !strings.Contains(err.Error(), "it is down") {
		t.Errorf("dial while the port is down: %v", err)
	}
	s.lose(s.nics[0], false)
	endsWith(t, b, "ended") // its adapter is well: the other end is gone, and can say so now
	a.newQP(transport.QPOptions{})
	b.newQP(transport.QPOptions{})
	if err := join(a, b, "10.0.0.2:0"); err != nil {
		t.Fatal(err)
	}
}

func TestADeviceThatGoesEndsItsConnectionsAndListensAgainWhenItIsBack(t *testing.T) {
	s := newSim(t)
	s.add("one", "mlx5", "10.0.0.1")
	two := s.add("two", "mlx5", "10.0.0.2")
	waits := make(chan chan time.Time, 16)
	o := Options{after: func(time.Duration) <-chan time.Time {
		c := make(chan time.Time, 1)
		waits <- c
		return c
	}}
	mk := func(name string) *side {
		o := o
		o.Devices = []string{name}
		d, err := open(s, o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		return newSide(t, d)
	}
	a, b := mk("one"), mk("two")
	a.newQP(transport.QPOptions{})
	b.newQP(transport.QPOptions{})
	if err := join(a, b, "10.0.0.2:0"); err != nil {
		t.Fatal(err)
	}
	l, err := b.d.Listen(within(t), "10.0.0.2:7777")
	if err != nil {
		t.Fatal(err)
	}
	s.unplug(two)
	endsWith(t, b, "removed")
	endsWith(t, a, "")
	(<-waits) <- time.Time{} // not there yet
	again := <-waits
	s.add("two", "mlx5", "10.0.0.2")
	again <- time.Time{}
	a.newQP(transport.QPOptions{})
	b.newQP(transport.QPOptions{})
	done := make(chan error, 1)
	go func() {
		r, err := l.Accept(within(t))
		if err == nil {
			err = r.Accept(within(t), b.qp, transport.ConnParams{})
		}
		done <- err
	}()
	for {
		// The listener is at it on another goroutine: until it is there, nothing listens.
		if _, err = a.d.Dial(within(t), "10.0.0.2:7777", a.qp, transport.ConnParams{}); !errors.Is(err, unix.ECONNREFUSED) {
			break
		}
		a.newQP(transport.QPOptions{})
	}
	if err := errors.Join(err, <-done, l.Close()); err != nil {
		t.Fatal(err)
	}
}

// Memory is one for all adapters and for what needs none: an adapter that is gone must not keep it from growing.
func TestMemoryGrowsAfterAnAdapterIsGone(t *testing.T) {
	s := newSim(t)
	s.add("one", "mlx5", "10.0.0.1")
	two := s.add("two", "mlx5", "10.0.0.2")
	d, err := open(s, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	a, b := newSide(t, d), newSide(t, d)
	a.newQP(transport.QPOptions{})
	b.newQP(transport.QPOptions{})
	if err := join(a, b, "10.0.0.2:0"); err != nil { // both adapters have memory now
		t.Fatal(err)
	}
	s.unplug(two)
	endsWith(t, b, "removed")
	for range 2 {
		slab, err := mem.NewSlab(4096)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Register(slab); err != nil {
			t.Errorf("memory is refused for an adapter that is gone: %v", err)
		}
		if err := errors.Join(d.Unregister(slab), slab.Close()); err != nil {
			t.Error(err)
		}
	}
}

func TestDialSaysWhatIsWrong(t *testing.T) {
	s, a, b := connected(t, "mlx5", Options{})
	_ = b
	for _, c := range []struct {
		addr, words string
		is          error
		before      func()
	}{
		{addr: "10.0.0.2:9", words: "nothing listens for RDMA at 10.0.0.2:9", is: unix.ECONNREFUSED},
		{addr: "10.9.9.9:9", words: "resolve 10.9.9.9", is: unix.EHOSTUNREACH},
		{addr: "10.0.0.2:9", words: "does not answer over RDMA", is: unix.ETIMEDOUT, before: func() { s.lose(s.nics[1], true) }},
		{addr: "10.0.0.1:9", words: "no RDMA device has a way", is: unix.ENODEV, before: func() { s.lose(s.nics[0], true) }},
		{addr: "10.0.0.2", words: "missing port"},
	} {
		if c.before != nil {
			c.before()
		}
		a.newQP(transport.QPOptions{})
		_, err := a.d.Dial(within(t), c.addr, a.qp, transport.ConnParams{})
		if err == nil || !strings.Contains(err.Error(), c.words) || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: %v; want %q", c.addr, err, c.words)
		}
		if _, end := a.drain(); !errors.Is(end, transport.ErrClosed) {
			t.Errorf("%s: the queue pair ended with %v", c.addr, end)
		}
	}
}

func TestAnAdapterWithoutWindowsIsRefusedByWhoExposes(t *testing.T) {
	_, a, _ := connected(t, "bnxt", Options{})
	var no *WindowError
	if _, err := a.qp.NewWindow(); !errors.As(err, &no) || no.Device != "one" {
		t.Errorf("a window on an adapter that has none: %v", err)
	}
	a.newQP(transport.QPOptions{})
	if _, err := a.qp.NewWindow(); err != nil {
		t.Fatal(err) // it is not known yet which adapter it will be
	}
	if _, err := a.d.Dial(within(t), "10.0.0.2:1", a.qp, transport.ConnParams{}); !errors.As(err, &no) {
		t.Errorf("dial over an adapter without windows: %v", err)
	}
}

// What the peer holds back holds back completions, and nothing else.
func TestADelayedReadHoldsCompletionsAndNoMessages(t *testing.T) {
	s, a, b := connected(t, "mlx5", Options{})
	w, err := b.qp.NewWindow()
	if err != nil {
		t.Fatal(err)
	}
	b.mustPost(transport.WR{Op: transport.OpBind, Flags: transport.Signaled, Token: 1, Window: w, Access: transport.RemoteRead, Local: []mem.Span{b.at(0, 64)}})
	b.must(transport.OpBind, 1)
	s.mu.Lock()
	s.holds = true
	s.mu.Unlock()
	b.mustRecv(5, b.at(128, 64))
	a.mustPost(
		transport.WR{Op: transport.OpRead, Token: 2, Local: []mem.Span{a.at(0, 64)}, Remote: w.Remote()},
		transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: 3, Local: []mem.Span{a.at(64, 64)}})
	b.must(transport.OpRecv, 5)
	if n, err := a.qp.Poll(a.wc[:]); n != 0 || err != nil {
		t.Errorf("%d completions before the Read's, %v", n, err)
	}
	s.release()
	a.must(transport.OpSend, 3) // the Read was not signaled
}

// siw completes what is posted behind a Read before the Read: each has its completion, and places come back meanwhile.
func TestARequestThatOvertakesAReadIsNotTheReadsEnd(t *testing.T) {
	s, a, b := connected(t, "siw", Options{WholeSlab: true})
	w, err := b.qp.NewWindow()
	if err != nil {
		t.Fatal(err)
	}
	b.mustPost(transport.WR{Op: transport.OpBind, Flags: transport.Signaled, Token: 1, Window: w, Access: transport.RemoteRead, Local: []mem.Span{b.at(0, 64)}})
	b.must(transport.OpBind, 1)
	if a.d.Caps().InOrder {
		t.Error("Caps.InOrder on an adapter whose completions overtake Reads")
	}
	for round := range 3 {
		s.mu.Lock()
		s.holds = true
		s.mu.Unlock()
		a.mustPost(
			transport.WR{Op: transport.OpRead, Flags: transport.Signaled, Token: 2, Local: []mem.Span{a.at(0, 64)}, Remote: w.Remote()},
			transport.WR{Op: transport.OpRead, Token: 3, Local: []mem.Span{a.at(64, 64)}, Remote: w.Remote()})
		for i := range uint64(200) { // the queue has 64 places
			b.mustRecv(i, b.at(128, 64))
			a.mustPost(transport.WR{Op: transport.OpSend, Flags: transport.Signaled * transport.Flags(i&1), Token: i, Local: []mem.Span{a.at(128, 64)}})
			b.must(transport.OpRecv, i)
			if i&1 == 1 {
				a.must(transport.OpSend, i)
			}
		}
		if g := a.d.Gauges(); g.ReadSinks != 2 {
			t.Errorf("round %d: %d Reads outstanding", round, g.ReadSinks)
		}
		s.release()
		a.must(transport.OpRead, 2) // the other was not signaled
		if g := a.d.Gauges(); g.ReadSinks != 0 || g.Sends != 0 {
			t.Errorf("round %d: the gauges at rest: %+v", round, g)
		}
	}
}

// siw takes no receive without a piece of memory.
func TestAReceiveOfNothingIsTakenByEveryAdapter(t *testing.T) {
	for kind := range simKinds {
		_, a, b := connected(t, kind, Options{WholeSlab: true})
		b.mustRecv(1, b.at(0, 0))
		a.mustPost(transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: 2})
		b.must(transport.OpRecv, 1)
		a.must(transport.OpSend, 2)
	}
}

func TestAWindowIsNotInvalidatedTwice(t *testing.T) {
	_, a, b := connected(t, "rxe", Options{})
	w, err := b.qp.NewWindow()
	if err != nil {
		t.Fatal(err)
	}
	bind := transport.WR{Op: transport.OpBind, Window: w, Access: transport.RemoteWrite, Local: []mem.Span{b.at(0, 64)}}
	inv := transport.WR{Op: transport.OpInvalidate, Flags: transport.Signaled, Token: 1, Window: w}
	for range 300 { // more than there are keys
		b.mustPost(bind)
		b.mustRecv(2, b.at(64, 64))
		a.mustPost(transport.WR{Op: transport.OpSendInv, Flags: transport.Signaled, Token: 3, Inv: w.Remote().STag})
		a.must(transport.OpSendInv, 3)
		// The peer has ended the key, and its message has not been looked at: the model of rxe would tell.
		b.mustPost(inv)
		if wc := b.must(transport.OpRecv, 2); wc.Inv == 0 || w.Valid() {
			t.Fatalf("the receive is %+v", wc)
		}
		b.must(transport.OpInvalidate, 1)
		b.mustPost(bind, transport.WR{Op: transport.OpInvalidate, Window: w}, bind, inv)
		b.must(transport.OpInvalidate, 1)
		if err := b.post(bind, bind); !errors.Is(err, errBound) {
			t.Fatalf("a Bind of a bound window: %v", err)
		}
		b.mustPost(inv)
		b.must(transport.OpInvalidate, 1)
	}
}

// A queue of nothing but unsignaled requests goes on: its places come back.
func TestUnsignaledWorkNeverFillsTheQueueForGood(t *testing.T) {
	_, a, b := connected(t, "mlx5", Options{})
	for i := range 1000 {
		b.mustRecv(uint64(i), b.at(0, 8))
		a.mustPost(transport.WR{Op: transport.OpSend, Local: []mem.Span{a.at(0, 8)}})
		b.must(transport.OpRecv, uint64(i))
	}
}

func TestARequestThatIsNotAnsweredIsRefusedInTheEnd(t *testing.T) {
	_, a, b := connected(t, "mlx5", Options{})
	l, err := b.d.Listen(within(t), "10.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	a.newQP(transport.QPOptions{})
	got := make(chan error, 1)
	go func() {
		_, err := a.d.Dial(within(t), l.Addr().String(), a.qp, transport.ConnParams{})
		got <- err
	}()
	r, err := l.Accept(within(t))
	if err != nil {
		t.Fatal(err)
	}
	r.(*request).timer.Reset(0)
	var no *transport.RejectedError
	if err := <-got; !errors.As(err, &no) {
		t.Errorf("a request that is not answered ended with %v", err)
	}
	b.newQP(transport.QPOptions{})
	if err := r.Accept(within(t), b.qp, transport.ConnParams{}); err == nil {
		t.Error("a request was answered twice")
	}
	endsWith(t, b, "answered")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestUnregisteredMemoryIsNotNamed(t *testing.T) {
	_, a, _ := connected(t, "mlx5", Options{})
	slab, err := mem.NewSlab(4096)
	if err != nil {
		t.Fatal(err)
	}
	defer slab.Close()
	wr := transport.WR{Op: transport.OpWrite, Local: []mem.Span{{Slab: slab, Len: 8}}}
	if n, err := a.qp.Post([]transport.WR{wr}); n != 0 || err == nil {
		t.Errorf("memory that was never registered: %d, %v", n, err)
	}
	if err := a.d.Register(slab); err != nil {
		t.Fatal(err)
	}
	if err := a.d.Unregister(slab); err != nil {
		t.Fatal(err)
	}
	if n, err := a.qp.Post([]transport.WR{wr}); n != 0 || err == nil {
		t.Errorf("memory that is not registered any more: %d, %v", n, err)
	}
}

func TestDeviceCloseEndsEverything(t *testing.T) {
	_, a, b := connected(t, "mlx5", Options{})
	a.mustRecv(1, a.at(0, 64))
	l, err := a.d.Listen(context.Background(), ":0")
	if err != nil {
		t.Fatal(err)
	}
	if err := a.d.Close(); err != nil {
		t.Fatal(err)
	}
	if wcs := endsWith(t, a, "closed"); len(wcs) != 1 {
		t.Errorf("left over: %+v", wcs)
	}
	if _, err := l.Accept(context.Background()); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("accept: %v", err)
	}
	if _, err := a.d.NewQP(transport.QPOptions{}); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("a new queue pair: %v", err)
	}
	endsWith(t, b, "ended")
}

// Upper protocols ask for Caps once. An adapter that comes later and would make them untrue is refused with what it lacks, and said once.
func TestALaterAdapterThatCanDoLessIsRefused(t *testing.T) {
	for _, c := range []struct {
		first, later string
		lacks        []string // nothing: it is used
	}{
		{first: "mlx5", later: "mlx5"},
		{first: "rxe", later: "mlx5"},
		{first: "mlx5", later: "rxe", lacks: []string{"windows whose bounds it does not check"}},
		{first: "mlx5", later: "cxgb4", lacks: []string{"no memory windows"}},
		{first: "cxgb4", later: "siw", lacks: []string{"completions out of order"}},
		{first: "cxgb4", later: "mlx5", lacks: []string{"private data without a length"}},
	} {
		t.Run(c.first+" then "+c.later, func(t *testing.T) {
			core, logs := observer.New(zap.WarnLevel)
			s := newSim(t)
			s.add("one", c.first, "10.0.0.1")
			d, err := open(s, Options{WholeSlab: true, Log: zap.New(core)})
			if err != nil {
				t.Fatal(err)
			}
			promised := d.Caps()
			s.add("two", c.later, "10.0.0.2")
			x, peer := newSide(t, d), newSide(t, d)
			for range 2 {
				x.newQP(transport.QPOptions{})
				peer.newQP(transport.QPOptions{})
				if len(c.lacks) == 0 {
					if err := join(x, peer, "10.0.0.1:0"); err != nil { // the way there goes over the other adapter
						t.Fatal(err)
					}
					continue
				}
				var late *LateError
				_, err := d.Dial(within(t), "10.0.0.1:9", x.qp, transport.ConnParams{})
				if !errors.As(err, &late) || late.Device != "two" || !slices.Equal(late.Lacks, c.lacks) {
					t.Fatalf("%v, %+v", err, late)
				}
			}
			if n := logs.FilterMessage("an RDMA device is not used").Len(); n != min(1, len(c.lacks)) {
				t.Errorf("%d lines of the log: %+v", n, logs.All())
			}
			if d.Caps() != promised {
				t.Errorf("the Caps were %+v and are %+v", promised, d.Caps())
			}
			for _, y := range []*side{x, peer} {
				_ = y.qp.Close(transport.Reason{})
				y.drain()
				if err := d.Unregister(y.slab); err != nil {
					t.Error(err)
				}
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
			if left := s.leaks(); len(left) != 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}
