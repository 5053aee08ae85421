package filelock

import (
	"slices"

	"github.com/sluice-storage/sluice/internal/defect"
	"github.com/sluice-storage/sluice/target/filesystem"
)

// Waiter is told of the lock that it waits for.
type Waiter interface {
	// Tell begins to tell the client that the lock is its own, and returns at once: the table is locked, and Tell calls none of its methods.
	// g.End follows, from another goroutine. It reports false where no client can be told any more; the request waits on then.
	Tell(g *Grant) bool
}

// request is a lock that is waited for.
type request struct {
	key    filesystem.FileKey
	lock   Lock
	waiter Waiter
}

// Grant is a lock that has been waited for, from when it is free until its client is known to have it.
type Grant struct {
	t *Table
	r *request
}

// waiter is the request for l that waits, or nil.
func (f *file) waiter(l *Lock) *request {
	if i := slices.IndexFunc(f.waiters, func(w *request) bool { return w.lock.same(l) }); i >= 0 {
		return f.waiters[i]
	}
	return nil
}

// waitLocked has w wait for l, or says why it does not.
func (t *Table) waitLocked(key filesystem.FileKey, f *file, l Lock, w Waiter) Verdict {
	if w == nil {
		return Denied
	}
	if r := f.waiter(&l); r != nil {
		r.waiter = w // a retransmission, or a client that asks again, perhaps after a reconnect
		return Blocked
	}
	addr := l.Owner.Client.Addr
	if len(f.waiters) >= maxFileLocks || !t.fitsLocked(addr, 1) {
		return NoRoom
	}
	t.chargeLocked(addr, 1)
	f.waiters = append(f.waiters, &request{key: key, lock: l, waiter: w})
	return Blocked
}

// dropWaiterLocked removes a request that has been granted or given up.
func (t *Table) dropWaiterLocked(f *file, l *Lock) bool {
	i := slices.IndexFunc(f.waiters, func(w *request) bool { return w.lock.same(l) })
	if i >= 0 {
		f.waiters = slices.Delete(f.waiters, i, i+1)
		t.chargeLocked(l.Owner.Client.Addr, -1)
	}
	return i >= 0
}

// Cancel gives a request up, also one that was granted while the client has not heard of it. It answers Granted, or Denied where there is no such
// request.
func (t *Table) Cancel(on File, l Lock) Verdict {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer defect.Guard()
	key := t.sameLocked(on)
	f := t.files[key]
	if f == nil {
		return Denied
	}
	defer t.tidyLocked(key)
	if t.dropWaiterLocked(f, &l) {
		return Granted
	}
	for _, w := range f.granted {
		if w.lock.same(&l) {
			f.settle(&l)
			t.putLocked(f, f.without(&l), l.Owner.Client.Addr) // whatever it splits: a client that does not know of a lock would not give it back
			t.wakeLocked(key, f)
			return Granted
		}
	}
	return Denied
}

// wakeLocked gives waiters what has become free, in their order, and has them told. One that there is no room for waits on: its client asks again,
// and hears of that. What a waiter takes of the bounds is its grant's until that has ended.
func (t *Table) wakeLocked(key filesystem.FileKey, f *file) {
	for i := 0; i < len(f.waiters); {
		r, before := f.waiters[i], f.locks
		addr := r.lock.Owner.Client.Addr
		if f.conflict(&r.lock) != nil || !t.growLocked(f, f.with(r.lock), addr, 0) {
			i++
			continue
		}
		if !r.waiter.Tell(&Grant{t, r}) {
			t.putLocked(f, before, addr)
			i++
			continue
		}
		f.waiters = slices.Delete(f.waiters, i, i+1)
		f.granted = append(f.granted, r)
	}
}

// End ends a grant, once. Where the client has not taken the lock, it loses it, unless what it did since shows that it knows: Linux asks again every
// 30 s while it waits, and takes the answer to that for its lock, so an NLM GRANTED that crosses with it is refused although the client has the lock.
// It reports whether the lock went back.
func (g *Grant) End(taken bool) (back bool) {
	t, r := g.t, g.r
	t.mu.Lock()
	defer t.mu.Unlock()
	defer defect.Guard()
	t.chargeLocked(r.lock.Owner.Client.Addr, -1)
	f := t.files[r.key]
	if f == nil {
		return false
	}
	i := slices.Index(f.granted, r)
	if i < 0 {
		return false
	}
	defer t.tidyLocked(r.key)
	f.granted = slices.Delete(f.granted, i, i+1)
	if taken {
		return false
	}
	t.putLocked(f, f.without(&r.lock), r.lock.Owner.Client.Addr)
	t.wakeLocked(r.key, f)
	return true
}
