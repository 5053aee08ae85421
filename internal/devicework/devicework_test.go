package devicework

import (
	"slices"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/sluice-storage/sluice/blockdev"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// performer notes what it has performed; with valve set it hangs at each until that lets it go.
type performer struct {
	valve chan struct{}
	done  []int64
}

func (p *performer) Perform(r *blockdev.Request) {
	if p.valve != nil {
		<-p.valve
	}
	p.done = append(p.done, r.Offset)
}

// A device that hangs keeps no other's work, and each device's is performed once and in order, on one goroutine at a time.
func TestWorkThatIsPerformedApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a Apart
		hangs, free := &performer{valve: make(chan struct{})}, &performer{}
		want := []int64{0, 1, 2, 3, 4}
		for _, i := range want {
			a.Perform(Work{hangs, &blockdev.Request{Offset: i}})
			a.Perform(Work{free, &blockdev.Request{Offset: i}})
		}
		synctest.Wait()
		if !slices.Equal(free.done, want) || len(hangs.done) != 0 {
			t.Errorf("while one device hangs: %v of the other, %v of it", free.done, hangs.done)
		}
		for range want {
			hangs.valve <- struct{}{}
		}
		synctest.Wait()
		if !slices.Equal(hangs.done, want) {
			t.Errorf("performed %v", hangs.done)
		}
		if len(a.waiting) != 0 {
			t.Errorf("%d devices with work", len(a.waiting))
		}
		hangs.valve = nil
		a.Perform(Work{hangs, &blockdev.Request{Offset: 5}}) // after all had been done
		synctest.Wait()
		if n := len(hangs.done); n != 6 {
			t.Errorf("%d performed, want 6", n)
		}
	})
}
