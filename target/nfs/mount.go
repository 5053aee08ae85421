package nfs

import (
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/mount3"
	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/target/filesystem"
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
		c.Out = mount3.AppendDump(c.Out, s.mounted())
	case mount3.ProcUmnt:
		var a mount3.PathArgs
		if a.Parse((*xdr.Reader)(&c.Args)); c.Args.Err() != nil {
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
		for _, e := range s.fs.Exports() {
			l = append(l, mount3.Export{Dir: e.Path, Groups: e.Groups()})
		}
		c.Out = mount3.AppendExports(c.Out, l)
	default:
		return c.NoProc()
	}
	return rpcserver.Done
}

// mounted lists who has mounted what and not said otherwise.
func (s *Server) mounted() []mount3.Mounted {
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
	if a.Parse((*xdr.Reader)(&c.Args)); c.Args.Err() != nil {
		return c.Garbage()
	}
	r := mount3.MntRes{Flavors: []uint32{oncrpc.AuthSys, oncrpc.AuthNone}}
	from := callerOf(c)
	fh, e := s.fs.Mount(&from, string(a.Path))
	if e == filesystem.ErrLater {
		return rpcserver.Drop // the client asks again: MOUNT has no status for it (RFC 1813 section 5.1.5)
	}
	r.FH, r.Status = fh, mountStatus(e)
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

func mountStatus(e filesystem.Errno) mount3.Status {
	switch unix.Errno(e) {
	case 0:
		return mount3.OK
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
