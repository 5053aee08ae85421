package filesystem

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// medium is a file system that exports are of.
type medium struct {
	gate gate
	closer
}

// gate bounds the calls that are being executed. A call that finds no room waits for gateTime. Once one has waited in vain, further calls
// are refused at once until one that was let in has ended.
type gate struct {
	in      atomic.Int32
	waiting atomic.Int32 // of queue, so that leaving takes no lock where none waits
	stuck   atomic.Bool
	mu      sync.Mutex
	queue   []*entrant
}

// entrant waits at a gate. Not all have the same bound, so a place may be of no use to the one that waits longest.
type entrant struct {
	most int32
	in   chan struct{} // closed when it is in
}

// enter reports whether the call may be executed, beside fewer than most others. If so, leave has to follow.
func (g *gate) enter(most int32) bool {
	if g.try(most) {
		return true
	}
	if g.stuck.Load() {
		return false
	}
	e := &entrant{most, make(chan struct{})}
	g.mu.Lock()
	g.queue = append(g.queue, e)
	g.waiting.Store(int32(len(g.queue)))
	g.admitLocked() // one may have left before it could be seen that this one waits
	g.mu.Unlock()
	t := time.NewTimer(gateTime)
	defer t.Stop()
	select {
	case <-e.in:
		return true
	case <-t.C:
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.queue, e)
	if i < 0 {
		return true // it was let in at the same time
	}
	g.queue = slices.Delete(g.queue, i, i+1)
	g.waiting.Store(int32(len(g.queue)))
	g.stuck.Store(true)
	return false
}

func (g *gate) try(most int32) bool {
	for {
		n := g.in.Load()
		if n >= most {
			return false
		}
		if g.in.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (g *gate) leave() {
	g.in.Add(-1)
	if g.stuck.Load() {
		g.stuck.Store(false)
	}
	if g.waiting.Load() > 0 {
		g.mu.Lock()
		g.admitLocked()
		g.mu.Unlock()
	}
}

// admitLocked lets in the calls that there is room for, those that have waited longest first.
func (g *gate) admitLocked() {
	g.queue = slices.DeleteFunc(g.queue, func(e *entrant) bool {
		in := g.try(e.most)
		if in {
			close(e.in)
		}
		return in
	})
	g.waiting.Store(int32(len(g.queue)))
}
