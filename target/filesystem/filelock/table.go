package filelock

import (
	"net/netip"
	"sync"

	"github.com/sluice-storage/sluice/internal/defect"
	"github.com/sluice-storage/sluice/target/filesystem"
)

// Table is the locks of all files. Its methods may be called by any goroutine, but not by a Waiter's Tell.
type Table struct {
	mu      sync.Mutex
	files   map[filesystem.FileKey]*file
	handles map[string]filesystem.FileKey // of files that have locks, to their keys
	count   int                           // ranges
	used    int                           // of maxLocks
	of      map[netip.Addr]int            // of maxHostLocks, by the client's address
	graces  int                           // that have begun and not ended
}

// NewTable makes an empty table.
func NewTable() *Table {
	return &Table{files: make(map[filesystem.FileKey]*file), handles: make(map[string]filesystem.FileKey), of: make(map[netip.Addr]int)}
}

// BeginGrace grants reclaims alone until EndGrace: clients of the last life recover what they had. It may be called by several
// protocols; grace ends when each of them has ended it.
func (t *Table) BeginGrace() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.graces++
}

// EndGrace ends what one BeginGrace has begun.
func (t *Table) EndGrace() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.graces--
}

// InGrace reports whether only reclaims are granted.
func (t *Table) InGrace() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.graces > 0
}

// Count is the number of ranges held.
func (t *Table) Count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.count
}

// Holders are the clients that hold or wait for something.
func (t *Table) Holders() map[Client]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	got := make(map[Client]bool)
	for _, f := range t.files {
		f.clients(got)
	}
	return got
}

// KeyOf is the key of a file that has locks by this handle. It is known also where the file has been removed, or the caller has lost its
// rights: what is given back is found by it, or it would stay for ever.
func (t *Table) KeyOf(handle []byte) (key filesystem.FileKey, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key, known = t.handles[string(handle)]
	return key, known
}

// Ask is how a lock is asked for.
type Ask struct {
	Reclaim bool   // it is one of before the restart
	Waiter  Waiter // waits where the lock cannot be had now; nil: the answer is Denied
}

// Lock gives an owner a range, in place of what it had there, or has its Waiter wait. One that waits already waits on, and the Waiter is its new one:
// the request has come again. It answers Granted, Denied, Blocked, NoRoom, Grace or NoGrace.
func (t *Table) Lock(on File, l Lock, ask Ask) Verdict {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer defect.Guard()
	if v := t.graceLocked(ask.Reclaim); v != Granted {
		return v
	}
	key := t.sameLocked(on)
	f := t.fileLocked(key, on.Handle)
	defer t.tidyLocked(key)
	if f.conflict(&l) != nil {
		return t.waitLocked(key, f, l, ask.Waiter)
	}
	waits := 0
	if f.waiter(&l) != nil {
		waits = 1
	}
	addr := l.Owner.Client.Addr
	if !t.growLocked(f, f.with(l), addr, waits) {
		return NoRoom
	}
	f.settle(&l) // the client hears of its lock by this answer
	t.dropWaiterLocked(f, &l)
	return Granted
}

// Test looks for a lock that stands in the way of l. It answers Granted, Denied with that lock, or Grace.
func (t *Table) Test(on File, l Lock) (holder Lock, v Verdict) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.graces > 0 {
		return Lock{}, Grace
	}
	if f := t.files[t.sameLocked(on)]; f != nil {
		if h := f.conflict(&l); h != nil {
			return *h, Denied
		}
	}
	return Lock{}, Granted
}

// Unlock releases l's range of its owner, of either kind; unlocking what is not locked is fine. What is in the middle of a range leaves two, for which
// there may be no room. It answers Granted or NoRoom.
func (t *Table) Unlock(on File, l Lock) Verdict {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer defect.Guard()
	key := t.sameLocked(on)
	f := t.files[key]
	if f == nil {
		return Granted
	}
	if !t.growLocked(f, f.without(&l), l.Owner.Client.Addr, 0) {
		return NoRoom
	}
	f.settle(&l)
	t.wakeLocked(key, f)
	t.tidyLocked(key)
	return Granted
}

// Share makes a share reservation, in place of the owner's other one. It answers Granted, Denied, NoRoom, Grace or NoGrace.
func (t *Table) Share(on File, s Share, reclaim bool) Verdict {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer defect.Guard()
	if v := t.graceLocked(reclaim); v != Granted {
		return v
	}
	key := t.sameLocked(on)
	f := t.fileLocked(key, on.Handle)
	defer t.tidyLocked(key)
	addr, before := s.Owner.Client.Addr, len(f.shares)
	switch {
	case !f.mayShare(s):
		return Denied
	case !f.shared(s.Owner) && (before >= maxFileLocks || !t.fitsLocked(addr, 1)):
		return NoRoom
	}
	f.setShare(s)
	t.chargeLocked(addr, len(f.shares)-before)
	return Granted
}

// Unshare ends the owner's share reservation; that there is none is fine.
func (t *Table) Unshare(on File, o Owner) {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer defect.Guard()
	key := t.sameLocked(on)
	f := t.files[key]
	if f == nil {
		return
	}
	before := len(f.shares)
	f.clearShare(o)
	t.chargeLocked(o.Client.Addr, len(f.shares)-before)
	t.tidyLocked(key)
}

// Drop frees all that clients had: they have restarted and know nothing of it. What a client's root has locked stays unless privileged is set.
func (t *Table) Drop(match func(Client) bool, privileged bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer defect.Guard()
	for key, f := range t.files {
		clients := make(map[Client]bool)
		f.clients(clients)
		for c := range clients {
			if match(c) {
				locks, all := len(f.locks), f.size()
				f.dropClient(c, privileged)
				t.count += len(f.locks) - locks
				t.chargeLocked(c.Addr, f.size()-all)
			}
		}
		t.wakeLocked(key, f)
		t.tidyLocked(key)
	}
}

// graceLocked is Granted where a request of this kind may be granted now: reclaims while clients recover, and nothing else then, because a new
// lock might be one that its owner is about to reclaim.
func (t *Table) graceLocked(reclaim bool) Verdict {
	switch {
	case t.graces > 0 && !reclaim:
		return Grace
	case t.graces == 0 && reclaim:
		return NoGrace
	}
	return Granted
}
