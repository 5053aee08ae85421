package lock

import (
	"context"
	"net/netip"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/target/filesystem"
	"github.com/sluice-storage/sluice/target/filesystem/filelock"
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
	Table    *filelock.Table // keeps the locks: what has the same one shares them, and ends with it. By default the manager's own
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

	table   *filelock.Table
	mu      sync.Mutex // never held while table is called: Tell takes it while table is locked
	cookie  uint64
	cookies map[uint64]*waiter // of GRANTED_MSG on their way
	closed  bool
}

// NewManager loads the list of clients, and tells them of the restart if there are any.
func NewManager(opt Options, files Files) (*Manager, error) {
	m := &Manager{opt: opt, log: opt.Log, files: files, table: opt.Table, cookies: make(map[uint64]*waiter),
		calls: make(chan struct{}, maxCallbacks), notices: make(chan struct{}, maxNotices), answers: make(chan struct{}, maxAnswers)}
	if m.log == nil {
		m.log = zap.NewNop()
	}
	if m.table == nil {
		m.table = filelock.NewTable()
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
		m.table.BeginGrace()
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
		m.state.prune(m.table.Holders)
	}
	return nil
}

// InGrace reports whether only reclaims are granted.
func (m *Manager) InGrace() bool { return m.table.InGrace() }

// Locks is the number of ranges held.
func (m *Manager) Locks() int { return m.table.Count() }

func (m *Manager) endGrace() {
	t := time.NewTimer(m.opt.Grace)
	defer t.Stop()
	select {
	case <-t.C:
	case <-m.ctx.Done():
		return
	}
	m.table.EndGrace()
	m.log.Info("grace has ended")
	// Clients that have not come back hold nothing any more.
	m.state.prune(m.table.Holders)
}

// keyOf finds the file of a handle. What is given back is found by its handle alone where the file has been removed, or
// the caller's rights have: its locks would stay for ever.
func (m *Manager) keyOf(c *rpcserver.Call, fh []byte, back bool) (filesystem.FileKey, filesystem.Errno) {
	key, e := m.files.CheckLock(c, fh)
	if e == filesystem.OK || !back {
		return key, e
	}
	if key, known := m.table.KeyOf(fh); known {
		return key, filesystem.OK
	}
	return "", e
}
