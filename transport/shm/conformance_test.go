package shm

import (
	"path/filepath"
	"testing"

	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/transporttest"
)

// conform opens pairs for the suite of the contract.
func conform(o Options) func(t testing.TB) transporttest.Pair {
	return func(t testing.TB) transporttest.Pair {
		mk := func() transport.Device {
			d := New(o)
			t.Cleanup(func() {
				if err := d.Close(); err != nil {
					t.Error(err)
				}
			})
			return d
		}
		return transporttest.Pair{Dialer: mk(), Listener: mk(), Addr: filepath.Join(t.TempDir(), "s")}
	}
}

func TestKeepsEveryRule(t *testing.T) {
	for name, o := range map[string]Options{
		"default":  {},
		"noSpin":   {Spin: -1},
		"tinyRing": {slots: minSlots},
	} {
		t.Run(name, func(t *testing.T) { transporttest.Run(t, conform(o)) })
	}
}
