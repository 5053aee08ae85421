package lock

import (
	"context"
	"encoding/binary"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/nlm4"
	"github.com/sluice-storage/sluice/target/rpc"
)

// Files says which file a handle is, and whether the caller may lock it; *nfs.Server does.
type Files interface {
	CheckLock(c *rpc.Call, fh []byte) (key string, st nfs3.Status)
}

// Caller calls a client's program and returns the results; the default asks the client's rpcbind and uses TCP.
type Caller func(ctx context.Context, host netip.Addr, prog, vers, proc uint32, args []byte) ([]byte, error)

// Options configure a Manager.
type Options struct {
	StateDir string        // keeps the list of clients; empty: no recovery
	Grace    time.Duration // 0 for a default
	Name     string        // what clients call this host, in SM_NOTIFY; the host's name by default
	Log      *zap.Logger
	Call     Caller
}

// Manager is a lock manager. Its methods may be called by any goroutine.
type Manager struct {
	opt   Options
	log   *zap.Logger
	files Files
	state *state

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	calls  chan struct{} // one for each callback on its way

	mu     sync.Mutex
	table  map[string]*file
	count  int
	grace  bool
	cookie uint64
	closed bool
}

// waiter is a blocked LOCK.
type waiter struct {
	lock held
	wire nlm4.Lock // as the client sent it, for GRANTED
	addr netip.Addr
}

// NewManager loads the list of clients, and tells them of the restart if there are any.
func NewManager(opt Options, files Files) (*Manager, error) {
	m := &Manager{opt: opt, log: opt.Log, files: files, table: make(map[string]*file), calls: make(chan struct{}, maxCallbacks)}
	if m.log == nil {
		m.log = zap.NewNop()
	}
	if opt.Grace <= 0 {
		m.opt.Grace = defaultGrace
	}
	if opt.Call == nil {
		m.opt.Call = call
	}
	if opt.Name == "" {
		m.opt.Name, _ = os.Hostname() // an empty name is sent then
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	var old []host
	var err error
	if m.state, old, err = loadState(opt.StateDir); err != nil {
		m.cancel()
		return nil, err
	}
	if len(old) > 0 {
		m.grace = true
		m.wg.Go(m.endGrace)
		for _, h := range old {
			m.wg.Go(func() { m.notify(h) })
		}
	}
	return m, nil
}

// Close ends callbacks. Locks are forgotten here, not by the clients: they reclaim them from the next life.
func (m *Manager) Close() error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.cancel()
	m.wg.Wait()
	return nil
}

// InGrace reports whether only reclaims are granted.
func (m *Manager) InGrace() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.grace
}

// Locks is the number of ranges held.
func (m *Manager) Locks() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, f := range m.table {
		n += len(f.locks)
	}
	return n
}

func (m *Manager) endGrace() {
	t := time.NewTimer(m.opt.Grace)
	defer t.Stop()
	select {
	case <-t.C:
	case <-m.ctx.Done():
		return
	}
	m.mu.Lock()
	m.grace = false
	m.mu.Unlock()
	// Clients that have not come back hold nothing any more.
	m.state.prune(m.holders())
}

// holders are the clients that hold or wait for something.
func (m *Manager) holders() map[string]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	hosts := make(map[string]bool)
	for _, f := range m.table {
		for _, h := range f.locks {
			hosts[h.host] = true
		}
		for _, w := range f.waiters {
			hosts[w.lock.host] = true
		}
		for _, s := range f.shares {
			hosts[s.host] = true
		}
	}
	return hosts
}

func lockOf(l *nlm4.Lock, exclusive bool) held {
	return held{owner: string(l.Caller) + "\x00" + strconv.FormatUint(uint64(l.SVID), 10) + "\x00" + string(l.Owner),
		host: string(l.Caller), svid: l.SVID, oh: string(l.Owner), exclusive: exclusive, start: l.Off, end: endOf(l.Off, l.Len)}
}

func (m *Manager) fileLocked(key string) *file {
	f := m.table[key]
	if f == nil {
		f = &file{}
		m.table[key] = f
	}
	return f
}

func (m *Manager) tidyLocked(key string) {
	if f := m.table[key]; f != nil && f.empty() {
		delete(m.table, key)
	}
}

// lock grants, refuses or queues.
func (m *Manager) lock(key string, a *nlm4.LockArgs, addr netip.Addr) nlm4.Stat {
	m.mu.Lock()
	defer m.mu.Unlock()
	// Reclaims only while clients recover, and nothing else then: a new lock might be what somebody is about to reclaim.
	if m.grace != a.Reclaim {
		return nlm4.DeniedGrace
	}
	f := m.fileLocked(key)
	defer m.tidyLocked(key)
	l := lockOf(&a.Lock, a.Exclusive)
	if f.conflict(&l) != nil {
		if !a.Block {
			return nlm4.Denied
		}
		for _, w := range f.waiters {
			if w.lock == l {
				return nlm4.Blocked // a retransmission, or a client that asks again
			}
		}
		if len(f.waiters) >= maxFileLocks {
			return nlm4.DeniedNolocks
		}
		f.waiters = append(f.waiters, &waiter{lock: l, wire: clone(&a.Lock), addr: addr})
		return nlm4.Blocked
	}
	if len(f.locks) >= maxFileLocks || m.countLocked() >= maxLocks {
		return nlm4.DeniedNolocks
	}
	before := len(f.locks)
	f.set(l)
	m.count += len(f.locks) - before
	m.dropWaiterLocked(f, &l)
	return nlm4.Granted
}

func (m *Manager) countLocked() int { return m.count }

// dropWaiterLocked removes a request that has been granted or given up.
func (m *Manager) dropWaiterLocked(f *file, l *held) bool {
	for i, w := range f.waiters {
		if w.lock == *l {
			f.waiters = append(f.waiters[:i], f.waiters[i+1:]...)
			return true
		}
	}
	return false
}

func clone(l *nlm4.Lock) nlm4.Lock {
	c := *l
	c.Caller, c.FH, c.Owner = append([]byte(nil), l.Caller...), append([]byte(nil), l.FH...), append([]byte(nil), l.Owner...)
	return c
}

// unlock releases a range; unlocking what is not locked is fine.
func (m *Manager) unlock(key string, a *nlm4.UnlockArgs) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.table[key]
	if f == nil {
		return
	}
	l := lockOf(&a.Lock, false)
	before := len(f.locks)
	f.clear(l.owner, l.start, l.end)
	m.count += len(f.locks) - before
	m.wakeLocked(key, f)
	m.tidyLocked(key)
}

func (m *Manager) cancelWait(key string, a *nlm4.CancelArgs) nlm4.Stat {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.table[key]
	if f == nil {
		return nlm4.Denied
	}
	l := lockOf(&a.Lock, a.Exclusive)
	if m.dropWaiterLocked(f, &l) {
		m.tidyLocked(key)
		return nlm4.Granted
	}
	return nlm4.Denied
}

// wakeLocked gives waiters what has become free, in their order, and calls them back.
func (m *Manager) wakeLocked(key string, f *file) {
	for i := 0; i < len(f.waiters); {
		w := f.waiters[i]
		if f.conflict(&w.lock) != nil {
			i++
			continue
		}
		f.waiters = append(f.waiters[:i], f.waiters[i+1:]...)
		before := len(f.locks)
		f.set(w.lock)
		m.count += len(f.locks) - before
		if m.closed {
			continue
		}
		m.cookie++
		cookie := binary.BigEndian.AppendUint64(nil, m.cookie)
		m.wg.Go(func() { m.granted(key, w, cookie) })
	}
}

// granted tells a waiter that it has its lock. A client that does not want it any more, or cannot be reached, loses it.
func (m *Manager) granted(key string, w *waiter, cookie []byte) {
	a := nlm4.TestArgs{Cookie: cookie, Exclusive: w.lock.exclusive, Lock: w.wire}
	reply, err := m.callBack(w.addr, nlm4.Prog, nlm4.Vers, nlm4.ProcGranted, a.Append(nil))
	if err == nil {
		var r nlm4.Res
		x := newReader(reply)
		r.Parse(&x)
		if x.Err() == nil && r.Stat == nlm4.Granted {
			return
		}
	}
	if m.ctx.Err() != nil {
		return
	}
	m.log.Warn("a lock that was waited for goes back: its client did not take it", zap.String("client", w.lock.host), zap.Error(err))
	m.unlock(key, &nlm4.UnlockArgs{Lock: w.wire})
}

// callBack makes a call at a client, again and again for a while.
func (m *Manager) callBack(addr netip.Addr, prog, vers, proc uint32, args []byte) (reply []byte, err error) {
	select {
	case m.calls <- struct{}{}:
		defer func() { <-m.calls }()
	case <-m.ctx.Done():
		return nil, m.ctx.Err()
	}
	for range callTries {
		ctx, cancel := context.WithTimeout(m.ctx, callTime)
		reply, err = m.opt.Call(ctx, addr, prog, vers, proc, args)
		cancel()
		if err == nil {
			return reply, nil
		}
		select {
		case <-time.After(callPause):
		case <-m.ctx.Done():
			return nil, m.ctx.Err()
		}
	}
	return nil, err
}

// dropHost frees all that a client had: it has restarted and knows nothing of it.
func (m *Manager) dropHost(match func(name string) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, f := range m.table {
		hosts := make(map[string]bool)
		for _, h := range f.locks {
			hosts[h.host] = true
		}
		for _, w := range f.waiters {
			hosts[w.lock.host] = true
		}
		for _, s := range f.shares {
			hosts[s.host] = true
		}
		before := len(f.locks)
		for h := range hosts {
			if match(h) {
				f.dropHost(h)
			}
		}
		m.count += len(f.locks) - before
		m.wakeLocked(key, f)
		m.tidyLocked(key)
	}
}
