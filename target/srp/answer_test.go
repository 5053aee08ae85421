package srp

import (
	"testing"
	"testing/synctest"
)

// A task management answer of another channel waits until the response that it is behind has left, or never will. One of the same channel follows it on
// its queue pair, and one behind no response has nothing to wait for.
func TestAnswersWaitForResponsesOfOtherChannels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asker, other := &channel{}, &channel{}
		s := &sendSlot{}
		for _, x := range []struct {
			of, c *channel
			s     *sendSlot
			waits bool
		}{{asker, other, s, true}, {other, other, s, false}, {asker, other, nil, false}} {
			a := &answer{t: &task{c: x.of}}
			a.left.Store(2) // one more than is released
			x.c.overLocked(&task{c: x.c, manages: true, held: []*answer{a}}, x.s)
			synctest.Wait()
			if waits := a.left.Load() == 2; waits != x.waits {
				t.Errorf("waits: %v, want %v", waits, x.waits)
			}
			s.releaseLocked()
			synctest.Wait()
			if a.left.Load() != 1 || len(s.held) != 0 {
				t.Error("it was not let go once")
			}
		}
	})
}
