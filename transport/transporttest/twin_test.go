package transporttest

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// An adapter's twin keeps all rules but those that its Caps name, and is what the upper protocols are tried on that promise no more.
func TestAdapterTwinKeepsEveryRule(t *testing.T) {
	for name, like := range map[string]Adapter{"windows": {}, "whole slab": {WholeSlab: true}} {
		t.Run(name, func(t *testing.T) {
			Run(t, func(t testing.TB) Pair {
				a, b := AdapterTwin(like)
				t.Cleanup(func() {
					for _, d := range []interface{ Close() error }{a, b} {
						if err := d.Close(); err != nil {
							t.Error(err)
						}
					}
				})
				return Pair{Dialer: a, Listener: b, Addr: "127.0.0.1:0", Addr6: "[::1]:0"}
			})
		})
	}
}

func TestATwinKeepsMemoryThatWorkNames(t *testing.T) {
	a, _ := Twin()
	slab, err := mem.NewSlab(4096)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = slab.Close() }()
	if err := a.Register(slab); err != nil {
		t.Fatal(err)
	}
	q, err := a.NewQP(transport.QPOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.PostRecv([]transport.Recv{{Buf: mem.Span{Slab: slab, Len: 8}}}); err != nil {
		t.Fatal(err)
	}
	if a.Unregister(slab) == nil {
		t.Fatal("memory was let go of that a receive names")
	}
	if err := q.Close(transport.Reason{}); err != nil {
		t.Fatal(err)
	}
	if err := a.Unregister(slab); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
}

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
