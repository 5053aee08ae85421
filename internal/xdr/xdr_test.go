package xdr

import (
	"bytes"
	"errors"
	"testing"

	"pgregory.net/rapid"
)

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.Uint32().Draw(t, "a"), rapid.Uint64().Draw(t, "b")
		c := rapid.Bool().Draw(t, "c")
		d := rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "d")
		s := rapid.StringN(0, 20, 60).Draw(t, "s")
		m := AppendString(AppendOpaque(AppendBool(AppendUint64(AppendUint32(nil, a), b), c), d), s)
		if len(m)%4 != 0 {
			t.Fatalf("%d bytes are no whole words", len(m))
		}
		r := NewReader(m)
		if r.Uint32() != a || r.Uint64() != b || r.Bool() != c || !bytes.Equal(r.Opaque(40), d) || r.String(60) != s || r.Err() != nil || r.Len() != 0 {
			t.Fatalf("read back differently: %v", r.Err())
		}
		for n := range m {
			r := NewReader(m[:n])
			r.Uint32()
			r.Uint64()
			r.Bool()
			r.Opaque(40)
			_ = r.String(60)
			if !errors.Is(r.Err(), ErrShort) {
				t.Fatalf("cut at %d: %v", n, r.Err())
			}
		}
	})
}

func TestLimitsAndIllegalValues(t *testing.T) {
	var le *LimitError
	r := NewReader(AppendOpaque(nil, make([]byte, 9)))
	if r.Opaque(8); !errors.As(r.Err(), &le) || le.Len != 9 {
		t.Fatalf("9 bytes of 8: %v", r.Err())
	}
	// A length that would be negative as an int is no way around the limit.
	r = NewReader(AppendUint32(nil, 0xffffffff))
	if r.Opaque(1 << 20); !errors.As(r.Err(), &le) {
		t.Fatalf("2^32-1 bytes: %v", r.Err())
	}
	r = NewReader(AppendUint32(nil, 17))
	if r.Count(16); !errors.As(r.Err(), &le) {
		t.Fatalf("17 items of 16: %v", r.Err())
	}
	var ve *ValueError
	r = NewReader(AppendUint32(nil, 2))
	if r.Bool(); !errors.As(r.Err(), &ve) {
		t.Fatalf("bool 2: %v", r.Err())
	}
	// The first error stays, and nothing is read after it.
	if r.Uint64() != 0 || r.Len() != 0 || !errors.As(r.Err(), &ve) {
		t.Fatalf("after an error: %v", r.Err())
	}
}
