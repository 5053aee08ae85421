package nfs

import (
	"context"
	"sync"
)

// lock takes a lock that is held while the server is waited for, unless the context ends first.
func lock(ctx context.Context, l sync.Locker) error {
	if ctx.Done() == nil {
		l.Lock()
		return nil
	}
	if t, ok := l.(interface{ TryLock() bool }); ok && t.TryLock() {
		return nil
	}
	got := make(chan struct{})
	go func() {
		l.Lock()
		select {
		case got <- struct{}{}: // the caller has it and unlocks
		case <-ctx.Done():
			l.Unlock()
		}
	}()
	select {
	case <-got:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
