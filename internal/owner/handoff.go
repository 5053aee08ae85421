package owner

import (
	"sync/atomic"
	"time"
)

// Handoff is for a task that one goroutine at a time has, such as to poll a connection. That goroutine may do work between
// Enter and Leave that hardly ever blocks. If it blocks all the same, what the task serves waits no longer than a limit: then
// another goroutine has the task, and the one that had it ends with its work.
type Handoff struct {
	state atomic.Uint64 // the number of the work being done, times 2, and 1 while it is
	since atomic.Int64  // when it began, nanoseconds after epoch
	epoch time.Time
	limit time.Duration
	armed atomic.Bool
	watch *time.Timer
}

// Init arranges that take is called, on a goroutine of its own, when work has taken longer than limit.
func (h *Handoff) Init(limit time.Duration, take func()) {
	h.epoch, h.limit = time.Now(), limit
	h.watch = time.AfterFunc(time.Hour, func() { h.look(take) })
	h.watch.Stop()
}

// Stop ends the watch. No goroutine may be at work, or it no longer matters which one has the task.
func (h *Handoff) Stop() {
	if h.watch != nil {
		h.watch.Stop()
	}
}

// Enter begins work that may block; Leave is to be given what it returns. Only the goroutine that has the task calls it.
func (h *Handoff) Enter() uint64 {
	h.since.Store(int64(time.Since(h.epoch)))
	s := h.state.Add(1)
	if !h.armed.Swap(true) {
		h.watch.Reset(h.limit)
	}
	return s
}

// Leave ends it, and reports whether the caller still has the task.
func (h *Handoff) Leave(s uint64) bool { return h.state.CompareAndSwap(s, s+1) }

// look hands the task on if one and the same work has taken too long.
func (h *Handoff) look(take func()) {
	h.armed.Store(false)
	s := h.state.Load()
	if s&1 == 0 {
		return // the next work arms it again
	}
	if left := h.limit - (time.Since(h.epoch) - time.Duration(h.since.Load())); left > 0 {
		if !h.armed.Swap(true) {
			h.watch.Reset(left)
		}
		return
	}
	if h.state.CompareAndSwap(s, s+1) {
		take()
	}
}
