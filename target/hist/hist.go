// Package hist counts latencies in fixed buckets: an observation is one atomic addition to a bucket and one to the sum, without
// lock or allocation. Each observer has a Hist of its own, so that no cache line is shared; a reader adds them up.
package hist

import (
	"sync/atomic"
	"time"
)

// Bounds are the upper bounds of the buckets, in 1-2-5 steps from below a page-cache hit to above any sane disk. They are part
// of what dashboards are built on: they do not change.
var Bounds = [...]time.Duration{
	10 * time.Microsecond, 20 * time.Microsecond, 50 * time.Microsecond,
	100 * time.Microsecond, 200 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond,
	10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second,
}

// Hist is a histogram. The zero value is ready; any goroutine may observe and read. It must not be copied.
type Hist struct {
	counts [len(Bounds) + 1]atomic.Uint64
	sum    atomic.Uint64 // nanoseconds
}

// Observe counts one latency.
func (h *Hist) Observe(d time.Duration) {
	i := 0
	for i < len(Bounds) && d > Bounds[i] {
		i++
	}
	h.counts[i].Add(1)
	h.sum.Add(uint64(max(d, 0)))
}

// Snapshot is what a histogram held at a moment; counters that move meanwhile may differ by the observations under way.
type Snapshot struct {
	Counts [len(Bounds) + 1]uint64 // the last is beyond all bounds
	Sum    time.Duration
}

// Add sums h into s.
func (s *Snapshot) Add(h *Hist) {
	for i := range s.Counts {
		s.Counts[i] += h.counts[i].Load()
	}
	s.Sum += time.Duration(h.sum.Load())
}

// Merge sums o into s.
func (s *Snapshot) Merge(o *Snapshot) {
	for i := range s.Counts {
		s.Counts[i] += o.Counts[i]
	}
	s.Sum += o.Sum
}

// Count is the number of observations.
func (s *Snapshot) Count() (n uint64) {
	for _, c := range s.Counts {
		n += c
	}
	return n
}

// Clock is the monotonic time since the process began, in a form that costs less than time.Now.
func Clock() time.Duration { return time.Since(epoch) }

var epoch = time.Now()
