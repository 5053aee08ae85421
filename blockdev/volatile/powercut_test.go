package volatile_test

import (
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/blockdevtest"
)

const cuts = 150

func TestWhatWasAcknowledgedAsDurableSurvivesAnyCut(t *testing.T) {
	for seed := range uint64(cuts) {
		if err := blockdevtest.PowerCut(t, seed, func(d blockdev.Device) blockdev.Device { return d }); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// liar acknowledges what it does not do.
type liar struct {
	blockdev.Device
	flush, fua bool
}

func (l liar) Submit(r *blockdev.Request) {
	if l.flush && r.Op == blockdev.Flush {
		r.Finish(nil)
		return
	}
	if l.fua && r.FUA {
		below := &blockdev.Request{Op: r.Op, Offset: r.Offset, Length: r.Length, Data: r.Data}
		below.Done = func(b *blockdev.Request) { r.Finish(b.Err) }
		l.Device.Submit(below)
		return
	}
	l.Device.Submit(r)
}

// TestTheCheckCanFail holds the check above against layers that skip what they must do.
func TestTheCheckCanFail(t *testing.T) {
	for name, l := range map[string]liar{"a skipped flush": {flush: true}, "an ignored FUA": {fua: true}} {
		caught := 0
		for seed := range uint64(cuts) {
			stack := func(d blockdev.Device) blockdev.Device { l := l; l.Device = d; return l }
			if blockdevtest.PowerCut(t, seed, stack) != nil {
				caught++
			}
		}
		if caught < cuts/4 {
			t.Errorf("%s was seen in %d of %d cuts only", name, caught, cuts)
		} else {
			t.Logf("%s was seen in %d of %d cuts", name, caught, cuts)
		}
	}
}
