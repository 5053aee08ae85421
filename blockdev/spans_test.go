package blockdev_test

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
)

// TestSpansAreOneBufferInPieces holds Scatter, Gather and Differ against the same on one slice.
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
			n, want := blockdev.Gather(got, spans, int64(off)), bytes.Clone(b)
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
		if got := blockdev.Differ(b[:k], spans, int64(off)); got != want {
			rt.Fatalf("Differ says %d, the first difference is at %d", got, want)
		}
		if n := blockdev.Scatter(spans, int64(off), b); n != copy(whole[off:], b) {
			rt.Fatalf("Scatter of %d at %d took %d", len(b), off, n)
		}
		back := make([]byte, len(whole))
		blockdev.Gather(back, spans, 0)
		if !bytes.Equal(back, whole) {
			rt.Fatal("Scatter wrote something else")
		}
	})
}

func TestOpsHaveNames(t *testing.T) {
	for op := blockdev.Read; op <= blockdev.Status; op++ {
		if s := op.String(); s == "" || s[0] == 'o' && s[1] == 'p' {
			t.Errorf("%d is called %q", op, s)
		}
	}
	if s := blockdev.Op(99).String(); s != "op 99" {
		t.Errorf("99 is called %q", s)
	}
}
