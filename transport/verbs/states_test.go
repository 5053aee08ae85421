package verbs

import (
	"testing"

	"github.com/sluice-storage/sluice/internal/state"
)

// A queue pair that has ended is not begun again, and what outstands is with its owner only once the adapter has been asked.
func TestAnIllegalMoveOfAQueuePairPanics(t *testing.T) {
	panics := func(f func()) (is bool) {
		defer func() { _, is = recover().(*state.IllegalError) }()
		f()
		return false
	}
	legal := map[[2]qpPhase]bool{{fresh, adopted}: true, {fresh, dying}: true, {adopted, dying}: true, {dying, settled}: true}
	for from := fresh; from <= settled; from++ {
		for to := fresh; to <= settled; to++ {
			q := QP{}
			q.phase.v.Store(uint32(from))
			if panics(func() { q.phase.moveLocked(qpPhaseMoves, to) }) == legal[[2]qpPhase{from, to}] {
				t.Errorf("from %s to %s", qpPhaseMoves.Name(from), qpPhaseMoves.Name(to))
			}
		}
	}
	if !qpPhaseMoves.Ends(settled) {
		t.Error("a program goes on behind the end, with memory that its owner has back")
	}
	if q := (QP{}); !panics(func() { q.objects.moveLocked(qpObjectMoves, live) }) {
		t.Error("a queue pair without objects is connected")
	}
}
