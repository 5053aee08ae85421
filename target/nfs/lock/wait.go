package lock

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/nlm4"
	"github.com/sluice-storage/sluice/target/filesystem"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// waiter is a blocked LOCK.
type waiter struct {
	key  filesystem.FileKey
	lock held
	wire nlm4.Lock // as the client sent it, for GRANTED
	to   answerTo
	done chan nlm4.Stat // takes the first GRANTED_RES
}

// answerTo is where a client hears of things.
type answerTo struct {
	addr  netip.Addr
	local netip.Addr // what it calls this side
	msg   bool       // it speaks in asynchronous procedures

	secure bool // it speaks from a port that only root may use
}

// waiter is the request for l that waits, or nil.
func (f *file) waiter(l *held) *waiter {
	if i := slices.IndexFunc(f.waiters, func(w *waiter) bool { return w.lock.same(l) }); i >= 0 {
		return f.waiters[i]
	}
	return nil
}

// dropWaiterLocked removes a request that has been granted or given up.
func (m *Manager) dropWaiterLocked(f *file, l *held) bool {
	i := slices.IndexFunc(f.waiters, func(w *waiter) bool { return w.lock.same(l) })
	if i >= 0 {
		f.waiters = slices.Delete(f.waiters, i, i+1)
		m.chargeLocked(l.host.addr, -1)
	}
	return i >= 0
}

func clone(l *nlm4.Lock) nlm4.Lock {
	c := *l
	c.Caller, c.FH, c.Owner = append([]byte(nil), l.Caller...), append([]byte(nil), l.FH...), append([]byte(nil), l.Owner...)
	return c
}

// cancelWait gives a request up, also one that was granted while the client has not heard of it.
func (m *Manager) cancelWait(key filesystem.FileKey, a *nlm4.CancelArgs, to answerTo) nlm4.Stat {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer rpcserver.Guard()
	key = m.sameLocked(key, a.Lock.FH)
	f := m.table[key]
	if f == nil {
		return nlm4.Denied
	}
	defer m.tidyLocked(key)
	l := lockOf(&a.Lock, a.Exclusive, to)
	if m.dropWaiterLocked(f, &l) {
		return nlm4.Granted
	}
	for _, w := range f.granted {
		if w.lock.same(&l) {
			f.settle(&l)
			m.putLocked(f, f.without(&l), to.addr) // whatever it splits: a client that does not know of a lock would not give it back
			m.wakeLocked(key, f)
			return nlm4.Granted
		}
	}
	return nlm4.Denied
}

// wakeLocked gives waiters what has become free, in their order, and calls them back. One that there is no room for waits on: its client asks again,
// and hears of that. What a waiter takes of the bounds is its callback's until that has ended.
func (m *Manager) wakeLocked(key filesystem.FileKey, f *file) {
	for i := 0; i < len(f.waiters); {
		w := f.waiters[i]
		if m.closed || f.conflict(&w.lock) != nil || !m.growLocked(f, f.with(w.lock), w.lock.host.addr, 0) {
			i++
			continue
		}
		f.waiters = slices.Delete(f.waiters, i, i+1)
		f.granted = append(f.granted, w)
		m.cookie++
		cookie := m.cookie
		m.cookies[cookie] = w
		m.wg.Go(func() { m.grant(w, cookie) })
	}
}

// grant tells a waiter that it has its lock. A client that does not want it any more, or cannot be reached, loses it,
// unless what it did since shows that it knows: Linux asks again every 30 s while it waits, and takes the answer to that
// for its lock, so a GRANTED that crosses with it is refused although the client has the lock.
func (m *Manager) grant(w *waiter, cookie uint64) {
	st, err := m.tell(w, cookie)
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.cookies, cookie)
	m.chargeLocked(w.lock.host.addr, -1)
	f := m.table[w.key]
	if f == nil {
		return
	}
	i := slices.Index(f.granted, w)
	if i < 0 || m.ctx.Err() != nil {
		return
	}
	defer m.tidyLocked(w.key)
	f.granted = slices.Delete(f.granted, i, i+1)
	if err == nil && st == nlm4.Granted {
		return
	}
	m.log.Warn("a lock that was waited for goes back: its client did not take it", zap.String("client", w.lock.host.name), zap.Stringer("address", w.lock.host.addr), zap.Error(err))
	m.putLocked(f, f.without(&w.lock), w.lock.host.addr)
	m.wakeLocked(w.key, f)
}

// tell calls GRANTED, or GRANTED_MSG for a client that asked by LOCK_MSG, and returns the client's answer.
func (m *Manager) tell(w *waiter, cookie uint64) (nlm4.Stat, error) {
	m.mu.Lock()
	to := w.to
	m.mu.Unlock()
	a := nlm4.TestArgs{Cookie: binary.BigEndian.AppendUint64(nil, cookie), Exclusive: w.lock.exclusive, Lock: w.wire}
	args := a.Append(nil)
	if !to.msg {
		reply, err := m.callBack(m.calls, to.local, to.addr, nlm4.Prog, nlm4.Vers, nlm4.ProcGranted, args)
		if err != nil {
			return nlm4.Failed, err
		}
		var r nlm4.Res
		x := newReader(reply)
		r.Parse(&x)
		return r.Stat, x.Err()
	}
	for range callTries {
		if _, err := m.callBack(m.calls, to.local, to.addr, nlm4.Prog, nlm4.Vers, nlm4.ProcGrantedMsg, args); err != nil {
			return nlm4.Failed, err
		}
		select {
		case st := <-w.done:
			return st, nil
		case <-time.After(callTime):
		case <-m.ctx.Done():
			return nlm4.Failed, m.ctx.Err()
		}
	}
	return nlm4.Failed, errNoAnswer
}

// grantedRes takes a client's answer to GRANTED_MSG.
func (m *Manager) grantedRes(r *nlm4.Res, addr netip.Addr) {
	if len(r.Cookie) != 8 {
		return
	}
	m.mu.Lock()
	w := m.cookies[binary.BigEndian.Uint64(r.Cookie)]
	m.mu.Unlock()
	if w == nil || w.lock.host.addr != addr {
		return
	}
	select {
	case w.done <- r.Stat:
	default: // an answer is there already
	}
}
