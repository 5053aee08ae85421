package limit_test

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/blockdevtest"
	"github.com/sluice-storage/sluice/blockdev/limit"
	"github.com/sluice-storage/sluice/blockdev/mem"
	"github.com/sluice-storage/sluice/blockdev/null"
	sluicemem "github.com/sluice-storage/sluice/mem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB, o limit.Options) *limit.Device {
	t.Helper()
	below, err := mem.Open(mem.Options{Size: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	d, err := limit.Open(below, o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestConformance(t *testing.T) {
	for name, o := range map[string]limit.Options{
		"without": {},
		"tight":   {IOPS: 1_000_000, Bandwidth: 4 << 30, Burst: time.Microsecond},
	} {
		t.Run(name, func(t *testing.T) {
			blockdevtest.Run(t, blockdevtest.Options{Open: func(t testing.TB) blockdev.Device { return open(t, o) }, Cheap: name == "without"})
		})
	}
}

// took submits n writes of size bytes at once and returns how long the last took.
func took(t testing.TB, d blockdev.Device, n, size int) time.Duration {
	s := []sluicemem.Span{blockdevtest.NewMemory(t, size).All()}
	var left atomic.Int64
	left.Store(int64(n))
	all := make(chan struct{})
	start := time.Now()
	for range n {
		d.Submit(&blockdev.Request{Op: blockdev.Write, Length: int64(size), Data: s, Done: func(*blockdev.Request) {
			if left.Add(-1) == 0 {
				close(all)
			}
		}})
	}
	<-all
	return time.Since(start)
}

func about(t *testing.T, what string, got, want time.Duration) {
	t.Helper()
	if got < want-20*time.Millisecond || got > want+20*time.Millisecond {
		t.Errorf("%s took %v of virtual time, want %v", what, got, want)
	}
}

func TestRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, limit.Options{IOPS: 1000})
		about(t, "the burst", took(t, d, 100, 4096), 0)
		about(t, "3000 requests at 1000/s", took(t, d, 3000, 4096), 3*time.Second)
		time.Sleep(time.Hour) // saves up one burst and no more
		about(t, "1100 requests at 1000/s after a pause", took(t, d, 1100, 4096), time.Second)
		if err := d.Set(limit.Options{Bandwidth: 1 << 20}); err != nil {
			t.Fatal(err)
		}
		about(t, "10 MiB at 1 MiB/s", took(t, d, 160, 64<<10), 9840*time.Millisecond)
		if err := d.Set(limit.Options{IOPS: 10, Bandwidth: 64 << 20}); err != nil {
			t.Fatal(err)
		}
		about(t, "20 requests at 10/s", took(t, d, 20, 64<<10), 1800*time.Millisecond)
		blockdevtest.Close(t, d)
	})
}

func TestARequestLargerThanTheBurstPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, limit.Options{Bandwidth: 1 << 20, Burst: time.Millisecond})
		about(t, "the first MiB", took(t, d, 1, 1<<20), 0)
		about(t, "the second", took(t, d, 1, 1<<20), time.Second)
		blockdevtest.Close(t, d)
	})
}

func TestAFlushDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, limit.Options{IOPS: 1, Burst: time.Nanosecond})
		var done atomic.Int32
		for range 3 {
			d.Submit(&blockdev.Request{Op: blockdev.Read, Done: func(*blockdev.Request) { done.Add(1) }})
		}
		start := time.Now()
		blockdevtest.Flush(t, d)
		if time.Since(start) != 0 || d.Waiting() != 2 || done.Load() != 1 {
			t.Errorf("%v later %d wait and %d are done", time.Since(start), d.Waiting(), done.Load())
		}
		if err := d.Set(limit.Options{}); err != nil { // no limit: nothing waits any more
			t.Fatal(err)
		}
		if d.Waiting() != 0 || done.Load() != 3 {
			t.Errorf("%d wait and %d are done without a limit", d.Waiting(), done.Load())
		}
		blockdevtest.Close(t, d)
	})
}

func TestOpenRefusesNonsense(t *testing.T) {
	d := open(t, limit.Options{})
	defer blockdevtest.Close(t, d)
	for _, o := range []limit.Options{{IOPS: -1}, {IOPS: 1 << 40}, {Bandwidth: -1}, {Burst: -1}} {
		if err := d.Set(o); err == nil {
			t.Errorf("%+v was taken", o)
		}
		if _, err := limit.Open(nil, o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}

// TestNoWindowHoldsMoreThanTheLimit submits at random times and looks at every window of what came through.
func TestNoWindowHoldsMoreThanTheLimit(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		iops := rapid.Int64Range(1, 5000).Draw(rt, "iops")
		burst := time.Duration(rapid.Int64Range(1, int64(time.Second)).Draw(rt, "burst"))
		gaps := rapid.SliceOfN(rapid.Int64Range(0, int64(10*time.Millisecond)), 1, 60).Draw(rt, "gaps")
		var at []time.Duration
		synctest.Test(t, func(t *testing.T) {
			below, err := null.Open(null.Options{Size: 1 << 20})
			if err != nil {
				t.Fatal(err)
			}
			d, err := limit.Open(below, limit.Options{IOPS: iops, Burst: burst})
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			done := make(chan time.Duration, len(gaps))
			for _, g := range gaps {
				time.Sleep(time.Duration(g))
				d.Submit(&blockdev.Request{Op: blockdev.Read, Done: func(*blockdev.Request) { done <- time.Since(start) }})
			}
			for range gaps {
				at = append(at, <-done)
			}
			blockdevtest.Close(t, d)
		})
		for i := range at {
			for j := i; j < len(at); j++ {
				window := at[j] - at[i]
				if n := float64(j - i + 1); n > (window+burst).Seconds()*float64(iops)+2 {
					rt.Fatalf("%v requests in %v at %d/s with a burst of %v", n, window, iops, burst)
				}
			}
		}
	})
}

// Each request is done once, also one that waits for its turn when the device is closed.
func TestCloseCompletesWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, limit.Options{IOPS: 1, Burst: time.Nanosecond})
		var done, closed atomic.Int64
		const n = 5
		for range n {
			d.Submit(&blockdev.Request{Op: blockdev.WriteZeroes, Length: 512, Done: func(r *blockdev.Request) {
				done.Add(1)
				if errors.Is(r.Err, blockdev.ErrClosed) {
					closed.Add(1)
				}
			}})
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		if done.Load() != n || closed.Load() != n-1 || d.Waiting() != 0 {
			t.Errorf("%d of %d are done, %d as closed, %d wait", done.Load(), n, closed.Load(), d.Waiting())
		}
		d.Submit(&blockdev.Request{Op: blockdev.Read, Done: func(r *blockdev.Request) {
			if !errors.Is(r.Err, blockdev.ErrClosed) {
				t.Errorf("after the end: %v", r.Err)
			}
			done.Add(1)
		}})
		time.Sleep(time.Minute)
		if done.Load() != n+1 {
			t.Errorf("%d of %d are done", done.Load(), n+1)
		}
	})
}

// guard is a device below that is asked for nothing after its end.
type guard struct {
	blockdev.Device
	closed, late atomic.Bool
}

func (g *guard) Submit(r *blockdev.Request) {
	runtime.Gosched()
	if g.closed.Load() {
		g.late.Store(true)
	}
	g.Device.Submit(r)
}

func (g *guard) Close() error {
	g.closed.Store(true)
	return g.Device.Close()
}

// What the timer releases at the moment of the end is done below before the device there is closed.
func TestCloseBesideTheTimer(t *testing.T) {
	for range 200 {
		below, err := mem.Open(mem.Options{Size: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		g := &guard{Device: below}
		d, err := limit.Open(g, limit.Options{IOPS: 1_000_000, Burst: time.Nanosecond})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 20 {
			wg.Add(1)
			d.Submit(&blockdev.Request{Op: blockdev.WriteZeroes, Length: 512, Done: func(*blockdev.Request) { wg.Done() }})
		}
		blockdevtest.Close(t, d)
		wg.Wait()
		if g.late.Load() {
			t.Fatal("a request reached the device below after its end")
		}
	}
}
