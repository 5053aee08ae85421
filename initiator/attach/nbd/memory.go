package nbd

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/sluice-storage/sluice/mem"
)

// budget bounds what all connections of a server hold together: half of the pool, so that clients that do not read their answers leave
// the volume the memory it needs to log in again. Who finds too little waits, the oldest first; nothing is refused.
type budget struct {
	left    atomic.Int64
	waiting atomic.Int32

	mu    sync.Mutex
	queue []*claim
}

// claim is one wait.
type claim struct {
	n    int64
	done chan struct{}
}

// try takes n bytes if they are there and no request waits.
func (b *budget) try(n int64) bool {
	for b.waiting.Load() == 0 {
		left := b.left.Load()
		if left < n {
			return false
		}
		if b.left.CompareAndSwap(left, left-n) {
			return true
		}
	}
	return false
}

// take waits for n bytes.
func (b *budget) take(n int64) {
	c := &claim{n, make(chan struct{})}
	b.mu.Lock()
	b.waiting.Add(1) // before the queue is served: from now on who gives back serves it
	b.queue = append(b.queue, c)
	b.serveLocked()
	b.mu.Unlock()
	<-c.done
}

func (b *budget) give(n int64) {
	b.left.Add(n)
	if b.waiting.Load() > 0 {
		b.mu.Lock()
		b.serveLocked()
		b.mu.Unlock()
	}
}

func (b *budget) serveLocked() {
	for len(b.queue) > 0 {
		c := b.queue[0]
		for {
			left := b.left.Load()
			if left < c.n {
				return
			}
			if b.left.CompareAndSwap(left, left-c.n) {
				break
			}
		}
		b.queue = b.queue[1:]
		b.waiting.Add(-1)
		close(c.done)
	}
}

// take gets registered memory of n bytes. What is not there is waited for: meanwhile nothing more is read from this connection, which is
// the protocol's backpressure. An error means that the volume has ended.
func (c *conn) take(sl *slot, n int) error {
	if !c.s.memory.try(int64(n)) {
		c.submit() // what waits here may be what gives memory back
		c.s.memory.take(int64(n))
	}
	sl.held = int64(n)
	for {
		var err error
		sl.bufs, err = c.quota.GetAll(n, sl.bufs)
		if err == nil {
			break
		}
		if !errors.Is(err, mem.ErrNoMemory) {
			sl.release()
			return err
		}
		c.submit()
		there := make(chan struct{})
		c.quota.Wait(func() { close(there) })
		<-there
	}
	for _, b := range sl.bufs {
		sl.spans = append(sl.spans, b.Span())
	}
	return nil
}
