package verbs

import (
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/transport"
)

// A wildcard of the kernel's would take the port on adapters that are not used, and from TCP on iWARP adapters that come later: a wildcard
// is the addresses of those in use, always.
func TestAWildcardTakesNoPortOnAdaptersThatAreNotUsed(t *testing.T) {
	s := newSim(t)
	s.add("mellanox", "mlx5", "10.0.0.1", "fd00::1")
	local := func() ([]netip.Addr, error) {
		var all []netip.Addr
		for _, a := range []string{"10.0.0.1", "fd00::1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "192.0.2.9"} {
			all = append(all, netip.MustParseAddr(a))
		}
		return all, nil
	}
	places := func(o Options, addr string) []transport.Place {
		t.Helper()
		o.local = local
		d, err := open(s, o)
		if err != nil {
			t.Fatal(err)
		}
		l, err := d.Places(t.Context(), addr)
		if err := errors.Join(err, d.Close()); err != nil {
			t.Fatal(err)
		}
		return l
	}
	is := func(got []transport.Place, want ...transport.Place) {
		t.Helper()
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	mellanox := transport.Place{Address: "10.0.0.1:3260", Device: "mellanox"}
	is(places(Options{}, "0.0.0.0:3260"), mellanox)
	is(places(Options{}, "10.0.0.1:3260"), mellanox)
	s.add("other", "mlx5", "10.0.0.2")
	other := transport.Place{Address: "10.0.0.2:3260", Device: "other"}
	is(places(Options{}, "0.0.0.0:3260"), mellanox, other)
	is(places(Options{Devices: []string{"mellanox"}}, "0.0.0.0:3260"), mellanox)
	is(places(Options{Devices: []string{"mellanox"}}, ":3260"), mellanox, transport.Place{Address: "[fd00::1]:3260", Device: "mellanox"})
	is(places(Options{Devices: []string{"mellanox"}}, "[::]:3260"), mellanox, transport.Place{Address: "[fd00::1]:3260", Device: "mellanox"})
	s.add("chelsio", "cxgb4", "10.0.0.3")
	is(places(Options{}, "0.0.0.0:3260"), mellanox, other)
	is(places(Options{WholeSlab: true}, "0.0.0.0:3260"), mellanox, other, transport.Place{Address: "10.0.0.3:3260", Device: "chelsio", SharesTCP: true})
	s.add("soft", "siw", "10.0.0.4")
	is(places(Options{Devices: []string{"soft"}}, "0.0.0.0:3260"), transport.Place{Address: "10.0.0.4:3260", Device: "soft", SharesTCP: true})
	if left := s.leaks(); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// An address that no adapter in use has is an error that says so.
func TestAnAddressOfNoAdapterIsNoPlace(t *testing.T) {
	s := newSim(t)
	s.add("mellanox", "mlx5", "10.0.0.1")
	s.add("chelsio", "cxgb4", "10.0.0.3")
	d, err := open(s, Options{local: func() ([]netip.Addr, error) { return nil, nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var shut *ExposureError
	if _, err := d.Places(t.Context(), "192.0.2.9:3260"); !errors.Is(err, unix.ENODEV) || !strings.Contains(err.Error(), "no RDMA device has this address") {
		t.Errorf("an address of no adapter: %v", err)
	}
	if _, err := d.Places(t.Context(), "10.0.0.3:3260"); !errors.As(err, &shut) {
		t.Errorf("an address of one that is left alone: %v", err)
	}
	if _, err := d.Places(t.Context(), "0.0.0.0:3260"); err == nil {
		t.Error("a machine without addresses has a place")
	}
}
