package delay_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/blockdevtest"
	"github.com/sluice-storage/sluice/blockdev/delay"
	"github.com/sluice-storage/sluice/blockdev/mem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB, o delay.Options) *delay.Device {
	below, err := mem.Open(mem.Options{Size: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	d, err := delay.Open(below, o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestConformance(t *testing.T) {
	for name, o := range map[string]delay.Options{
		"after":  {For: delay.Fixed(time.Microsecond)},
		"before": {For: delay.Fixed(time.Microsecond), Before: true},
	} {
		t.Run(name, func(t *testing.T) {
			blockdevtest.Run(t, blockdevtest.Options{Open: func(t testing.TB) blockdev.Device { return open(t, o) }})
		})
	}
}

func TestARequestTakesAsLongAsItIsTold(t *testing.T) {
	for _, before := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d := open(t, delay.Options{Before: before, For: func(r *blockdev.Request) time.Duration {
				return time.Duration(r.Offset) * time.Millisecond
			}})
			start := time.Now()
			for _, off := range []int64{0, 512, 51200} {
				begin := time.Since(start)
				if err := blockdevtest.Do(t, d, &blockdev.Request{Op: blockdev.Write, Offset: off}); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(start) - begin; took != time.Duration(off)*time.Millisecond {
					t.Errorf("a request told to take %d ms took %v", off, took)
				}
			}
			blockdevtest.Close(t, d)
		})
	}
}

func TestCloseWaitsForWhatIsHeldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, delay.Options{For: delay.Fixed(time.Hour)})
		var done atomic.Bool
		d.Submit(&blockdev.Request{Op: blockdev.Flush, Done: func(*blockdev.Request) { done.Store(true) }})
		synctest.Wait()
		if done.Load() {
			t.Fatal("done before its time")
		}
		blockdevtest.Close(t, d)
		if !done.Load() {
			t.Fatal("closed with a request under way")
		}
	})
}
