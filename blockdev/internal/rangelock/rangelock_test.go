package rangelock

import (
	"sync"
	"testing"

	"pgregory.net/rapid"
)

func TestARangeLocksExactlyItsStripesOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		tab := &Table{Shift: 4}
		off := rapid.Int64Range(0, 5000).Draw(rt, "off")
		n := rapid.Int64Range(0, 3000).Draw(rt, "n")
		want := map[*sync.RWMutex]int{}
		for b := off; b < off+n; b++ {
			want[&tab.locks[(b>>4)%stripes].RWMutex] = 1
		}
		got := map[*sync.RWMutex]int{}
		tab.cover(off, n, func(m *sync.RWMutex) { got[m]++ })
		if len(got) != len(want) {
			rt.Fatalf("%d stripes for %d", len(got), len(want))
		}
		for m, times := range got {
			if times != 1 || want[m] != 1 {
				rt.Fatal("a stripe is locked twice or for nothing")
			}
		}
	})
}

func TestOverlappingLocksExcludeEachOther(t *testing.T) {
	tab := &Table{Shift: 10}
	var wg sync.WaitGroup
	var shared [100 << 10]byte // guarded byte by byte by the table; the race detector watches
	for w := range 8 {
		wg.Go(func() {
			for i := range 200 {
				off, n := int64((w*7919+i*977)%(90<<10)), int64((w*31+i*523)%(10<<10))
				tab.Lock(off, n)
				for b := off; b < off+n; b += 512 {
					shared[b]++
				}
				tab.Unlock(off, n)
				tab.RLock(off, n)
				for b := off; b < off+n; b += 512 {
					_ = shared[b]
				}
				tab.RUnlock(off, n)
				if tab.TryRLock(off, 1) {
					_ = shared[off]
					tab.RUnlock(off, 1)
				}
			}
		})
	}
	wg.Wait()
}
