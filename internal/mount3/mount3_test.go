package mount3

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/sluice-storage/sluice/internal/xdr"
)

func TestRoundTrips(t *testing.T) {
	m := MntRes{FH: []byte{1, 2, 3}, Flavors: []uint32{1, 0}}
	var got MntRes
	r := xdr.NewReader(m.Append(nil))
	if got.Parse(&r); r.Err() != nil || !reflect.DeepEqual(got, m) {
		t.Errorf("%+v, %v", got, r.Err())
	}
	e := []Export{{Dir: "/a", Groups: []string{"*", "10.0.0.0/8"}}, {Dir: "/b"}}
	r = xdr.NewReader(AppendExports(nil, e))
	if l := ParseExports(&r); r.Err() != nil || !reflect.DeepEqual(l, e) {
		t.Errorf("%+v, %v", l, r.Err())
	}
	d := []Mounted{{"host", "/a"}}
	r = xdr.NewReader(AppendDump(nil, d))
	if l := ParseDump(&r); r.Err() != nil || !reflect.DeepEqual(l, d) {
		t.Errorf("%+v, %v", l, r.Err())
	}
	if b := AppendExports(nil, nil); !bytes.Equal(b, []byte{0, 0, 0, 0}) {
		t.Errorf("%x", b)
	}
}

func FuzzParse(f *testing.F) {
	f.Add((&MntRes{FH: []byte{1}, Flavors: []uint32{1}}).Append(nil))
	f.Add(AppendExports(nil, []Export{{Dir: "/a", Groups: []string{"*"}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, parse := range []func(*xdr.Reader) int{
			func(r *xdr.Reader) int { var m MntRes; m.Parse(r); return len(m.Flavors) },
			func(r *xdr.Reader) int { var m PathArgs; m.Parse(r); return 0 },
			func(r *xdr.Reader) int { return len(ParseExports(r)) },
			func(r *xdr.Reader) int { return len(ParseDump(r)) },
		} {
			r := xdr.NewReader(b)
			if n := parse(&r); n > MaxList {
				t.Fatalf("a list of %d", n)
			}
		}
	})
}
