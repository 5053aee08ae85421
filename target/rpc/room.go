package rpc

import (
	"sync"
	"sync/atomic"
)

// room bounds the memory that the requests of all streams take together. Who does not find any waits, first come first
// served, and its peer with it: TCP's window is the backpressure.
type room struct {
	max     int64
	used    atomic.Int64
	waiting atomic.Int64 // of queue, so that giving back takes no lock where none waits
	mu      sync.Mutex
	queue   []*place
}

type place struct {
	n     int64
	ready chan struct{}
}

// take returns when there is room for n bytes, or reports false when stop is closed.
func (r *room) take(n int64, stop <-chan struct{}) bool {
	if r.waiting.Load() == 0 {
		if r.used.Add(n) <= r.max {
			return true
		}
		r.used.Add(-n)
	}
	p := &place{n: n, ready: make(chan struct{})}
	r.mu.Lock()
	r.queue = append(r.queue, p)
	r.waiting.Store(int64(len(r.queue)))
	r.admitLocked() // room may have been given back before it could be seen that this one waits
	r.mu.Unlock()
	select {
	case <-p.ready:
		return true
	case <-stop:
	}
	r.mu.Lock()
	for i, q := range r.queue {
		if q == p {
			r.queue = append(r.queue[:i], r.queue[i+1:]...)
			r.waiting.Store(int64(len(r.queue)))
			r.admitLocked()
			r.mu.Unlock()
			return false
		}
	}
	r.mu.Unlock()
	r.give(n) // it was let in at the same time
	return false
}

// give returns room.
func (r *room) give(n int64) {
	r.used.Add(-n)
	if r.waiting.Load() == 0 {
		return
	}
	r.mu.Lock()
	r.admitLocked()
	r.mu.Unlock()
}

func (r *room) admitLocked() {
	for len(r.queue) > 0 {
		p := r.queue[0]
		if r.used.Add(p.n) > r.max {
			r.used.Add(-p.n)
			break
		}
		r.queue = r.queue[1:]
		close(p.ready)
	}
	r.waiting.Store(int64(len(r.queue)))
}
