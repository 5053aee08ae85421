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
	answers chan struct{} // one for each answer to an asynchronous procedure that has not been sent

	mu      sync.Mutex
	table   map[filesystem.FileKey]*file
	handles map[string]filesystem.FileKey // of files that have locks, to their keys
	count   int
	grace   bool
	cookie  uint64
	cookies map[uint64]*waiter // of GRANTED_MSG on their way
	closed  bool
}

// NewManager loads the list of clients, and tells them of the restart if there are any.
func NewManager(opt Options, files Files) (*Manager, error) {
	m := &Manager{opt: opt, log: opt.Log, files: files, table: make(map[filesystem.FileKey]*file), handles: make(map[string]filesystem.FileKey), cookies: make(map[uint64]*waiter),
		calls: make(chan struct{}, maxCallbacks), answers: make(chan struct{}, maxAnswers)}
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

// setLocked gives a range to its owner, clearLocked takes it away.
func (m *Manager) setLocked(f *file, l held) {
	before := len(f.locks)
	f.set(l)
	m.count += len(f.locks) - before
}

func (m *Manager) clearLocked(f *file, l *held) {
	before := len(f.locks)
	f.clear(l)
	m.count += len(f.locks) - before
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
		for _, w := range f.waiters {
			if w.lock.same(&l) {
				w.to = to // a retransmission, or a client that asks again, perhaps after a reconnect
				return nlm4.Blocked
			}
		}
		if len(f.waiters) >= maxFileLocks {
			return nlm4.DeniedNolocks
		}
		f.waiters = append(f.waiters, &waiter{key: key, lock: l, wire: clone(&a.Lock), to: to, done: make(chan nlm4.Stat, 1)})
		return nlm4.Blocked
	}
	if len(f.locks) >= maxFileLocks || m.count >= maxLocks {
		return nlm4.DeniedNolocks
	}
	m.setLocked(f, l)
	f.settle(&l) // the client hears of its lock by this answer
	m.dropWaiterLocked(f, &l)
	return nlm4.Granted
}

// unlock releases a range; unlocking what is not locked is fine.
func (m *Manager) unlock(key filesystem.FileKey, a *nlm4.UnlockArgs, to answerTo) {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer rpcserver.Guard()
	key = m.sameLocked(key, a.Lock.FH)
	f := m.table[key]
	if f == nil {
		return
	}
	l := lockOf(&a.Lock, false, to)
	m.clearLocked(f, &l)
	f.settle(&l)
	m.wakeLocked(key, f)
	m.tidyLocked(key)
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
		before := len(f.locks)
		for h := range hosts {
			if match(h) {
				f.dropHost(h, secure)
			}
		}
		m.count += len(f.locks) - before
		m.wakeLocked(key, f)
		m.tidyLocked(key)
	}
}
