package nlm4

import (
	"testing"

	"github.com/sluice-storage/sluice/internal/xdr"
)

type item interface {
	Append([]byte) []byte
	Parse(*xdr.Reader)
}

func items() []item {
	return []item{&TestArgs{}, &LockArgs{}, &CancelArgs{}, &UnlockArgs{}, &Res{}, &TestRes{}, &TestRes{Stat: Denied}, &ShareArgs{}, &ShareRes{}, &FreeAllArgs{}, &Notify{}}
}

func again(t *testing.T, l []item, b []byte) (understood int) {
	for _, x := range l {
		r := xdr.NewReader(b)
		x.Parse(&r)
		if r.Err() != nil {
			continue
		}
		understood++
		first := string(x.Append(nil))
		r = xdr.NewReader([]byte(first))
		x.Parse(&r)
		if r.Err() != nil || string(x.Append(nil)) != first {
			t.Fatalf("%T: %x came back as %x", x, first, x.Append(nil))
		}
	}
	return understood
}

func TestRoundTrip(t *testing.T) {
	l := LockArgs{Cookie: []byte("c"), Block: true, Exclusive: true, Reclaim: true, State: 7,
		Lock: Lock{Caller: []byte("host"), FH: make([]byte, 32), Owner: []byte("me"), SVID: 9, Off: 1 << 40, Len: 3}}
	var got LockArgs
	r := xdr.NewReader(l.Append(nil))
	if got.Parse(&r); r.Err() != nil || r.Len() != 0 || string(got.Append(nil)) != string(l.Append(nil)) || got.Lock.Off != 1<<40 || !got.Reclaim {
		t.Fatalf("%+v, %v", got, r.Err())
	}
	for _, x := range items() {
		if again(t, items(), x.Append(nil)) == 0 {
			t.Fatalf("%T is understood as nothing", x)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, x := range items() {
		f.Add(x.Append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) { again(t, items(), b) })
}
