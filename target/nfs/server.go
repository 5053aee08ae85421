package nfs

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/group"
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// Options configure a Server.
type Options struct {
	// StateDir keeps the key of file handles. Empty: handles die with the process.
	StateDir string
	Log      *zap.Logger
	// Storage replaces the system calls that move file data; nil is the kernel's.
	Storage Storage
	// Names is the name service; nil is the host's.
	Names Names
}

// Storage moves the data of open files. It exists so that tests can put a layer below that forgets.
type Storage interface {
	// Pread reads up to n bytes at off into bufs. With nowait it answers unix.EAGAIN rather than block.
	Pread(fd int, bufs [][]byte, n int, off int64, nowait bool) (int, error)
	// Pwrite writes n bytes of bufs at off; sync is what must be durable before it returns.
	Pwrite(fd int, bufs [][]byte, n int, off int64, sync nfs3.Stable) (int, error)
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

// Server serves exports. All methods may be called by any goroutine.
type Server struct {
	log     *zap.Logger
	key     []byte
	ids     *identities
	nodes   nodeCache
	files   fileTable
	names   *names
	storage Storage
	lender  Lender // storage, if it is one
	table   atomic.Pointer[exportTable]
	verf    atomic.Uint64
	stray   counters // of calls whose file handle is of no export

	mu      sync.Mutex
	mounts  map[mountKey]struct{}
	stop    chan struct{}
	wg      sync.WaitGroup
	closers group.Group
	opening opening
}

type exportTable struct {
	byID   map[uint32]*export
	byPath map[string]*export
	list   []*export
}

// NewServer opens the exports.
func NewServer(opt Options, exports ...Export) (*Server, error) {
	s := &Server{log: opt.Log, storage: opt.Storage, mounts: make(map[mountKey]struct{}), stop: make(chan struct{})}
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
func (s *Server) SetExports(exports ...Export) error {
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
func (s *Server) Check(exports ...Export) error {
	was := s.table.Load()
	t, err := s.openExports(was, zap.NewNop(), exports)
	if err == nil {
		t.closeBut(was)
	}
	return err
}

// Squashed explains why all clients act as the daemon's own user, "" when they do not.
func (s *Server) Squashed() string { return s.ids.why }

// Programs are the RPC programs to serve.
func (s *Server) Programs() []rpcserver.Program {
	return []rpcserver.Program{(*program)(s), (*mountProgram)(s), (*aclProgram)(s)}
}

// Close flushes and closes all files. No call may be in progress.
func (s *Server) Close() error {
	close(s.stop)
	s.names.close()
	s.wg.Wait()
	<-s.nodes.sweep(true)
	s.closers.Wait()
	s.table.Load().closeBut(nil)
	return nil
}

func (s *Server) sweeper() {
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
func (s *Server) newVerifier() {
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		binary.BigEndian.PutUint64(b[:], uint64(time.Now().UnixNano()))
	}
	s.verf.Store(binary.BigEndian.Uint64(b[:]))
}

func (s *Server) verifier() (v nfs3.Verf) {
	binary.BigEndian.PutUint64(v[:], s.verf.Load())
	return v
}

// writebackFailed is called when data that a client believes to be here may be lost: every client that has something
// uncommitted must send it again.
func (s *Server) writebackFailed(n *node, err error) {
	s.newVerifier()
	s.log.Error("data could not be written back; the write verifier changes", zap.String("export", n.e.Path), zap.Uint64("inode", n.ino), zap.Error(err))
}

// statusOf is the status that stands for an error of the file system.
func statusOf(err error) nfs3.Status {
	if err == nil {
		return nfs3.OK
	}
	if errors.Is(err, errForged) {
		return nfs3.ErrBadhandle
	}
	var made *madeError
	if errors.As(err, &made) {
		if st := statusOf(made.err); st != nfs3.ErrJukebox {
			return st
		}
		return nfs3.ErrServerfault
	}
	var st nfs3.Status
	if errors.As(err, &st) {
		return st
	}
	var e unix.Errno
	if !errors.As(err, &e) {
		return nfs3.ErrServerfault
	}
	switch e {
	case unix.EPERM, unix.ENOENT, unix.EIO, unix.ENXIO, unix.EACCES, unix.EEXIST, unix.ENODEV, unix.ENOTDIR, unix.EISDIR,
		unix.EINVAL, unix.EFBIG, unix.ENOSPC, unix.EROFS, unix.EMLINK:
		return nfs3.Status(e) // RFC 1813 section 2.6 took these numbers from UNIX
	case unix.EXDEV:
		return nfs3.ErrXdev
	case unix.ENAMETOOLONG:
		return nfs3.ErrNametoolong
	case unix.ENOTEMPTY:
		return nfs3.ErrNotempty
	case unix.EDQUOT:
		return nfs3.ErrDquot
	case unix.ESTALE:
		return nfs3.ErrStale
	case unix.EOPNOTSUPP, unix.ENOSYS:
		return nfs3.ErrNotsupp
	case unix.ELOOP:
		return nfs3.ErrInval
	case unix.ETXTBSY:
		return nfs3.ErrAcces
	case unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EAGAIN, unix.EBUSY:
		return nfs3.ErrJukebox
	case unix.ENOBUFS, unix.EOVERFLOW:
		return nfs3.ErrServerfault
	}
	return nfs3.ErrIO
}
