package changes

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Who waits looks under the mutex at each ring, and goes on when the state is as wanted or the context ends.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		b, n := NewBell(&mu), 0
		go func() {
			for range 3 {
				time.Sleep(time.Second)
				mu.Lock()
				n++
				b.RingLocked()
				mu.Unlock()
			}
		}()
		began := time.Now()
		for want := range 4 {
			if err := b.Wait(t.Context(), func() bool { return n >= want }); err != nil || time.Since(began) != time.Duration(want)*time.Second {
				t.Errorf("%d: %v after %v", want, err, time.Since(began))
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := b.Wait(ctx, func() bool { return n > 3 }); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Minute+3*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// What ends by itself is not cut; what does not is, after the limit or with the context; and what is left then has the limit once more.
func TestDrain(t *testing.T) {
	const limit = 10 * time.Second
	for name, x := range map[string]struct {
		context, alone, after time.Duration // until the context ends; until it ends by itself; from the cut until it ends
		took                  time.Duration
		cut, left             bool
	}{
		"by itself":              {time.Hour, time.Second, 0, time.Second, false, false},
		"cut":                    {time.Hour, time.Hour, 2 * time.Second, limit + 2*time.Second, true, false},
		"cut by the context":     {time.Second, time.Hour, 2 * time.Second, 3 * time.Second, true, false},
		"the medium hangs":       {time.Hour, time.Hour, time.Hour, 2 * limit, true, true},
		"hangs, and the context": {time.Second, time.Hour, time.Hour, limit + time.Second, true, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			b, over, cut := NewBell(&mu), false, false
			end := func() {
				mu.Lock()
				over = true
				b.RingLocked()
				mu.Unlock()
			}
			alone := time.AfterFunc(x.alone, end)
			defer alone.Stop()
			var later *time.Timer
			ctx, cancel := context.WithTimeout(t.Context(), x.context)
			defer cancel()
			began := time.Now()
			err := b.Drain(ctx, limit, func() bool { return over }, func() {
				cut = true
				later = time.AfterFunc(x.after, end)
			})
			if later != nil {
				defer later.Stop()
			}
			if took := time.Since(began); took != x.took || cut != x.cut || (err != nil) != x.left {
				t.Errorf("%s: %v after %v, cut %v", name, err, took, cut)
			}
		})
	}
}
