//go:build verbs && cgo && linux

package verbs

import (
	"net"
	"os"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/test/lib/need"
	"github.com/sluice-storage/sluice/transport/transporttest"
)

// The contract on a real adapter, or a soft device of the kernel: both ends on the address SLUICE_VERBS_ADDR, or that of the
// first adapter.
func TestAdapterKeepsEveryRule(t *testing.T) {
	need.RDMA(t)
	var name, addr string
	if a := os.Getenv("SLUICE_VERBS_ADDR"); a != "" {
		if addr = a; !strings.HasSuffix(a, ":0") {
			addr = net.JoinHostPort(a, "0")
		}
	} else {
		_, attr, ip := adapter(t)
		name, addr = attr.Name, net.JoinHostPort(ip.String(), "0")
	}
	var addr6 string
	if a := os.Getenv("SLUICE_VERBS_ADDR6"); a != "" {
		addr6 = net.JoinHostPort(a, "0")
	}
	infos, err := List(Options{WholeSlab: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range infos {
		t.Logf("%+v", i)
	}
	transporttest.Run(t, func(t testing.TB) transporttest.Pair {
		mk := func() *Device {
			o := Options{WholeSlab: true}
			if name != "" {
				o.Devices = []string{name}
			}
			d, err := Open(o)
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
		return transporttest.Pair{Dialer: mk(), Listener: mk(), Addr: addr, Addr6: addr6}
	})
}
