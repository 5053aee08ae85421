package mem_test

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-storage/sluice/mem"
)

// TestSpansAreOneBufferInPieces holds what works on lists of spans against the same on one slice.
func TestSpansAreOneBufferInPieces(t *testing.T) {
	slab, err := mem.NewSlab(4096)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := slab.Close(); err != nil {
			t.Error(err)
		}
	}()
	rapid.Check(t, func(rt *rapid.T) {
		var spans []mem.Span
		var whole []byte
		at := 0
		for _, n := range rapid.SliceOfN(rapid.IntRange(0, 40), 0, 12).Draw(rt, "pieces") {
			s := mem.Span{Slab: slab, Off: at, Len: n}
			copy(s.Bytes(), rapid.SliceOfN(rapid.Byte(), n, n).Draw(rt, "bytes"))
			spans, whole, at = append(spans, s), append(whole, s.Bytes()...), at+n+3
		}
		off := rapid.IntRange(0, len(whole)).Draw(rt, "off")
		b := rapid.SliceOfN(rapid.Byte(), 0, 60).Draw(rt, "b")

		if got := bytes.Clone(b); true {
			n, want := mem.Gather(got, spans, int64(off)), bytes.Clone(b)
			if k := copy(want, whole[off:]); n != k || !bytes.Equal(got, want) {
				rt.Fatalf("Gather of %d at %d gave %d bytes", len(b), off, n)
			}
		}
		k := min(len(b), len(whole)-off)
		want := -1
		for i := range k {
			if b[i] != whole[off+i] {
				want = i
				break
			}
		}
		if got := mem.Differ(b[:k], spans, int64(off)); got != want {
			rt.Fatalf("Differ says %d, the first difference is at %d", got, want)
		}
		if n := mem.Scatter(spans, int64(off), b); n != copy(whole[off:], b) {
			rt.Fatalf("Scatter of %d at %d took %d", len(b), off, n)
		}
		back := make([]byte, len(whole))
		mem.Gather(back, spans, 0)
		if !bytes.Equal(back, whole) {
			rt.Fatal("Scatter wrote something else")
		}
		if n := mem.Total(spans); n != int64(len(whole)) {
			rt.Fatalf("Total is %d, there are %d", n, len(whole))
		}

		n := rapid.IntRange(0, len(whole)+5).Draw(rt, "n")
		rest := whole[off:min(off+n, len(whole))]
		part := mem.Part(nil, spans, int64(off), int64(n))
		if got := make([]byte, len(rest)); mem.Total(part) != int64(len(rest)) || mem.Gather(got, part, 0) != len(rest) || !bytes.Equal(got, rest) {
			rt.Fatalf("Part of %d at %d is %d bytes", n, off, mem.Total(part))
		}
		var walked []byte
		limit := rapid.IntRange(1, 50).Draw(rt, "limit")
		for c := mem.At(spans, int64(off)); ; {
			p := c.Next(limit)
			if len(p) == 0 {
				break
			}
			if len(p) > limit {
				rt.Fatalf("Next(%d) gave %d bytes", limit, len(p))
			}
			walked = append(walked, p...)
		}
		if !bytes.Equal(walked, whole[off:]) {
			rt.Fatalf("a cursor at %d saw %d bytes, there are %d", off, len(walked), len(whole)-off)
		}
		var joined []mem.Span
		for at := 0; at < len(whole); {
			p := mem.Part(nil, spans, int64(at), int64(limit))
			for _, s := range p {
				joined = mem.Join(joined, s)
			}
			at += int(mem.Total(p))
		}
		pieces := 0
		for _, s := range spans {
			if s.Len > 0 {
				pieces++
			}
		}
		if got := make([]byte, len(whole)); len(joined) != pieces || mem.Gather(got, joined, 0) != len(whole) || !bytes.Equal(got, whole) {
			rt.Fatalf("%d pieces joined again are %d", pieces, len(joined))
		}

		other := []mem.Span{{Slab: slab, Off: 3000, Len: rapid.IntRange(0, 500).Draw(rt, "other")}}
		copy(other[0].Bytes(), whole)
		k = min(len(whole), other[0].Len)
		want = -1
		if k > 0 && rapid.Bool().Draw(rt, "spoil") {
			want = rapid.IntRange(0, k-1).Draw(rt, "where")
			other[0].Bytes()[want] ^= 1
		}
		if a, b := mem.DifferSpans(spans, other), mem.DifferSpans(other, spans); a != want || b != want {
			rt.Fatalf("DifferSpans says %d and %d, the first difference is at %d", a, b, want)
		}
	})
}

// TestAChainIsItsBuffersBytes holds the spans of a chain of buffers against the same bytes on one slice.
func TestAChainIsItsBuffersBytes(t *testing.T) {
	pool := mem.NewPool(8 << 20)
	rapid.Check(t, func(rt *rapid.T) {
		var bufs []*mem.Buf
		var whole []byte
		for i, n := range rapid.SliceOfN(rapid.IntRange(1, 9000), 0, 4).Draw(rt, "buffers") {
			b, err := pool.Get(n)
			if err != nil {
				rt.Fatal(err)
			}
			defer b.Release()
			for k := range b.Bytes() {
				b.Bytes()[k] = byte(k ^ i*91)
			}
			bufs, whole = append(bufs, b), append(whole, b.Bytes()...)
		}
		off, n := rapid.IntRange(0, len(whole)).Draw(rt, "off"), rapid.IntRange(0, len(whole)+5).Draw(rt, "n")
		want := whole[off:min(off+n, len(whole))]
		first := mem.Span{Len: 1}
		spans := mem.Chain([]mem.Span{first}, bufs, off, n)
		if spans[0] != first || mem.Total(spans[1:]) != int64(len(want)) {
			rt.Fatalf("%d bytes at %d of %d are %d behind what was there", n, off, len(whole), mem.Total(spans[1:]))
		}
		if got := make([]byte, len(want)); mem.Gather(got, spans[1:], 0) != len(want) || !bytes.Equal(got, want) {
			rt.Fatalf("%d bytes at %d of %d are others", n, off, len(whole))
		}
	})
}
