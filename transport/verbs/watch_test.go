package verbs

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// An error of the library's that stays is asked about ever more seldom: each is a line in the log.
func TestAnErrorThatStaysIsAskedAboutSeldom(t *testing.T) {
	s := newSim(t)
	n := s.add("one", "mlx5", "10.0.0.1")
	waits := make(chan time.Duration)
	fire := make(chan time.Time)
	d, err := open(s, Options{after: func(w time.Duration) <-chan time.Time {
		waits <- w
		return fire
	}})
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.fail = func(call string) error {
		if call == "Async" {
			return unix.EIO
		}
		return nil
	}
	n.say(asyncEvent{})
	s.mu.Unlock()
	last := time.Duration(0)
	for range 14 {
		w := <-waits
		if w < last || w > longestAsk {
			t.Errorf("asked again after %s, and before after %s", w, last)
		}
		last = w
		fire <- time.Time{}
	}
	if last != longestAsk {
		t.Errorf("still asked every %s", last)
	}
	<-waits
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}
