package owner

import (
	"testing"
	"testing/synctest"
	"time"
)

const limit = time.Millisecond

// Work that ends in time leaves the task where it is, however much of it there is.
func TestWorkThatDoesNotBlockKeepsTheTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		taken := 0
		var r Handoff
		r.Init(limit, func() { taken++ })
		defer r.Stop()
		for range 1000 {
			s := r.Enter()
			time.Sleep(limit - 1)
			if !r.Leave(s) {
				t.Fatal("the task is gone")
			}
		}
		time.Sleep(10 * limit)
		synctest.Wait()
		if taken != 0 {
			t.Errorf("%d handoffs, and nothing blocked", taken)
		}
	})
}

// Work that blocks loses the task after the limit, once, and so does the next one.
func TestWorkThatBlocksLosesTheTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		taken := make(chan time.Time, 10)
		var r Handoff
		r.Init(limit, func() { taken <- time.Now() })
		defer r.Stop()
		for range 3 {
			began := time.Now()
			s := r.Enter()
			time.Sleep(5 * limit)
			if r.Leave(s) {
				t.Fatal("it blocked and still has the task")
			}
			select {
			case at := <-taken:
				if late := at.Sub(began); late < limit || late > 2*limit {
					t.Errorf("a handoff after %v, the limit is %v", late, limit)
				}
			default:
				t.Fatal("no handoff")
			}
		}
		if len(taken) != 0 {
			t.Errorf("%d handoffs too many", len(taken))
		}
	})
}
