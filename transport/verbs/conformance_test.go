package verbs

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/sluice-storage/sluice/transport/transporttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// twoEnds are two adapters of a kind on one network, and a device over each.
func twoEnds(t testing.TB, kind string, o Options) (s *sim, a, b *Device) {
	t.Helper()
	s = newSim(t)
	s.add("one", kind, "10.0.0.1", "fd00::1")
	s.add("two", kind, "10.0.0.2", "fd00::2")
	t.Cleanup(func() {
		if left := s.leaks(); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
	})
	mk := func(name string) *Device {
		o := o
		o.Devices = []string{name}
		d, err := open(s, o)
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
	return s, mk("one"), mk("two")
}

func TestKeepsEveryRule(t *testing.T) {
	for kind := range simKinds {
		t.Run(kind, func(t *testing.T) {
			transporttest.Run(t, func(t testing.TB) transporttest.Pair {
				_, a, b := twoEnds(t, kind, Options{WholeSlab: !simKinds[kind].windows})
				return transporttest.Pair{Dialer: a, Listener: b, Addr: "10.0.0.2:0", Addr6: "[fd00::2]:0"}
			})
		})
	}
}
