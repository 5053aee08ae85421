package iscsi

import "testing"

// Each state of a fetch has a way in and a way out.
func TestNoStateOfAFetchIsADeadEnd(t *testing.T) {
	for s := fetchIdle; s <= fetchEnding; s++ {
		in, out := false, false
		for o := fetchIdle; o <= fetchEnding; o++ {
			in, out = in || fetches.May(o, s), out || fetches.May(s, o)
		}
		if !in || !out || fetches.May(s, s) {
			t.Errorf("%q: a way in %v, a way out %v, follows itself %v", fetches.Name(s), in, out, fetches.May(s, s))
		}
	}
}
