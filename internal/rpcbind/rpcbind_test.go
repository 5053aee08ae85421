package rpcbind

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/sluice-storage/sluice/internal/xdr"
)

func TestUaddr(t *testing.T) {
	for _, s := range []string{"192.0.2.1:20049", "[2001:db8::1]:111", "0.0.0.0:0"} {
		ap := netip.MustParseAddrPort(s)
		got, err := ParseUaddr(Uaddr(ap))
		if err != nil || got != ap {
			t.Errorf("%s: %s, %v, %v", s, Uaddr(ap), got, err)
		}
	}
	if got := Uaddr(netip.MustParseAddrPort("192.0.2.1:20049")); got != "192.0.2.1.78.81" {
		t.Errorf("%s", got)
	}
	for _, s := range []string{"", "1.2", "a.b.c", "1.2.3.4.300.1", "1.2.3.4.-1.1"} {
		if _, err := ParseUaddr(s); err == nil {
			t.Errorf("%q was taken", s)
		}
	}
}

func TestLists(t *testing.T) {
	l2 := []Mapping{{100003, 3, ProtoTCP, 2049}, {100005, 3, ProtoUDP, 20048}}
	r := xdr.NewReader(AppendDump2(nil, l2))
	if got := ParseDump2(&r); !reflect.DeepEqual(got, l2) || r.Err() != nil || r.Len() != 0 {
		t.Errorf("%v %v", got, r.Err())
	}
	l := []Binding{{100003, 3, "rdma", "192.0.2.1.78.81", "sluice"}}
	r = xdr.NewReader(AppendDump(nil, l))
	if got := ParseDump(&r); !reflect.DeepEqual(got, l) || r.Err() != nil || r.Len() != 0 {
		t.Errorf("%v %v", got, r.Err())
	}
}

func FuzzParse(f *testing.F) {
	b := Binding{100003, 3, "tcp", "1.2.3.4.8.1", "me"}
	f.Add(b.Append(nil))
	f.Add(AppendDump(nil, []Binding{b}))
	f.Fuzz(func(_ *testing.T, b []byte) {
		for _, parse := range []func(*xdr.Reader){
			func(r *xdr.Reader) { var m Mapping; m.Parse(r) },
			func(r *xdr.Reader) { var m Binding; m.Parse(r) },
			func(r *xdr.Reader) { ParseDump(r) },
			func(r *xdr.Reader) { ParseDump2(r) },
			func(r *xdr.Reader) { _, _ = ParseUaddr(ParseAddr(r)) },
		} {
			r := xdr.NewReader(b)
			parse(&r)
		}
	})
}
