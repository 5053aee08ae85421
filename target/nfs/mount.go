package nfs

import (
	"errors"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/mount3"
	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// mountProgram is MOUNT version 3. Its list of mounts is a courtesy to people: clients that crash stay in it.
type mountProgram Server

type mountKey struct {
	addr netip.Addr
	path string
}

// ID is the program number.
func (p *mountProgram) ID() uint32 { return mount3.Prog }

// Versions are 1 to 3: DUMP and UMNT of version 1 are the same, and old umount commands use it.
func (p *mountProgram) Versions() (low, high uint32) { return 1, mount3.Vers }

// Keeps is false: mounting twice does no harm.
func (p *mountProgram) Keeps(_, _ uint32) bool { return false }

// Classify leaves all to workers.
func (p *mountProgram) Classify(*rpcserver.Call) rpcserver.Class { return rpcserver.Worker }

// Serve executes one call.
func (p *mountProgram) Serve(c *rpcserver.Call) rpcserver.Verdict {
	s := (*Server)(p)
	addr := c.Peer.Addr.Addr()
	switch c.Proc {
	case mount3.ProcMnt:
		if c.Vers != mount3.Vers {
			return c.NoProc() // its handle has another form
		}
		return s.mnt(c, addr)
	case mount3.ProcDump:
		c.Out = mount3.AppendDump(c.Out, s.Mounts())
	case mount3.ProcUmnt:
		var a mount3.PathArgs
		if a.Parse(&c.Args); c.Args.Err() != nil {
			return c.Garbage()
		}
		s.mu.Lock()
		delete(s.mounts, mountKey{addr, string(a.Path)})
		s.mu.Unlock()
	case mount3.ProcUmntall:
		s.mu.Lock()
		for k := range s.mounts {
			if k.addr == addr {
				delete(s.mounts, k)
			}
		}
		s.mu.Unlock()
	case mount3.ProcExport:
		var l []mount3.Export
		for _, e := range s.table.Load().list {
			l = append(l, mount3.Export{Dir: e.Path, Groups: e.groups()})
		}
		c.Out = mount3.AppendExports(c.Out, l)
	default:
		return c.NoProc()
	}
	return rpcserver.Done
}

// Mounts lists who has mounted what and not said otherwise.
func (s *Server) Mounts() []mount3.Mounted {
	s.mu.Lock()
	defer s.mu.Unlock()
	var l []mount3.Mounted
	for k := range s.mounts {
		l = append(l, mount3.Mounted{Host: k.addr.String(), Dir: k.path})
	}
	slices.SortFunc(l, func(a, b mount3.Mounted) int { return strings.Compare(a.Host+" "+a.Dir, b.Host+" "+b.Dir) })
	return l
}

func (s *Server) mnt(c *rpcserver.Call, addr netip.Addr) rpcserver.Verdict {
	var a mount3.PathArgs
	if a.Parse(&c.Args); c.Args.Err() != nil {
		return c.Garbage()
	}
	r := mount3.MntRes{Flavors: []uint32{oncrpc.AuthSys, oncrpc.AuthNone}}
	var unsure bool
	if r.FH, r.Status, unsure = s.mountPath(c, string(a.Path)); unsure {
		return rpcserver.Drop // the client asks again: MOUNT has no status for it (RFC 1813 section 5.1.5)
	}
	if r.Status == mount3.OK {
		s.mu.Lock()
		if len(s.mounts) < maxMounts {
			s.mounts[mountKey{addr, string(a.Path)}] = struct{}{}
		}
		s.mu.Unlock()
	}
	c.Out = r.Append(c.Out)
	return rpcserver.Done
}

// mountPath finds the directory that a client names: an export, or one below. No symbolic link is followed and no ".."
// taken on the way. unsure says that the client's rights cannot be said now.
func (s *Server) mountPath(c *rpcserver.Call, path string) (fh []byte, status mount3.Status, unsure bool) {
	if !strings.HasPrefix(path, "/") || strings.ContainsRune(path, 0) {
		return nil, mount3.ErrNoent, false
	}
	e, rest := s.table.Load().lookup(path)
	for e != nil && !e.hold() {
		e, rest = s.table.Load().lookup(path) // the exports were replaced just now
	}
	if e == nil {
		return nil, mount3.ErrNoent, false
	}
	defer e.close()
	in, free := e.medium.enter(c.Peer)
	if !free {
		return nil, mount3.ErrServerfault, true
	}
	defer in.leave()
	if _, ok, unsure := s.decide(c, e); unsure || !ok {
		return nil, mount3.ErrAcces, unsure
	}
	fd, err := openPath(e.root, rest)
	if err != nil {
		return nil, mountStatus(err), false
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, mountStatus(err), false
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil, mount3.ErrNotdir, false
	}
	h, err := s.makeHandle(e, fd)
	if err != nil {
		return nil, mountStatus(err), false
	}
	return h, mount3.OK, false
}

// lookup finds the export with the longest path that path begins with, and the rest.
func (t *exportTable) lookup(path string) (*export, string) {
	for p := strings.TrimRight(path, "/"); ; {
		if p == "" {
			p = "/"
		}
		if e := t.byPath[p]; e != nil {
			return e, strings.TrimPrefix(path, p)
		}
		if p == "/" {
			return nil, ""
		}
		p = p[:strings.LastIndexByte(p, '/')]
	}
}

func mountStatus(err error) mount3.Status {
	var no unix.Errno
	errors.As(err, &no)
	switch no {
	case unix.ENOENT:
		return mount3.ErrNoent
	case unix.ENOTDIR, unix.ELOOP:
		return mount3.ErrNotdir
	case unix.EACCES, unix.EPERM, unix.EXDEV:
		return mount3.ErrAcces
	case unix.ENAMETOOLONG:
		return mount3.ErrNametoolong
	case unix.EIO:
		return mount3.ErrIO
	}
	return mount3.ErrServerfault
}
