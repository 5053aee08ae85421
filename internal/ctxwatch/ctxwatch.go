// Package ctxwatch tells a goroutine that waits again and again, for something that is no channel, of the end of the context it
// waits with.
package ctxwatch

import (
	"context"
	"sync/atomic"
)

// Watch is one waiter's. Only the waiter calls its methods.
type Watch struct {
	kick func()
	done <-chan struct{} // of the context watched
	stop func() bool
	hit  *atomic.Bool
}

// New makes a Watch that calls kick, from a goroutine of its own, when a context ends.
func New(kick func()) Watch { return Watch{kick: kick} }

// On watches ctx, and no other any more. It remembers the last context: one that waits with the same again and again allocates
// nothing.
func (w *Watch) On(ctx context.Context) {
	done := ctx.Done()
	if done == w.done {
		return
	}
	w.Off()
	if w.done = done; done == nil {
		return
	}
	hit, kick := new(atomic.Bool), w.kick
	w.hit = hit
	w.stop = context.AfterFunc(ctx, func() {
		hit.Store(true)
		kick()
	})
}

// Off watches nothing any more.
func (w *Watch) Off() {
	if w.stop != nil {
		w.stop()
	}
	w.done, w.stop, w.hit = nil, nil, nil
}

// Ended reports whether the context being watched is over. It is true before kick is called.
func (w *Watch) Ended() bool { return w.hit != nil && w.hit.Load() }
