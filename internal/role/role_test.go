package role

import (
	"testing"
	"testing/synctest"
	"time"
)

const limit = time.Millisecond

// Work that ends in time leaves the role where it is, however much of it there is.
func TestWorkThatDoesNotBlockKeepsTheRole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		taken := 0
		var r Role
		r.Init(limit, func() { taken++ })
		defer r.Stop()
		for range 1000 {
			s := r.Enter()
			time.Sleep(limit - 1)
			if !r.Leave(s) {
				t.Fatal("the role is gone")
			}
		}
		time.Sleep(10 * limit)
		synctest.Wait()
		if taken != 0 {
			t.Errorf("%d deputies, and nothing blocked", taken)
		}
	})
}

// Work that blocks loses the role after the limit, once, and a deputy's that blocks loses it again.
func TestWorkThatBlocksLosesTheRole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		taken := make(chan time.Time, 10)
		var r Role
		r.Init(limit, func() { taken <- time.Now() })
		defer r.Stop()
		for range 3 {
			began := time.Now()
			s := r.Enter()
			time.Sleep(5 * limit)
			if r.Leave(s) {
				t.Fatal("it blocked and still has the role")
			}
			select {
			case at := <-taken:
				if late := at.Sub(began); late < limit || late > 2*limit {
					t.Errorf("a deputy after %v, the limit is %v", late, limit)
				}
			default:
				t.Fatal("no deputy")
			}
		}
		if len(taken) != 0 {
			t.Errorf("%d deputies too many", len(taken))
		}
	})
}
