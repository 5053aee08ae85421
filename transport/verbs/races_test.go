package verbs

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/transport"
)

// gated is a library in which a call can be stopped at its beginning, to see what happens meanwhile. Two calls that must not
// meet are named by the test.
type gated struct {
	*sim
	at   string // the first call of this name stops
	hit  atomic.Bool
	in   chan struct{} // closed when it has
	open chan struct{} // closed to let it go on
	not  string        // must not be made meanwhile
	met  atomic.Bool
}

func gate(s *sim, at, not string) *gated {
	return &gated{sim: s, at: at, not: not, in: make(chan struct{}), open: make(chan struct{})}
}

func (g *gated) pass(call string) {
	if call == g.not {
		select {
		case <-g.in:
			select {
			case <-g.open:
			default:
				g.met.Store(true)
			}
		default:
		}
	}
	if call == g.at && g.hit.CompareAndSwap(false, true) {
		close(g.in)
		<-g.open
	}
}

// release lets the call go on, when what must not be done meanwhile has been done or has had every opportunity.
func (g *gated) release(t *testing.T, what string) {
	t.Helper()
	for i := 0; i < 5000 && !g.met.Load(); i++ {
		runtime.Gosched()
	}
	close(g.open)
	if g.met.Load() {
		t.Error(what)
	}
}

func (g *gated) PostRecv(qp handle, wrs []recvWR, sges []sge) (int, error) {
	g.pass("PostRecv")
	return g.sim.PostRecv(qp, wrs, sges)
}

func (g *gated) ErrorQP(qp handle) error {
	g.pass("ErrorQP")
	return g.sim.ErrorQP(qp)
}

func (g *gated) DestroyID(id handle) error {
	g.pass("DestroyID")
	return g.sim.DestroyID(id)
}

func (g *gated) DestroyEventChannel(ch handle) {
	g.pass("DestroyEventChannel")
	g.sim.DestroyEventChannel(ch)
}

func (g *gated) Where(id handle) (where, error) {
	g.pass("Where")
	return g.sim.Where(id)
}

func (g *gated) Connect(id handle, p connParam) error {
	g.pass("Connect")
	return g.sim.Connect(id, p)
}

func (g *gated) Reject(id handle, private []byte) error {
	g.pass("Reject")
	return g.sim.Reject(id, private)
}

// gatedEnds are two devices, of which the second goes through a gate.
func gatedEnds(t *testing.T, at, not string) (g *gated, a, b *Device) {
	t.Helper()
	s := newSim(t)
	s.add("one", "mlx5", "10.0.0.1")
	s.add("two", "mlx5", "10.0.0.2")
	g = gate(s, at, not)
	mk := func(tab table, name string) *Device {
		d, err := open(tab, Options{Devices: []string{name}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
		return d
	}
	return g, mk(s, "one"), mk(g, "two")
}

// asks is a connection request that waits for l to be asked.
func asks(t *testing.T, a *Device, l transport.Listener) (r *request, answer <-chan error) {
	t.Helper()
	q, err := a.NewQP(transport.QPOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		_, err := a.Dial(within(t), l.Addr().String(), q, transport.ConnParams{})
		got <- err
	}()
	for x := l.(*listener); r == nil; runtime.Gosched() {
		x.mu.Lock()
		if len(x.queue) > 0 {
			r = x.queue[0]
		}
		x.mu.Unlock()
	}
	return r, got
}

func TestAQueuePairIsNotTakenAwayWhileAReceiveIsPosted(t *testing.T) {
	g, da, db := gatedEnds(t, "PostRecv", "ErrorQP")
	a, b := newSide(t, da), newSide(t, db)
	a.newQP(transport.QPOptions{})
	b.newQP(transport.QPOptions{})
	if err := join(a, b, "10.0.0.2:0"); err != nil {
		t.Fatal(err)
	}
	posted := make(chan struct{})
	go func() {
		defer close(posted)
		_, _ = b.qp.PostRecv([]transport.Recv{{Token: 1, Buf: b.at(0, 64)}}) // taken or not
	}()
	<-g.in
	_ = b.qp.Close(transport.Reason{Cut: true})
	g.release(t, "the queue pair went while a receive was posted to it")
	<-posted
	endsWith(t, b, "closed")
}

func TestADeviceWaitsForAListenerThatIsBeingClosed(t *testing.T) {
	g, _, d := gatedEnds(t, "DestroyID", "DestroyEventChannel")
	l, err := d.Listen(within(t), "10.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	ends := make(chan error, 2)
	go func() { ends <- l.Close() }()
	<-g.in
	go func() { ends <- d.Close() }()
	g.release(t, "the connection manager's channel went while an id of its was destroyed")
	if err := errors.Join(<-ends, <-ends); err != nil {
		t.Error(err)
	}
}

func TestADeviceWaitsForAnAnswerThatIsBeingGiven(t *testing.T) {
	g, a, d := gatedEnds(t, "Reject", "DestroyEventChannel")
	l, err := d.Listen(within(t), "10.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	_, answer := asks(t, a, l)
	r, err := l.Accept(within(t))
	if err != nil {
		t.Fatal(err)
	}
	ends := make(chan error, 2)
	go func() { ends <- r.Reject(nil) }()
	<-g.in
	go func() { ends <- d.Close() }()
	g.release(t, "the connection manager's channel went while a request was answered")
	if err := errors.Join(<-ends, <-ends); err != nil {
		t.Error(err)
	}
	if err := <-answer; err == nil {
		t.Error("a refused dial succeeded")
	}
}

func TestARequestIsNotRefusedWhileItIsHandedOut(t *testing.T) {
	g, a, d := gatedEnds(t, "Where", "DestroyID")
	l, err := d.Listen(within(t), "10.0.0.2:7000")
	if err != nil {
		t.Fatal(err)
	}
	r, answer := asks(t, a, l)
	accepted := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, err := l.Accept(ctx)
		accepted <- err
	}()
	<-g.in
	r.timer.Reset(0)
	g.release(t, "a request was refused, and its id destroyed, while it was asked about")
	if err := <-answer; err == nil {
		t.Error("a refused dial succeeded")
	}
	cancel()
	if err := <-accepted; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// The device keeps no request that was answered, however early the answer came.
func TestAnAnsweredRequestIsForgotten(t *testing.T) {
	s := newSim(t)
	s.add("one", "mlx5", "10.0.0.1")
	d, err := open(s, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	l := &listener{d: d, bell: make(chan struct{}, 1), done: make(chan struct{}), over: make(chan struct{})}
	d.cm.mu.Lock()
	l.mu.Lock() // the request comes, and is in the queue as soon as this is let go of
	came := make(chan *request)
	go func() { came <- l.requestLocked(cmEvent{Kind: cmConnectRequest}) }()
	l.mu.Unlock()
	for claimed := false; !claimed; runtime.Gosched() {
		l.mu.Lock()
		if len(l.queue) > 0 {
			claimed = l.queue[0].claim()
		}
		l.mu.Unlock()
	}
	<-came
	d.cm.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.reqs) != 0 {
		t.Error("a request that has been answered waits for its answer")
	}
}

// unsteady is a library in which something happens between a Listen and its return.
type unsteady struct {
	*sim
	listened func()
}

func (u *unsteady) Listen(id handle, backlog int) error {
	err := u.sim.Listen(id, backlog)
	if f := u.listened; err == nil && f != nil {
		f()
	}
	return err
}

// An adapter that goes while its listener is made again is listened on when it is back, as any other time.
func TestAnAdapterThatGoesWhileItIsListenedOnAgainIsNotMissed(t *testing.T) {
	s := newSim(t)
	s.add("one", "mlx5", "10.0.0.1")
	two := s.add("two", "mlx5", "10.0.0.2")
	u := &unsteady{sim: s}
	ready := make(chan time.Time)
	close(ready)
	d, err := open(u, Options{after: func(time.Duration) <-chan time.Time { return ready }})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	l, err := d.Listen(within(t), "10.0.0.2:7777")
	if err != nil {
		t.Fatal(err)
	}
	went := make(chan struct{})
	u.listened = func() {
		u.listened = nil
		s.unplug(s.nics[len(s.nics)-1])
		for heard := false; !heard; runtime.Gosched() { // of the removal, by the goroutine that takes events
			d.cm.mu.Lock()
			s.mu.Lock()
			heard = len(s.obj[d.cm.ch].(*simEvents).evs) == 0
			s.mu.Unlock()
			d.cm.mu.Unlock()
		}
		close(went)
	}
	s.unplug(two)
	s.add("two", "mlx5", "10.0.0.2")
	<-went
	s.add("two", "mlx5", "10.0.0.2")
	for x, ctx := l.(*listener), within(t); ; runtime.Gosched() {
		if ctx.Err() != nil {
			t.Fatal("nothing listens any more")
		}
		x.mu.Lock()
		id := x.id
		x.mu.Unlock()
		s.mu.Lock()
		i, _ := s.obj[id].(*simID)
		listens := i != nil && i.listens && !i.nic.gone
		s.mu.Unlock()
		if listens {
			break
		}
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}
