package nfs

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/sluice-storage/sluice/internal/nlm4"
)

// doubt is what the server may hold for an owner of ours that gave a call up before its answer came.
type doubt struct {
	ranges []LockRange
	over   chan struct{} // closed when the server holds what we think it holds
}

// settle makes the server hold what l.held says, in a range of which it may hold something else. It goes on until the
// server has answered or the client is closed; the next call of the same owner and file waits for it.
func (l *Locks) settle(fh []byte, o LockOwner, r LockRange) {
	k := lockKey{string(fh), o}
	l.mu.Lock()
	defer l.mu.Unlock()
	if d := l.doubt[k]; d != nil {
		d.ranges = append(d.ranges, r)
		return
	}
	if l.bg.Err() != nil {
		return
	}
	d := &doubt{ranges: []LockRange{r}, over: make(chan struct{})}
	l.doubt[k] = d
	l.wg.Go(func() { l.settleAll(k, d) })
}

// turn is that of one owner and file: one call is under way at a time. What a call that was given up has left could not be told from
// what another has got meanwhile.
type turn struct {
	taken chan struct{} // holds one while an owner has it
	users int           // who has it or waits for it; guarded by the lock of all
}

func (l *Locks) take(ctx context.Context, k lockKey) error {
	l.mu.Lock()
	t := l.turns[k]
	if t == nil {
		t = &turn{taken: make(chan struct{}, 1)}
		l.turns[k] = t
	}
	t.users++
	l.mu.Unlock()
	select {
	case t.taken <- struct{}{}:
		return nil
	case <-ctx.Done():
		l.leave(k, t)
		return ctx.Err()
	}
}

func (l *Locks) leave(k lockKey, t *turn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.users--; t.users == 0 {
		delete(l.turns, k)
	}
}

// end gives the turn back.
func (l *Locks) end(k lockKey) {
	l.mu.Lock()
	t := l.turns[k]
	l.mu.Unlock()
	<-t.taken
	l.leave(k, t)
}

// begin waits for the turn, and until nothing is in doubt.
func (l *Locks) begin(ctx context.Context, k lockKey) error {
	for {
		if err := l.take(ctx, k); err != nil {
			return err
		}
		l.mu.Lock()
		d := l.doubt[k]
		l.mu.Unlock()
		if d == nil {
			return nil
		}
		l.end(k)
		select {
		case <-d.over:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (l *Locks) settleAll(k lockKey, d *doubt) {
	defer close(d.over)
	for pause := lockPoll; ; pause = min(2*pause, lockPollMax) {
		l.mu.Lock()
		if len(d.ranges) == 0 {
			delete(l.doubt, k)
			l.mu.Unlock()
			return
		}
		r := d.ranges[0]
		l.mu.Unlock()
		if l.settleOne(k, r) {
			l.mu.Lock()
			d.ranges = d.ranges[1:]
			l.mu.Unlock()
			pause = lockPoll
			continue
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-l.bg.Done():
			t.Stop()
			l.mu.Lock()
			delete(l.doubt, k)
			l.mu.Unlock()
			return
		}
	}
}

// settleOne gives a range back and takes again what the owner held in it before the call that was given up. It reports
// false where the server has not answered.
func (l *Locks) settleOne(k lockKey, r LockRange) bool {
	if l.take(l.bg, k) != nil {
		return false
	}
	defer l.end(k)
	fh := []byte(k.fh)
	var refused *LockError
	if err := l.unlock(l.bg, fh, k.owner, r); err != nil && !errors.As(err, &refused) {
		return false
	}
	l.mu.Lock()
	var lost []LockRange
	for _, h := range l.held[k] {
		if h.Start <= r.End && h.End >= r.Start {
			lost = append(lost, LockRange{max(h.Start, r.Start), min(h.End, r.End), h.Exclusive})
		}
	}
	l.mu.Unlock()
	for _, h := range lost {
		st, err := l.try(l.bg, fh, k.owner, h, false)
		if err == nil && st == nlm4.DeniedGrace {
			st, err = l.try(l.bg, fh, k.owner, h, true) // it was held before the restart: to wait for the end of grace would lose it
		}
		switch {
		case err != nil || st == nlm4.DeniedGrace:
			return false
		case st != nlm4.Granted:
			l.log.Error("a lock was lost when a call for it was given up: another client has it", slog.Uint64("pid", uint64(k.owner.PID)),
				slog.Uint64("start", h.Start), slog.Uint64("end", h.End), slog.Any("error", lockError(st)))
			l.note(fh, k.owner, h, false)
		}
	}
	return true
}
