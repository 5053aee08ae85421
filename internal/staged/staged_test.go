package staged_test

import (
	"bytes"
	"testing"

	"go.uber.org/goleak"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/blockdevtest"
	bmem "github.com/sluice-storage/sluice/blockdev/mem"
	"github.com/sluice-storage/sluice/internal/staged"
	"github.com/sluice-storage/sluice/mem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB) *staged.Device {
	below, err := bmem.Open(bmem.Options{Size: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return staged.Open(below)
}

func TestConformance(t *testing.T) {
	blockdevtest.Run(t, blockdevtest.Options{Open: func(t testing.TB) blockdev.Device { return open(t) }})
}

// witness is a device that remembers whose memory it was given.
type witness struct {
	blockdev.Device
	given []mem.Span
}

func (w *witness) Submit(r *blockdev.Request) {
	w.given = append(w.given, r.Data...)
	w.Device.Submit(r)
}

// All payload goes through memory that is not the request's, also where the request has it in pieces.
func TestPayloadIsCopied(t *testing.T) {
	below, err := bmem.Open(bmem.Options{Size: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	w := &witness{Device: below}
	d := staged.Open(w)
	s, err := mem.NewSlab(64 << 10)
	if err != nil {
		t.Fatal(err)
	}
	all := mem.Span{Slab: s, Len: 64 << 10}
	for i := range all.Bytes()[:32<<10] {
		all.Bytes()[i] = byte(i*7 + i>>8)
	}
	pieces := func(at int) []mem.Span {
		return []mem.Span{all.Cut(at, 512), all.Cut(at+512, 15872), all.Cut(at+16384, 16384)}
	}
	do := func(op blockdev.Op, data []mem.Span) {
		t.Helper()
		if err := blockdevtest.Do(t, d, &blockdev.Request{Op: op, Offset: 4096, Length: 32 << 10, Data: data}); err != nil {
			t.Fatal(err)
		}
	}
	do(blockdev.Write, pieces(0))
	do(blockdev.Read, pieces(32<<10))
	if !bytes.Equal(all.Bytes()[:32<<10], all.Bytes()[32<<10:]) {
		t.Error("what was written is not read")
	}
	if len(w.given) != 2 {
		t.Fatalf("the device below was given %d pieces of memory, want one of each request", len(w.given))
	}
	for _, g := range w.given {
		if g.Slab == s || g.Len != 32<<10 {
			t.Errorf("the device below was given %d bytes of slab %d, the request's is %d", g.Len, g.Slab.ID(), s.ID())
		}
	}
	blockdevtest.Close(t, d)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
