package nfs

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/sluice-storage/sluice/initiator/rpcclient"
	"github.com/sluice-storage/sluice/internal/logging"
	"github.com/sluice-storage/sluice/internal/nlm4"
	"github.com/sluice-storage/sluice/internal/xdr"
)

// LockOwner identifies who holds locks: one owner's locks never conflict. PID is what other clients are shown.
type LockOwner struct {
	ID  uint64
	PID uint32
}

// LockRange is a lock's bytes and kind. End is its last byte, math.MaxInt64 or more for the end of the file.
type LockRange struct {
	Start, End uint64
	Exclusive  bool
}

// Locks is the client of a server's lock manager (NLM version 4; RFC 1813 appendix II). Locks that are held are taken
// again when the server has restarted; a waiting lock asks again and again, since there is nothing here that a server
// could call. Its methods may be called by any goroutine.
type Locks struct {
	c    *rpcclient.Client
	owns bool // c is to be closed with this
	v    *FS
	name string
	log  *slog.Logger

	mu     sync.Mutex
	held   map[lockKey][]LockRange
	cookie uint32
	doubt  map[lockKey]*doubt // locks of which the server may know what we do not
	turns  map[lockKey]*turn  // calls under way
	seen   uint64             // connections made when the locks were last known to be held
	bg     context.Context
	stop   context.CancelFunc
	done   chan struct{}
	wg     sync.WaitGroup
}

type lockKey struct {
	fh    string
	owner LockOwner
}

// Locks connects to the server's lock manager, or says ErrNoLocks. name tells this client from others, of the same
// machine too, and what an earlier one of the name has left is freed. A lock that was lost is logged to log, or where it is nil to
// Options.Log. Close it before the FS.
func (v *FS) Locks(ctx context.Context, name string, log *slog.Logger) (*Locks, error) {
	l := &Locks{v: v, c: v.rpc, name: name, log: logging.OrNone(cmp.Or(log, v.log)), held: map[lockKey][]LockRange{}, doubt: map[lockKey]*doubt{}, turns: map[lockKey]*turn{}, done: make(chan struct{})}
	null := func() error {
		return l.c.Do(ctx, &rpcclient.Call{Prog: nlm4.Prog, Vers: nlm4.Vers, Proc: nlm4.ProcNull, Cred: v.cred})
	}
	// Servers like ours answer where they serve files, and what rpcbind knows may then be another server's.
	err := null()
	if err != nil && v.target != nil && v.target.Socket == "" && ctx.Err() == nil {
		if port, perr := getport(ctx, v.target, nlm4.Prog, nlm4.Vers); perr == nil {
			l.c, l.owns = rpcclient.NewClient(rpcclient.TCP(v.target.addr(port)), rpcclient.Options{}), true
			err = null()
		}
	}
	if err == nil {
		a := nlm4.FreeAllArgs{Name: []byte(name)}
		err = l.c.Do(ctx, &rpcclient.Call{Prog: nlm4.Prog, Vers: nlm4.Vers, Proc: nlm4.ProcFreeAll, Cred: v.cred, Args: a.Append(nil)})
	}
	if err != nil {
		if l.owns {
			err = errors.Join(err, l.c.Close())
		}
		return nil, fmt.Errorf("%w: %w", ErrNoLocks, err)
	}
	l.seen = l.c.Stats().Connects
	l.bg, l.stop = context.WithCancel(context.Background())
	go l.watch(l.bg)
	return l, nil
}

// Close ends the client. Locks that are held stay with the server until it is told otherwise: unlock them first.
func (l *Locks) Close() error {
	l.stop()
	<-l.done
	l.wg.Wait()
	if l.owns {
		return l.c.Close()
	}
	return nil
}

func (l *Locks) call(ctx context.Context, proc uint32, args []byte, parse func(*xdr.Reader)) error {
	c := rpcclient.Call{Prog: nlm4.Prog, Vers: nlm4.Vers, Proc: proc, Cred: l.v.cred, Args: args}
	if err := l.c.Do(ctx, &c); err != nil {
		return fmt.Errorf("nfs: lock manager: %w", err)
	}
	res := xdr.NewReader(c.Results)
	parse(&res)
	return res.Err()
}

func (l *Locks) next() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cookie++
	return binary.BigEndian.AppendUint32(nil, l.cookie)
}

func (l *Locks) wire(fh []byte, o LockOwner, r LockRange) nlm4.Lock {
	w := nlm4.Lock{Caller: []byte(l.name), FH: fh, Owner: binary.BigEndian.AppendUint64([]byte(l.name), o.ID), SVID: o.PID, Off: r.Start}
	if r.End < math.MaxInt64 {
		w.Len = r.End - r.Start + 1
	}
	return w
}

// Lock takes a lock; ErrLocked if another owner's is in the way. With wait it waits for that one's end, as long as the
// context allows. A server in its grace period is waited for in any case.
func (l *Locks) Lock(ctx context.Context, fh []byte, o LockOwner, r LockRange, wait bool) error {
	for pause := lockPoll; ; pause = min(2*pause, lockPollMax) {
		st, err := l.tryInTurn(ctx, fh, o, r)
		switch {
		case err != nil:
			return err
		case st == nlm4.Granted:
			return nil
		case st == nlm4.DeniedGrace:
		case st != nlm4.Denied && st != nlm4.Blocked:
			return lockError(st)
		case !wait:
			return ErrLocked
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
	}
}

// tryInTurn asks for a lock once, and keeps account of it.
func (l *Locks) tryInTurn(ctx context.Context, fh []byte, o LockOwner, r LockRange) (nlm4.Stat, error) {
	k := lockKey{string(fh), o}
	if err := l.begin(ctx, k); err != nil {
		return 0, err
	}
	defer l.end(k)
	st, err := l.try(ctx, fh, o, r, false)
	switch {
	case err != nil:
		l.settle(fh, o, r) // it may have been granted
	case st == nlm4.Granted:
		l.note(fh, o, r, true)
	}
	return st, err
}

func (l *Locks) try(ctx context.Context, fh []byte, o LockOwner, r LockRange, reclaim bool) (nlm4.Stat, error) {
	a := nlm4.LockArgs{Cookie: l.next(), Exclusive: r.Exclusive, Lock: l.wire(fh, o, r), Reclaim: reclaim}
	var res nlm4.Res
	err := l.call(ctx, nlm4.ProcLock, a.Append(nil), res.Parse)
	return res.Stat, err
}

// Unlock gives back what the owner holds of a range, which may be nothing. Where the server does not answer in the time that
// the context gives, it is asked again behind the caller's back.
func (l *Locks) Unlock(ctx context.Context, fh []byte, o LockOwner, r LockRange) error {
	k := lockKey{string(fh), o}
	l.note(fh, o, r, false) // first: a restart of the server now must not bring it back
	err := l.begin(ctx, k)
	if err == nil {
		defer l.end(k)
		l.note(fh, o, r, false) // what was granted meanwhile too
		err = l.unlock(ctx, fh, o, r)
	}
	var refused *LockError
	if err != nil && !errors.As(err, &refused) {
		l.settle(fh, o, r)
	}
	return err
}

func (l *Locks) unlock(ctx context.Context, fh []byte, o LockOwner, r LockRange) error {
	a := nlm4.UnlockArgs{Cookie: l.next(), Lock: l.wire(fh, o, r)}
	var res nlm4.Res
	if err := l.call(ctx, nlm4.ProcUnlock, a.Append(nil), res.Parse); err != nil {
		return err
	}
	if res.Stat != nlm4.Granted && res.Stat != nlm4.DeniedGrace { // in its grace period the server has forgotten it anyway
		return lockError(res.Stat)
	}
	return nil
}

// Test reports whose lock is in the way of r; found is false when none is.
func (l *Locks) Test(ctx context.Context, fh []byte, o LockOwner, r LockRange) (other LockRange, pid uint32, found bool, err error) {
	a := nlm4.TestArgs{Cookie: l.next(), Exclusive: r.Exclusive, Lock: l.wire(fh, o, r)}
	var res nlm4.TestRes
	if err := l.call(ctx, nlm4.ProcTest, a.Append(nil), res.Parse); err != nil {
		return other, 0, false, err
	}
	switch res.Stat {
	case nlm4.Granted:
		return other, 0, false, nil
	case nlm4.Denied:
		h := res.Holder
		other = LockRange{Start: h.Off, End: math.MaxInt64, Exclusive: h.Exclusive}
		if h.Len > 0 && h.Off <= math.MaxInt64 && h.Len <= math.MaxInt64-h.Off {
			other.End = h.Off + h.Len - 1
		}
		return other, h.SVID, true, nil
	}
	return other, 0, false, lockError(res.Stat)
}

// Holds reports whether the owner has any lock on a file.
func (l *Locks) Holds(fh []byte, o LockOwner) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.held[lockKey{string(fh), o}]) > 0
}

// note keeps account of what an owner holds: a lock replaces what the owner had in its range (fcntl(2)).
func (l *Locks) note(fh []byte, o LockOwner, r LockRange, lock bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := lockKey{string(fh), o}
	var out []LockRange
	for _, h := range l.held[k] {
		if h.End < r.Start || h.Start > r.End {
			out = append(out, h)
			continue
		}
		if h.Start < r.Start {
			out = append(out, LockRange{h.Start, r.Start - 1, h.Exclusive})
		}
		if h.End > r.End {
			out = append(out, LockRange{r.End + 1, h.End, h.Exclusive})
		}
	}
	if lock {
		out = append(out, r)
	}
	if len(out) == 0 {
		delete(l.held, k)
	} else {
		l.held[k] = out
	}
}

// watch asks the server now and then, while locks are held, whether it is the one that granted them: a connection that
// had to be made again may lead to one that has restarted and forgotten them.
func (l *Locks) watch(ctx context.Context) {
	defer close(l.done)
	t := time.NewTicker(lockCheck)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		l.mu.Lock()
		idle := len(l.held) == 0
		l.mu.Unlock()
		if idle {
			l.seen = l.c.Stats().Connects // of what is taken from now on
			continue
		}
		if err := l.call(ctx, nlm4.ProcNull, nil, func(*xdr.Reader) {}); err != nil {
			continue
		}
		if n := l.c.Stats().Connects; n != l.seen && l.reclaim(ctx) {
			l.seen = n
		}
	}
}

// reclaim takes every lock that is held once more: as a reclaim, and where the server is not in its grace period, which
// means that it may never have been away, as a lock like any other.
func (l *Locks) reclaim(ctx context.Context) bool {
	l.mu.Lock()
	all := slices.Collect(maps.Keys(l.held))
	l.mu.Unlock()
	for _, k := range all {
		if !l.reclaimOf(ctx, k) {
			return false
		}
	}
	return true
}

func (l *Locks) reclaimOf(ctx context.Context, k lockKey) bool {
	if l.begin(ctx, k) != nil {
		return false
	}
	defer l.end(k)
	l.mu.Lock()
	held := slices.Clone(l.held[k])
	l.mu.Unlock()
	fh := []byte(k.fh)
	for _, r := range held {
		st, err := l.try(ctx, fh, k.owner, r, true)
		if err == nil && st == nlm4.DeniedGrace {
			st, err = l.try(ctx, fh, k.owner, r, false)
		}
		if err != nil {
			return false
		}
		if st != nlm4.Granted {
			l.log.Error("a lock was lost when the server restarted: another client has it", slog.Uint64("pid", uint64(k.owner.PID)),
				slog.Uint64("start", r.Start), slog.Uint64("end", r.End), slog.Any("error", lockError(st)))
			l.note(fh, k.owner, r, false)
		}
	}
	return true
}
