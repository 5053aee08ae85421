package nfs

import (
	"encoding/binary"
	"net/netip"
	"sync"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/target/filesystem"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// What is served, and by what rules, is the file system's to say (target/filesystem).
type (
	// Export is a directory that clients can mount.
	Export = filesystem.Export
	// Client is a rule: who it is for and what they may do.
	Client = filesystem.Client
	// Rights are what a client may do on an export.
	Rights = filesystem.Rights
	// Squash says whose requests run as the anonymous user.
	Squash = filesystem.Squash
	// OpenError says why exports cannot be opened, by their paths.
	OpenError = filesystem.OpenError
	// HungError says that an export's directory does not answer.
	HungError = filesystem.HungError
	// Storage moves the data of open files.
	Storage = filesystem.Storage
	// Lender is a Storage that can lend pages of files instead of reading them.
	Lender = filesystem.Lender
	// Names is the name service that rules with names ask.
	Names = filesystem.Names
)

// The values of Squash, and the default anonymous uid and gid.
const (
	SquashRoot = filesystem.SquashRoot
	SquashNone = filesystem.SquashNone
	SquashAll  = filesystem.SquashAll
	Nobody     = filesystem.Nobody
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

// Server serves exports. All methods may be called by any goroutine.
type Server struct {
	fs    *filesystem.FS
	stray counters // of calls whose file handle is of no export

	mu     sync.Mutex
	mounts map[mountKey]struct{}
}

// NewServer opens the exports.
func NewServer(opt Options, exports ...Export) (*Server, error) {
	s := &Server{mounts: make(map[mountKey]struct{})}
	var err error
	s.fs, err = filesystem.New(filesystem.Options{StateDir: opt.StateDir, Log: opt.Log, Storage: opt.Storage, Names: opt.Names,
		NewData: func() any { return &counters{} }}, exports...)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// SetExports replaces the exports. Clients keep their handles on those whose ID stays; one that is the same as before is not
// touched.
func (s *Server) SetExports(exports ...Export) error { return s.fs.SetExports(exports...) }

// Check says whether SetExports would take the exports.
func (s *Server) Check(exports ...Export) error { return s.fs.Check(exports...) }

// Squashed explains why all clients act as the daemon's own user, "" when they do not.
func (s *Server) Squashed() string { return s.fs.Squashed() }

// Entitled reports whether a host has a right on some export, from a port that only root may use or from another. Where only a name
// server could tell, it is taken to have one.
func (s *Server) Entitled(host netip.Addr, privileged bool) bool {
	return s.fs.Entitled(host, privileged)
}

// Programs are the RPC programs to serve.
func (s *Server) Programs() []rpcserver.Program {
	return []rpcserver.Program{(*program)(s), (*mountProgram)(s), (*aclProgram)(s)}
}

// Close flushes and closes all files. No call may be in progress.
func (s *Server) Close() error { return s.fs.Close() }

// CheckLock finds the file that a handle is, for the lock manager: the caller needs the rights to the export, not to the
// file, because what may be locked a client decides when the file is opened.
func (s *Server) CheckLock(c *rpcserver.Call, fh []byte) (key filesystem.FileKey, e filesystem.Errno) {
	in, ok := s.fs.ExportOf(fh).Enter(c.Peer)
	if !ok {
		return "", filesystem.ErrLater
	}
	defer in.Leave()
	from := callerOf(c)
	var o filesystem.Object
	if e := s.fs.Find(&from, fh, &o); e != filesystem.OK {
		return "", e
	}
	defer o.End()
	return o.Key()
}

func verfOf(v uint64) (b nfs3.Verf) {
	binary.BigEndian.PutUint64(b[:], v)
	return b
}
