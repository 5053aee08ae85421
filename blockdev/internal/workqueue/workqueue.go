// Package workqueue has the requests that wait for an engine's workers.
package workqueue

import (
	"sync"

	"github.com/sluice-storage/sluice/blockdev"
)

// Queue hands requests to workers in the order in which they came. It links them by Next, and allocates nothing. Init comes first; then any
// goroutine may call its methods.
type Queue struct {
	mu         sync.Mutex
	wake       sync.Cond
	head, tail *blockdev.Request
	idle       int // workers that wait, and are not being woken
	closed     bool
}

// Init makes the queue ready.
func (q *Queue) Init() { q.wake.L = &q.mu }

// Put queues a request, and reports false when the queue is closed.
func (q *Queue) Put(r *blockdev.Request) bool {
	r.Next = nil
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return false
	}
	if q.tail == nil {
		q.head = r
	} else {
		q.tail.Next = r
	}
	q.tail = r
	wake := q.idle > 0
	if wake {
		q.idle--
	}
	q.mu.Unlock()
	if wake {
		q.wake.Signal()
	}
	return true
}

// Get waits for a request. nil means that the queue is closed, and that none is left in it.
func (q *Queue) Get() *blockdev.Request {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.head == nil {
		if q.closed {
			return nil
		}
		q.idle++
		q.wake.Wait()
	}
	r := q.head
	if q.head = r.Next; q.head == nil {
		q.tail = nil
	}
	r.Next = nil
	return r
}

// Close lets Put take nothing more, and the workers end behind what is queued.
func (q *Queue) Close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.wake.Broadcast()
}
