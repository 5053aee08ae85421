package shm

import (
	"bytes"
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

func drawRecord(t *rapid.T) record {
	r := record{op: rapid.Uint8Range(opSend, opMax-1).Draw(t, "op"), stag: rapid.Uint32().Draw(t, "stag"), off: rapid.Uint64().Draw(t, "off")}
	if r.op == opReadReq {
		r.size = rapid.Uint32Range(0, maxMessage).Draw(t, "size")
		r.inline = []byte{}
		return r
	}
	if n := rapid.IntRange(0, maxSGE).Draw(t, "pieces"); n > 0 {
		for range n {
			p := piece{slab: rapid.Uint32().Draw(t, "slab"), n: rapid.Uint32Range(1, maxMessage/maxSGE).Draw(t, "n"), off: rapid.Uint64().Draw(t, "at")}
			r.size += p.n
			r.pieces = append(r.pieces, p)
		}
		return r
	}
	r.inline = rapid.SliceOfN(rapid.Byte(), 0, inlineMax).Draw(t, "payload")
	r.size = uint32(len(r.inline))
	return r
}

// What is encoded is what is decoded, however much of the bytes behind it were another record's.
func TestRecordsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawRecord(t)
		b := raw(want)
		want.slots = b[3]
		var got record
		if err := got.parse(b); err != nil {
			t.Fatal(err)
		}
		if len(got.pieces) == 0 {
			got.pieces = nil
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v became %+v", want, got)
		}
	})
}

func TestSetUpMessagesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := hello{kind: rapid.Uint8Range(msgRequest, msgRefusal).Draw(t, "kind"), readsIn: rapid.Uint16().Draw(t, "in"), readsOut: rapid.Uint16().Draw(t, "out"),
			slots: 1 << rapid.IntRange(6, 16).Draw(t, "slots"), private: rapid.SliceOfN(rapid.Byte(), 0, maxPrivate).Draw(t, "private"),
			text: rapid.StringOfN(rapid.RuneFrom([]rune("aä€ #:,")), 0, 60, maxDetail).Draw(t, "text")}
		var got hello
		if err := got.parse(want.append(nil)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.private, want.private) {
			t.Fatalf("private data %x became %x", want.private, got.private)
		}
		got.private, want.private = nil, nil
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v became %+v", want, got)
		}
	})
}
