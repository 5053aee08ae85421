package verbs

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/transport"
)

// joinAgain is a connection between the two adapters, whatever was before.
func joinAgain(t *testing.T, a, b *side) {
	t.Helper()
	a.newQP(transport.QPOptions{})
	b.newQP(transport.QPOptions{})
	if err := join(a, b, "10.0.0.2:0"); err != nil {
		t.Fatal(err)
	}
}

// parting waits for the number of identifiers that wait for a port of d's only adapter.
func parting(t *testing.T, d *Device, want int32) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range d.adapters {
		for end := time.Now().Add(limit); a.parting.Load() != want; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d identifiers wait for the port, want %d", a.parting.Load(), want)
			}
		}
	}
}

// What the connection manager sends over a port that is down is lost, and on rxe it is the last thing that the adapter's connection manager
// does. The peer hears when the port is back.
func TestAPeerIsToldOfAnEndWhenThePortIsBack(t *testing.T) {
	for kind, sk := range simKinds {
		if sk.fabric == kindIWARP {
			continue
		}
		t.Run(kind, func(t *testing.T) {
			s, a, b := connected(t, kind, Options{})
			for range 2 {
				s.lose(s.nics[1], true)
				endsWith(t, b, "port 1 is down")
				if err := b.qp.(*QP).why(); !errors.Is(err, transport.ErrLost) {
					t.Errorf("%v is no lost connection", err)
				}
				parting(t, b.d, 1)
				if n, err := a.qp.Poll(a.wc[:]); n != 0 || err != nil {
					t.Errorf("the peer of a port that is down hears %d, %v", n, err)
				}
				s.lose(s.nics[1], false)
				endsWith(t, a, "ended")
				if err := a.qp.(*QP).why(); errors.Is(err, transport.ErrLost) {
					t.Errorf("what the peer ended is lost: %v", err)
				}
				parting(t, b.d, 0)
				joinAgain(t, a, b)
			}
		})
	}
}

// The adapter may find out before the port's event is here: a request fails for which there is no way any more.
func TestARequestThatFailsBeforeThePortsEventHoldsTheGoodbyeToo(t *testing.T) {
	for kind, words := range map[string]string{"rxe": "its port has gone down", "rxe6.12": "ended by the peer or the network"} {
		t.Run(kind, func(t *testing.T) {
			moments := make(chan chan time.Time, 4)
			s, a, b := connected(t, kind, Options{after: func(time.Duration) <-chan time.Time {
				c := make(chan time.Time, 1)
				moments <- c
				return c
			}})
			silent := func(down bool) { // and nothing says so
				s.mu.Lock()
				s.nics[1].down, s.nics[1].late = down, down
				s.mu.Unlock()
			}
			silent(true)
			b.mustPost(transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: 1})
			wcs := endsWith(t, b, words)
			if len(wcs) != 1 || wcs[0].Err == nil || !strings.Contains(wcs[0].Err.Error(), words) {
				t.Errorf("left over: %+v", wcs)
			}
			<-moments
			s.lose(s.nics[1], true)
			s.lose(s.nics[1], false)
			endsWith(t, a, "ended")
			joinAgain(t, a, b)
			// Where no event comes it was no port: the peer is told after a moment.
			silent(true)
			b.mustPost(transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: 1})
			endsWith(t, b, words)
			moment := <-moments
			silent(false)
			moment <- time.Time{}
			endsWith(t, a, "ended")
			// Where the adapter knows of the port, the reason is the port.
			joinAgain(t, a, b)
			s.mu.Lock()
			s.nics[1].down = true
			s.mu.Unlock()
			b.mustPost(transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: 1})
			endsWith(t, b, "port 1 is down")
			<-moments
			s.lose(s.nics[1], true)
			s.lose(s.nics[1], false)
			endsWith(t, a, "ended")
		})
	}
}

func TestCloseWaitsForNoPort(t *testing.T) {
	s, a, b := connected(t, "mlx5", Options{})
	s.lose(s.nics[1], true)
	endsWith(t, b, "port 1 is down")
	parting(t, b.d, 1)
	if err := b.d.Close(); err != nil {
		t.Fatal(err)
	}
	_ = a.qp.Close(transport.Reason{})
	endsWith(t, a, "closed")
}

func TestAnAdapterThatGoesWhileItsPortIsDownLetsGoOfItsConnections(t *testing.T) {
	s, _, b := connected(t, "mlx5", Options{})
	s.lose(s.nics[1], true)
	endsWith(t, b, "port 1 is down")
	parting(t, b.d, 1)
	s.unplug(s.nics[1])
	parting(t, b.d, 0)
}

// The system may know a way where there is no carrier. A dial then fails at once, and not when the connection manager has given up.
func TestADialOverAPortThatIsDownSaysSoAtOnceAndIsWokenWhenItIsBack(t *testing.T) {
	s, a, b := connected(t, "mlx5", Options{})
	s.mu.Lock()
	s.nics[0].way = true
	s.mu.Unlock()
	woken := a.d.Woken()
	s.lose(s.nics[0], true)
	endsWith(t, a, "port 1 is down")
	parting(t, a.d, 1)
	for range 2 {
		a.newQP(transport.QPOptions{})
		_, err := a.d.Dial(within(t), "10.0.0.2:3260", a.qp, transport.ConnParams{})
		var link *LinkError
		if !errors.As(err, &link) || link.Reason != "port 1 is down" {
			t.Errorf("dial while the port has no carrier: %v", err)
		}
	}
	parting(t, a.d, 1) // a peer that was never asked has nothing to be told
	select {
	case <-woken:
		t.Error("woken while the port was down")
	default:
	}
	s.lose(s.nics[0], false)
	select {
	case <-woken:
	case <-time.After(limit):
		t.Fatal("not woken when the port was back")
	}
	endsWith(t, b, "ended")
	joinAgain(t, a, b)
}

// An event may have been missed: what the adapter itself says of its port counts.
func TestAPortThatIsUpIsUsedThoughNoEventSaidSo(t *testing.T) {
	s, a, b := connected(t, "mlx5", Options{})
	s.mu.Lock()
	s.nics[0].way = true
	s.mu.Unlock()
	s.lose(s.nics[0], true)
	endsWith(t, a, "port 1 is down")
	s.mu.Lock()
	s.nics[0].down = false
	s.mu.Unlock()
	a.newQP(transport.QPOptions{})
	_ = b.qp.Close(transport.Reason{})
	joinAgain(t, a, b)
}

func TestAnAdapterThatComesWakes(t *testing.T) {
	s := newSim(t)
	s.add("one", "mlx5", "10.0.0.1")
	d, err := open(s, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	woken := d.Woken()
	s.add("two", "mlx5", "10.0.0.2")
	a, b := newSide(t, d), newSide(t, d)
	a.newQP(transport.QPOptions{})
	b.newQP(transport.QPOptions{})
	if err := join(a, b, "10.0.0.2:0"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-woken:
	default:
		t.Error("an adapter was taken into use, and nothing was said")
	}
}
