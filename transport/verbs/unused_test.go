package verbs

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// Requests by an adapter that is not used are refused without a look at all adapters, and a line in the log, for each.
func TestRequestsByAnAdapterThatIsNotUsedCostOneLookAndOneLine(t *testing.T) {
	s := newSim(t)
	s.add("one", "mlx5", "10.0.0.1")
	two := s.add("two", "mlx5", "10.0.0.2")
	core, lines := observer.New(zap.WarnLevel)
	d, err := open(s, Options{Devices: []string{"one"}, Log: zap.New(core)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	var asked atomic.Int64
	s.mu.Lock()
	s.fail = func(call string) error {
		if call == "Devices" {
			asked.Add(1)
		}
		return nil
	}
	s.mu.Unlock()
	l, err := d.Listen(t.Context(), "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		s.mu.Lock()
		id := s.make(&simID{ch: s.obj[d.cm.ch].(*simEvents), nic: two}, d.cm.ch)
		s.obj[id].(*simID).h = id
		s.mu.Unlock()
		if (&request{l: l.(*listener), id: id}).hand() {
			t.Fatal("a request by the other adapter was handed out")
		}
	}
	if n := lines.FilterMessageSnippet("refused").Len(); n != 1 || asked.Load() != 1 {
		t.Errorf("20 requests: %d lines, %d lists of the adapters", n, asked.Load())
	}
}

// What an adapter was not used for may be mended: it is looked at again.
func TestAnAdapterThatIsNotUsedIsLookedAtAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var u unused
		no := errors.New("no")
		u.tell(1, no)
		time.Sleep(unusedTime - time.Nanosecond)
		if !errors.Is(u.told(1), no) || u.told(2) != nil {
			t.Errorf("told %v, of another %v", u.told(1), u.told(2))
		}
		time.Sleep(time.Nanosecond)
		if err := u.told(1); err != nil {
			t.Errorf("told %v for good", err)
		}
	})
}
