// Package changes has goroutines wait until what a mutex guards is as they want it, and servers end what runs in bounded time.
package changes

import (
	"context"
	"sync"
	"time"
)

// Bell rings when what a mutex guards has changed. Its methods may be called by any goroutine.
type Bell struct {
	mu   sync.Locker
	next chan struct{} // guarded by mu: closed and replaced with each ring
}

// NewBell returns the bell of a mutex.
func NewBell(mu sync.Locker) *Bell { return &Bell{mu: mu, next: make(chan struct{})} }

// RingLocked has all that wait look again.
func (b *Bell) RingLocked() {
	close(b.next)
	b.next = make(chan struct{})
}

// NextLocked is closed by the next ring.
func (b *Bell) NextLocked() <-chan struct{} { return b.next }

// Wait returns once done, which is asked under the mutex, says so, or with the context's error.
func (b *Bell) Wait(ctx context.Context, done func() bool) error {
	for {
		b.mu.Lock()
		is, next := done(), b.next
		b.mu.Unlock()
		if is {
			return nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Drain waits for limit, or until the context ends, until gone says that nothing runs any more. Then it calls cut, which ends what is left, and waits for limit
// again, whatever the context says: what is on its way to a medium comes back, unless the medium hangs, and that may be for ever. It fails where something is
// left all the same.
func (b *Bell) Drain(ctx context.Context, limit time.Duration, gone func() bool, cut func()) error {
	inOrder, stop := context.WithTimeout(ctx, limit)
	defer stop()
	if b.Wait(inOrder, gone) == nil {
		return nil
	}
	cut()
	last, stop := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer stop()
	return b.Wait(last, gone)
}
