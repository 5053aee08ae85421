package lock

import (
	"context"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/nlm4"
	"github.com/sluice-storage/sluice/target/filesystem"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// Files says which file a handle is, and whether the caller may lock it; *nfs.Server does. The key is the file's, whatever
// the handle or the export. filesystem.ErrLater says that it cannot be said now.
type Files interface {
	CheckLock(c *rpcserver.Call, fh []byte) (key filesystem.FileKey, e filesystem.Errno)
}

// Caller calls a client's program and returns the results. from is this side's address, which the client knows and may
// insist on; it may be invalid. The default asks the client's rpcbind for a port.
type Caller func(ctx context.Context, from, to netip.Addr, prog, vers, proc uint32, args []byte) ([]byte, error)

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

	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	calls   chan struct{} // one for each callback on its way
	notices chan struct{} // one for each notification of a restart on its way
	answers chan struct{} // one for each answer to an asynchronous procedure that has not been sent
	lines   lines

	mu      sync.Mutex
	table   map[filesystem.FileKey]*file
	handles map[string]filesystem.FileKey // of files that have locks, to their keys
	count   int                           // ranges
	used    int                           // of maxLocks
	of      map[netip.Addr]int            // of maxHostLocks, by the client's address
	grace   bool
	cookie  uint64
	cookies map[uint64]*waiter // of GRANTED_MSG on their way
	closed  bool
}

// NewManager loads the list of clients, and tells them of the restart if there are any.
func NewManager(opt Options, files Files) (*Manager, error) {
	m := &Manager{opt: opt, log: opt.Log, files: files, table: make(map[filesystem.FileKey]*file), handles: make(map[string]filesystem.FileKey), cookies: make(map[uint64]*waiter),
		of: make(map[netip.Addr]int), calls: make(chan struct{}, maxCallbacks), notices: make(chan struct{}, maxNotices), answers: make(chan struct{}, maxAnswers)}
	if m.log == nil {
		m.log = zap.NewNop()
	}
	if opt.Grace <= 0 {
		m.opt.Grace = defaultGrace
	}
	if opt.Call == nil {
		m.opt.Call = (&caller{find: portOf}).call
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
		m.log.Info("clients held locks when the last life ended: until the end of grace they alone get locks", zap.Int("clients", len(old)), zap.Duration("grace", m.opt.Grace))
		m.grace = true
		m.wg.Go(m.endGrace)
		for _, h := range old {
			m.wg.Go(func() { m.notify(h) })
		}
	}
	return m, nil
}

// Close ends callbacks. Locks are forgotten here, not by the clients: they reclaim them from the next life. A client that
// holds none need not hear of it.
func (m *Manager) Close() error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.cancel()
	m.wg.Wait()
	if !m.InGrace() {
		m.state.prune(m.holders)
	}
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
	return m.count
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
	m.log.Info("grace has ended")
	// Clients that have not come back hold nothing any more.
	m.state.prune(m.holders)
}

// holders are the clients that hold or wait for something.
func (m *Manager) holders() map[hostID]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	hosts := make(map[hostID]bool)
	for _, f := range m.table {
		f.hosts(hosts)
	}
	return hosts
}

func lockOf(l *nlm4.Lock, exclusive bool, to answerTo) held {
	return held{owner: strconv.FormatUint(uint64(l.SVID), 10) + " " + string(l.Owner), host: hostID{string(l.Caller), to.addr},
		svid: l.SVID, oh: string(l.Owner), exclusive: exclusive, start: l.Off, end: endOf(l.Off, l.Len), secure: to.secure}
}

// sameLocked is the key that the locks of a file are kept by. The device number in a key changes when a disk comes back under
// another name; handles do not, so a handle that has locks goes before the key that its file has now.
func (m *Manager) sameLocked(key filesystem.FileKey, fh []byte) filesystem.FileKey {
	if k, known := m.handles[string(fh)]; known {
		return k
	}
	return key
}

// fileLocked returns the locks of a file that is now asked for by the handle fh.
func (m *Manager) fileLocked(key filesystem.FileKey, fh []byte) *file {
	f := m.table[key]
	if f == nil {
		f = &file{}
		m.table[key] = f
	}
	if _, known := m.handles[string(fh)]; !known {
		m.handles[string(fh)] = key
		f.handles = append(f.handles, string(fh))
	}
	return f
}

// keyOf finds the file of a handle. What is given back is found by its handle alone where the file has been removed, or
// the caller's rights have: its locks would stay for ever.
func (m *Manager) keyOf(c *rpcserver.Call, fh []byte, back bool) (filesystem.FileKey, filesystem.Errno) {
	key, e := m.files.CheckLock(c, fh)
	if e == filesystem.OK || !back {
		return key, e
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if key, known := m.handles[string(fh)]; known {
		return key, filesystem.OK
	}
	return "", e
}

func (m *Manager) tidyLocked(key filesystem.FileKey) {
	if f := m.table[key]; f != nil && f.empty() {
		delete(m.table, key)
		for _, h := range f.handles {
			delete(m.handles, h)
		}
	}
}

// fitsLocked reports whether a client may have n more of what is bounded: ranges, waiters, shares, and callbacks that have not ended.
func (m *Manager) fitsLocked(addr netip.Addr, n int) bool {
	return n <= 0 || m.used+n <= maxLocks && m.of[addr]+n <= maxHostLocks
}

// chargeLocked counts n more of that for a client.
func (m *Manager) chargeLocked(addr netip.Addr, n int) {
	m.used += n
	if m.of[addr] += n; m.of[addr] == 0 {
		delete(m.of, addr)
	}
}

// putLocked gives f other ranges; those that differ are of the client at addr.
func (m *Manager) putLocked(f *file, locks []held, addr netip.Addr) {
	n := len(locks) - len(f.locks)
	f.locks = locks
	m.count += n
	m.chargeLocked(addr, n)
}

// growLocked is putLocked within the bounds. free is what is given back with it. It reports false, and changes nothing, where the ranges would be
// too many: a range that is split takes room as a new one does. What makes them no more is always done.
func (m *Manager) growLocked(f *file, locks []held, addr netip.Addr, free int) bool {
	if n := len(locks) - len(f.locks); n > 0 && (len(locks) > maxFileLocks || !m.fitsLocked(addr, n-free)) {
		return false
	}
	m.putLocked(f, locks, addr)
	return true
}

// lock grants, refuses or queues. to is where the answer to a waiter goes.
func (m *Manager) lock(key filesystem.FileKey, a *nlm4.LockArgs, to answerTo) nlm4.Stat {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer rpcserver.Guard()
	// Reclaims only while clients recover, and nothing else then: a new lock might be one that its owner is about to reclaim.
	if m.grace != a.Reclaim {
		return nlm4.DeniedGrace
	}
	key = m.sameLocked(key, a.Lock.FH)
	f := m.fileLocked(key, a.Lock.FH)
	defer m.tidyLocked(key)
	l := lockOf(&a.Lock, a.Exclusive, to)
	if f.conflict(&l) != nil {
		if !a.Block {
			return nlm4.Denied
		}
		if w := f.waiter(&l); w != nil {
			w.to = to // a retransmission, or a client that asks again, perhaps after a reconnect
			return nlm4.Blocked
		}
		if len(f.waiters) >= maxFileLocks || !m.fitsLocked(to.addr, 1) {
			return nlm4.DeniedNolocks
		}
		m.chargeLocked(to.addr, 1)
		f.waiters = append(f.waiters, &waiter{key: key, lock: l, wire: clone(&a.Lock), to: to, done: make(chan nlm4.Stat, 1)})
		return nlm4.Blocked
	}
	waits := 0
	if f.waiter(&l) != nil {
		waits = 1
	}
	if !m.growLocked(f, f.with(l), to.addr, waits) {
		return nlm4.DeniedNolocks
	}
	f.settle(&l) // the client hears of its lock by this answer
	m.dropWaiterLocked(f, &l)
	return nlm4.Granted
}

// unlock releases a range; unlocking what is not locked is fine. What is in the middle of a range leaves two, for which there may be no room.
func (m *Manager) unlock(key filesystem.FileKey, a *nlm4.UnlockArgs, to answerTo) nlm4.Stat {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer rpcserver.Guard()
	key = m.sameLocked(key, a.Lock.FH)
	f := m.table[key]
	if f == nil {
		return nlm4.Granted
	}
	l := lockOf(&a.Lock, false, to)
	if !m.growLocked(f, f.without(&l), to.addr, 0) {
		return nlm4.DeniedNolocks
	}
	f.settle(&l)
	m.wakeLocked(key, f)
	m.tidyLocked(key)
	return nlm4.Granted
}

// drop frees all that clients had: they have restarted and know nothing of it. Who speaks from a port that any user may
// have speaks for what was locked from such a port.
func (m *Manager) drop(match func(hostID) bool, secure bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer rpcserver.Guard()
	for key, f := range m.table {
		hosts := make(map[hostID]bool)
		f.hosts(hosts)
		for h := range hosts {
			if match(h) {
				locks, all := len(f.locks), f.size()
				f.dropHost(h, secure)
				m.count += len(f.locks) - locks
				m.chargeLocked(h.addr, f.size()-all)
			}
		}
		m.wakeLocked(key, f)
		m.tidyLocked(key)
	}
}
