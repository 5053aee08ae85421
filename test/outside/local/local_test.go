package local_test

import (
	"testing"

	"github.com/sluice-storage/sluice/transport/transporttest"
	"sluice.example/outside/local"
)

// A provider that was written elsewhere is tried with the same rules as those that come with Sluice.
func TestTheProviderKeepsTheContract(t *testing.T) {
	transporttest.Run(t, func(t testing.TB) transporttest.Pair {
		f := local.New()
		p := transporttest.Pair{Dialer: f.Device(), Listener: f.Device(), Addr: "127.0.0.1:0", Addr6: "[::1]:0"}
		t.Cleanup(func() { _, _ = p.Dialer.Close(), p.Listener.Close() })
		return p
	})
}
