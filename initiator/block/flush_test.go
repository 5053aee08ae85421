package block

import (
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
)

// A task that carried data before keeps none of it in a command that carries none: LIO rejects an expected length
// without a direction (RFC 7143 section 11.3.4).
func TestFlushExpectsNoDataWhateverTheTaskDidBefore(t *testing.T) {
	used := &task{edtl: 192, in: true, n: 192}
	if _, ok := used.build(stateOf(&blockdev.Request{Op: blockdev.Flush}), &limits{block: 512}, 16, mem.Span{}); !ok {
		t.Fatal("not built")
	}
	if used.edtl != 0 || used.in || used.out || used.n != 0 {
		t.Errorf("the flush expects %d bytes, in %t, out %t", used.edtl, used.in, used.out)
	}
}
