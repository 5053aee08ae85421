// Package role is for goroutines that do others' work themselves, as long as it does not block.
package role

import (
	"sync/atomic"
	"time"
)

// Role is what one goroutine at a time has: to poll a connection, say. Who has it may execute what hardly ever blocks, such
// as a write into the page cache, itself: the data is still in this processor's cache, which halves what it costs to write,
// and nobody has to be woken. If it blocks all the same, everybody who waits for the role waits no longer than a limit:
// then a deputy takes it, and the goroutine that had it ends with its work.
type Role struct {
	state  atomic.Uint64 // the number of the work being done, times 2, and 1 while it is
	since  atomic.Int64  // when it began, nanoseconds after epoch
	epoch  time.Time
	limit  time.Duration
	armed  atomic.Bool
	deputy *time.Timer
}

// Init arranges that take is called, on a goroutine of its own, by a deputy that has taken the role after limit.
func (r *Role) Init(limit time.Duration, take func()) {
	r.epoch, r.limit = time.Now(), limit
	r.deputy = time.AfterFunc(time.Hour, func() { r.watch(take) })
	r.deputy.Stop()
}

// Stop ends the watch. Nobody may be at work, or it no longer matters who has the role.
func (r *Role) Stop() {
	if r.deputy != nil {
		r.deputy.Stop()
	}
}

// Enter begins work that may block; Leave is to be given what it returns. Only who has the role calls it.
func (r *Role) Enter() uint64 {
	r.since.Store(int64(time.Since(r.epoch)))
	s := r.state.Add(1)
	if !r.armed.Swap(true) {
		r.deputy.Reset(r.limit)
	}
	return s
}

// Leave ends it, and reports whether the caller still has the role.
func (r *Role) Leave(s uint64) bool { return r.state.CompareAndSwap(s, s+1) }

// watch takes the role if one and the same work has taken too long.
func (r *Role) watch(take func()) {
	r.armed.Store(false)
	s := r.state.Load()
	if s&1 == 0 {
		return // the next work arms it again
	}
	if left := r.limit - (time.Since(r.epoch) - time.Duration(r.since.Load())); left > 0 {
		if !r.armed.Swap(true) {
			r.deputy.Reset(left)
		}
		return
	}
	if r.state.CompareAndSwap(s, s+1) {
		take()
	}
}
