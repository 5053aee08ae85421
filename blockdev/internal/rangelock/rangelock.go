// Package rangelock locks byte ranges of a device by stripes: a compare-and-write excludes the writes it could tear,
// and writes elsewhere never notice. Nothing is allocated for a lock.
package rangelock

import "sync"

// stripes is how many locks there are; a range of a device maps onto them round robin. 64 make a false conflict of two
// small requests rare and a lock of everything still cheap.
const stripes = 64

// Table is a set of range locks. The zero value with Shift set is ready.
type Table struct {
	Shift uint // log2 of the bytes of one stripe
	locks [stripes]struct {
		sync.RWMutex
		_ [40]byte // a stripe a cache line
	}
}

// cover calls f for each stripe of [off, off+n), in ascending order of index, so that two ranges cannot deadlock.
func (t *Table) cover(off, n int64, f func(*sync.RWMutex)) {
	if n <= 0 {
		return
	}
	first, last := off>>t.Shift, (off+n-1)>>t.Shift
	if last-first >= stripes-1 {
		for i := range t.locks {
			f(&t.locks[i].RWMutex)
		}
		return
	}
	a, b := first%stripes, last%stripes
	if a <= b {
		for i := a; i <= b; i++ {
			f(&t.locks[i].RWMutex)
		}
		return
	}
	for i := int64(0); i <= b; i++ {
		f(&t.locks[i].RWMutex)
	}
	for i := a; i < stripes; i++ {
		f(&t.locks[i].RWMutex)
	}
}

// Lock excludes every other holder of any part of the range.
func (t *Table) Lock(off, n int64) { t.cover(off, n, (*sync.RWMutex).Lock) }

// Unlock ends Lock of the same range.
func (t *Table) Unlock(off, n int64) { t.cover(off, n, (*sync.RWMutex).Unlock) }

// RLock excludes Lock of any part of the range.
func (t *Table) RLock(off, n int64) { t.cover(off, n, (*sync.RWMutex).RLock) }

// RUnlock ends RLock of the same range.
func (t *Table) RUnlock(off, n int64) { t.cover(off, n, (*sync.RWMutex).RUnlock) }

// TryRLock is RLock if that needs no waiting. False leaves nothing locked.
func (t *Table) TryRLock(off, n int64) bool {
	if n <= 0 {
		return true
	}
	first, last := off>>t.Shift, (off+n-1)>>t.Shift
	for i := range min(last-first+1, stripes) {
		if t.locks[(first+i)%stripes].TryRLock() {
			continue
		}
		for ; i > 0; i-- {
			t.locks[(first+i-1)%stripes].RUnlock()
		}
		return false
	}
	return true
}
