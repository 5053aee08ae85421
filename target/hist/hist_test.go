package hist

import (
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Every latency is in the one bucket whose bounds hold it, and nothing is lost.
func TestEachLatencyHasItsBucket(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h Hist
		var sum time.Duration
		var want [len(Bounds) + 1]uint64
		ds := rapid.SliceOf(rapid.Int64Range(0, int64(20*time.Second))).Draw(t, "latencies")
		for _, n := range ds {
			d := time.Duration(n)
			h.Observe(d)
			sum += d
			i := 0
			for ; i < len(Bounds); i++ {
				if d <= Bounds[i] {
					break
				}
			}
			want[i]++
		}
		var s Snapshot
		s.Add(&h)
		if s.Counts != want || s.Sum != sum || s.Count() != uint64(len(ds)) {
			t.Fatalf("%+v, want %v and %v", s, want, sum)
		}
	})
}

func TestObserversDoNotLoseEachOther(t *testing.T) {
	var h Hist
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 1000 {
				h.Observe(time.Millisecond)
			}
		})
	}
	wg.Wait()
	var s Snapshot
	if s.Add(&h); s.Count() != 4000 || s.Sum != 4*time.Second {
		t.Errorf("%+v", s)
	}
}

func TestObservingAllocatesNothing(t *testing.T) {
	var h Hist
	if n := testing.AllocsPerRun(1000, func() { h.Observe(Clock()) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkObserve(b *testing.B) {
	var h Hist
	for b.Loop() {
		from := Clock()
		h.Observe(Clock() - from + 90*time.Microsecond)
	}
}
