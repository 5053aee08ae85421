package verbs

import (
	"errors"
	"testing"

	"github.com/sluice-storage/sluice/transport"
)

// The library has one descriptor of an adapter's events in a process, and gives each event once: two devices over one adapter both
// hear that it is gone, whichever of them takes the event.
func TestEveryDeviceOfAnAdapterHearsOfItsEvents(t *testing.T) {
	for range 20 {
		s := newSim(t)
		n := s.add("one", "mlx5", "10.0.0.1")
		s.add("two", "mlx5", "10.0.0.2")
		mk := func(o Options) *side {
			d, err := open(s, o)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = d.Close() })
			x := newSide(t, d)
			x.newQP(transport.QPOptions{})
			return x
		}
		far := []*side{mk(Options{Devices: []string{"two"}}), mk(Options{Devices: []string{"two"}})}
		near := []*side{mk(Options{Devices: []string{"one"}}), mk(Options{Devices: []string{"one"}, WholeSlab: true})}
		for i := range near {
			if err := join(near[i], far[i], "10.0.0.2:0"); err != nil {
				t.Fatal(err)
			}
		}
		s.mu.Lock()
		n.say(asyncEvent{Kind: asyncPortError, Port: 1, Text: "port error"})
		s.mu.Unlock()
		for i, x := range near {
			var link *LinkError
			if _, end := x.drain(); !errors.As(end, &link) || link.Device != "one" {
				t.Fatalf("device %d: the end is %v", i, end)
			}
		}
	}
}
