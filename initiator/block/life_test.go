package block

import (
	"errors"
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/state"
)

// A request is ended once: only a new submission follows, and nothing that is under way can be submitted again.
func TestARequestIsEndedOnce(t *testing.T) {
	for l := idle; l <= ended; l++ {
		if (l == idle) != lives.May(l, routed) && l != parked && l != queued && l != out {
			t.Errorf("%s to routed", lives.Name(l))
		}
		if lives.May(l, idle) != (l == ended || l == routed) {
			t.Errorf("%s to idle", lives.Name(l))
		}
	}
	for _, l := range []life{idle, ended} {
		if lives.May(l, ended) {
			t.Errorf("%s can be ended", lives.Name(l))
		}
	}
	r := stateOf(&blockdev.Request{Op: blockdev.Flush})
	r.begin()
	r.to(queued)
	r.to(out)
	r.to(ended)
	defer func() {
		var bad *state.IllegalError
		if err, _ := recover().(error); !errors.As(err, &bad) {
			t.Errorf("ended twice: %v", err)
		}
	}()
	r.to(ended)
}

// A write over what waits behind a lost path waits there until the path is known to be quiet.
func TestAFencedRequestIsNotSentAgainByItself(t *testing.T) {
	for l := idle; l <= ended; l++ {
		if lives.May(fenced, l) != (l == parked || l == ended) {
			t.Errorf("fenced to %s", lives.Name(l))
		}
	}
}
