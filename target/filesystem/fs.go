package filesystem

import (
	"crypto/rand"
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/group"
)

// Options configure an FS.
type Options struct {
	// StateDir keeps the key of file handles. Empty: handles die with the process.
	StateDir string
	Log      *zap.Logger
	// Storage replaces the system calls that move file data; nil is the kernel's.
	Storage Storage
	// Names is the name service; nil is the host's.
	Names Names
	// NewData makes Served.Data of an export that is new; nil leaves it.
	NewData func() any
}

// Storage moves the data of open files. It exists so that tests can put a layer below that forgets.
type Storage interface {
	// Pread reads up to n bytes at off into bufs. With nowait it answers unix.EAGAIN rather than block.
	Pread(fd int, bufs [][]byte, n int, off int64, nowait bool) (int, error)
	// Pwrite writes n bytes of bufs at off; sync is what must be durable before it returns.
	Pwrite(fd int, bufs [][]byte, n int, off int64, sync Stability) (int, error)
	// Sync makes all that was written to the file durable.
	Sync(fd int) error
}

// Lender is a Storage that can lend pages of files instead of reading them.
type Lender interface {
	// Lend puts n bytes at off into a pipe that has room for them, or those that there are before the end of the file,
	// without copying them. With nowait it answers unix.EAGAIN rather than block, and the pipe is as it was. EINVAL and
	// the like say that the file system has no pages to lend.
	Lend(fd, pipe, n int, off int64, nowait bool) (int, error)
}

// FS serves exports. All methods may be called by any goroutine.
type FS struct {
	log     *zap.Logger
	key     []byte
	ids     *identities
	nodes   nodeCache
	files   fileTable
	names   *names
	storage Storage
	lender  Lender // storage, if it is one
	newData func() any
	setting sync.Mutex // of those that replace the table, or look whether they could: each closes what the next table has no more
	table   atomic.Pointer[exportTable]
	verf    atomic.Uint64

	stop    chan struct{}
	wg      sync.WaitGroup
	closers group.Group
	opening opening
}

type exportTable struct {
	byID   map[uint32]*Served
	byPath map[string]*Served
	list   []*Served
}

// New opens the exports.
func New(opt Options, exports ...Export) (*FS, error) {
	s := &FS{log: opt.Log, storage: opt.Storage, newData: opt.NewData, stop: make(chan struct{})}
	if s.log == nil {
		s.log = zap.NewNop()
	}
	if s.storage == nil {
		s.storage = kernel{}
	}
	s.lender, _ = s.storage.(Lender)
	var err error
	if s.key, err = loadKey(opt.StateDir); err != nil {
		return nil, err
	}
	s.ids = newIdentities()
	if !s.ids.able {
		s.log.Warn("all clients act as the daemon's own user: "+s.ids.why, zap.Uint32("uid", s.ids.uid))
	}
	s.newVerifier()
	s.nodes.init(s)
	s.files.m = make(map[fileID]*file)
	s.table.Store(&exportTable{})
	if err := s.SetExports(exports...); err != nil {
		return nil, err
	}
	s.names = newNames(opt.Names)
	s.wg.Add(1)
	go s.sweeper()
	return s, nil
}

// SetExports replaces the exports. Clients keep their handles on those whose ID stays; one that is the same as before is not
// touched.
func (s *FS) SetExports(exports ...Export) error {
	s.setting.Lock()
	defer s.setting.Unlock()
	was := s.table.Load()
	t, err := s.openExports(was, s.log, exports)
	if err != nil {
		return err
	}
	s.table.Store(t)
	// Nodes carry the rules of the export that they were opened under. A medium that hangs is left to itself after a while.
	wait := time.NewTimer(gateTime)
	defer wait.Stop()
	select {
	case <-s.nodes.sweep(true):
	case <-wait.C:
		s.log.Warn("files of exports that have changed are still being flushed: a medium hangs")
	}
	was.closeBut(t)
	return nil
}

// Check says whether SetExports would take the exports.
func (s *FS) Check(exports ...Export) error {
	s.setting.Lock()
	defer s.setting.Unlock()
	was := s.table.Load()
	t, err := s.openExports(was, zap.NewNop(), exports)
	if err == nil {
		t.closeBut(was)
	}
	return err
}

// Squashed explains why all callers act as the daemon's own user, "" when they do not.
func (s *FS) Squashed() string { return s.ids.why }

// Exports are those that are served, in the order of their configuration. The list is not the caller's to change.
func (s *FS) Exports() []*Served { return s.table.Load().list }

// ExportOf is the export that a handle names, true or forged; nil where there is none.
func (s *FS) ExportOf(handle []byte) *Served {
	if len(handle) < handleHead {
		return nil
	}
	return s.table.Load().byID[binary.BigEndian.Uint32(handle[2:])]
}

// Close flushes and closes all files. No operation may be in progress.
func (s *FS) Close() error {
	close(s.stop)
	s.names.close()
	s.wg.Wait()
	<-s.nodes.sweep(true)
	s.closers.Wait()
	s.table.Load().closeBut(nil)
	return nil
}

func (s *FS) sweeper() {
	defer s.wg.Done()
	t := time.NewTicker(nodeIdle)
	defer t.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-t.C:
			s.nodes.sweep(false) // it is not waited for
		}
	}
}

// newVerifier changes the write verifier to one that no earlier life of this server has had.
func (s *FS) newVerifier() {
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		binary.BigEndian.PutUint64(b[:], uint64(time.Now().UnixNano()))
	}
	s.verf.Store(binary.BigEndian.Uint64(b[:]))
}

// writebackFailed is called when data that a client believes to be here may be lost: every client that has something
// uncommitted must send it again.
func (s *FS) writebackFailed(n *node, err error) {
	s.newVerifier()
	s.log.Error("data could not be written back; the write verifier changes", zap.String("export", n.e.Path), zap.Uint64("inode", n.ino), zap.Error(err))
}

// Entitled reports whether a host has a right on some export, from a port that only root may use or from another. Where only a name
// server could tell, it is taken to have one.
func (s *FS) Entitled(host netip.Addr, privileged bool) bool {
	return slices.ContainsFunc(s.table.Load().list, func(e *Served) bool {
		r, ok, unsure := e.rightsOf(host, unasked)
		return unsure || ok && (r.Insecure || privileged)
	})
}
