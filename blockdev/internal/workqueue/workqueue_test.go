package workqueue

import (
	"sync"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/sluice-storage/sluice/blockdev"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Requests come out in the order in which they went in, and each wakes a worker, also where none waits at that moment. A closed queue takes
// none, and gives those that it has.
func TestRequestsComeOutOnceAndInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q Queue
		q.Init()
		var l [5]blockdev.Request
		for i := range l {
			l[i].Next = &l[0] // what an engine left there
			if !q.Put(&l[i]) {
				t.Fatal("an open queue takes nothing")
			}
		}
		for i := range l {
			if r := q.Get(); r != &l[i] || r.Next != nil {
				t.Fatalf("request %d is not that", i)
			}
		}
		// Two workers, of which each keeps the first request that it gets.
		taken := make(chan *blockdev.Request, 8)
		stay := make(chan struct{})
		var workers sync.WaitGroup
		for range 2 {
			workers.Go(func() {
				for r := q.Get(); r != nil; r = q.Get() {
					taken <- r
					<-stay
				}
			})
		}
		synctest.Wait()
		for i := range 3 {
			q.Put(&l[i])
		}
		synctest.Wait()
		if n := len(taken); n != 2 {
			t.Errorf("%d of two workers were woken", n)
		}
		q.Close()
		if q.Put(&l[3]) {
			t.Error("a closed queue takes a request")
		}
		close(stay)
		workers.Wait()
		if n := len(taken); n != 3 {
			t.Errorf("%d requests came out, want 3", n)
		}
	})
}
