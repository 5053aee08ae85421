package rpcserver

import (
	"slices"
	"testing"
)

// Each state of a call has a way in and a way out, and what is dropped can be dropped from wherever it is.
func TestNoStateOfACallIsADeadEnd(t *testing.T) {
	all := []life{lifeIdle, lifeArriving, lifeScreening, lifeInline, lifeOwner, lifeSerial, lifeWorker, lifeOvertaken, lifeWaiting, lifeAnswered}
	for _, s := range all {
		if !slices.ContainsFunc(all, func(from life) bool { return lives.May(from, s) }) {
			t.Errorf("no way leads to %q", lives.Name(s))
		}
		if s != lifeIdle && !lives.May(s, lifeIdle) {
			t.Errorf("a call that is %q cannot be dropped", lives.Name(s))
		}
		if s != lifeIdle && lives.May(s, s) {
			t.Errorf("%q may follow itself: somebody would execute the call twice", lives.Name(s))
		}
	}
}

// A call that has been answered, or given up, is not executed any more.
func TestWhatIsOverIsNotExecuted(t *testing.T) {
	for _, from := range []life{lifeIdle, lifeOvertaken, lifeAnswered} {
		for _, to := range []life{lifeInline, lifeOwner, lifeSerial, lifeWorker} {
			if lives.May(from, to) {
				t.Errorf("a call may go from %q to %q", lives.Name(from), lives.Name(to))
			}
		}
	}
}
