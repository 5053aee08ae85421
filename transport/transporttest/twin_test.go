package transporttest

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTwinKeepsEveryRule(t *testing.T) {
	Run(t, func(t testing.TB) Pair {
		a, b := Twin()
		t.Cleanup(func() {
			for _, d := range []interface{ Close() error }{a, b} {
				if err := d.Close(); err != nil {
					t.Error(err)
				}
			}
		})
		return Pair{Dialer: a, Listener: b, Addr: "127.0.0.1:0", Addr6: "[::1]:0"}
	})
}
