package nfs

import (
	"cmp"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

func (s *Server) remove(c *rpcserver.Call) rpcserver.Verdict { return s.unlink(c, 0) }
func (s *Server) rmdir(c *rpcserver.Call) rpcserver.Verdict  { return s.unlink(c, unix.AT_REMOVEDIR) }

func (s *Server) unlink(c *rpcserver.Call, flags int) rpcserver.Verdict {
	a := &argsOf(c).dirOp
	var q request
	var r nfs3.WccRes
	if r.Status = s.findDir(c, a.Dir, &q, true); r.Status == nfs3.OK {
		defer s.end(&q)
		r.Status = s.unlinkIn(&q, a.Name, flags, &r.Wcc)
	}
	c.Out = r.Append(c.Out)
	return rpcserver.Done
}

func (s *Server) unlinkIn(q *request, name []byte, flags int, w *nfs3.Wcc) nfs3.Status {
	switch st := checkName(name); {
	case st == errDots && string(name) == "..":
		return nfs3.ErrExist // RFC 1813 section 3.3.13
	case st == errDots:
		return nfs3.ErrInval
	case st != nfs3.OK:
		return st
	}
	var st unix.Stat_t
	err := s.changing(q.n, w, &st, func() error {
		defer s.release(s.peek(q, name))
		return s.ids.as(&q.id, func() error { return unix.Unlinkat(q.n.fd, string(name), flags) })
	})
	if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EBUSY) {
		return nfs3.ErrAcces // a mount point
	}
	if err == nil {
		err = s.durable(q.n)
	}
	return statusOf(err)
}

// peek returns the cached node of a name that is about to go, so that its descriptors do not keep the space of what
// nobody can reach any more. nil if there is none.
func (s *Server) peek(q *request, name []byte) *node {
	fd, err := openBeneath(q.n.fd, string(name))
	if err != nil {
		return nil
	}
	h, err := s.makeHandle(q.n.e, fd)
	_ = unix.Close(fd)
	if err != nil {
		return nil
	}
	return s.nodes.cached(h)
}

// release ends peek. A node whose last name is gone leaves the cache (stat sees to it).
func (s *Server) release(n *node) {
	if n == nil {
		return
	}
	var st unix.Stat_t
	if errors.Is(s.stat(n, &st), unix.ESTALE) {
		n.file.forget()
	}
	s.nodes.put(n)
}

func (s *Server) rename(c *rpcserver.Call) rpcserver.Verdict {
	a := &argsOf(c).rename
	var from, to request
	var r nfs3.RenameRes
	if r.Status = s.findDir(c, a.From.Dir, &from, true); r.Status == nfs3.OK {
		defer s.end(&from)
		if r.Status = s.findDir(c, a.To.Dir, &to, true); r.Status == nfs3.OK {
			defer s.end(&to)
			r.Status = s.renameIn(&from, &to, a, &r)
		}
	}
	c.Out = r.Append(c.Out)
	return rpcserver.Done
}

func (s *Server) renameIn(from, to *request, a *nfs3.RenameArgs, r *nfs3.RenameRes) nfs3.Status {
	for _, name := range [...][]byte{a.From.Name, a.To.Name} {
		if st := checkName(name); st == errDots {
			return nfs3.ErrInval
		} else if st != nfs3.OK {
			return st
		}
	}
	if from.n.e.ID != to.n.e.ID { // of one export there are two while the list is replaced
		return nfs3.ErrXdev
	}
	move := func() error {
		defer s.release(s.peek(to, a.To.Name))
		err := s.ids.as(&from.id, func() error {
			return unix.Renameat(from.n.fd, string(a.From.Name), to.n.fd, string(a.To.Name))
		})
		if err == nil {
			s.moved(to.n, string(a.To.Name))
		}
		return err
	}
	var err error
	var stFrom, stTo unix.Stat_t
	switch f, t := from.n.file, to.n.file; {
	case f == t:
		err = s.changing(to.n, &r.To, &stTo, move)
		r.From = r.To
	case f.id.ino < t.id.ino: // two directories are always locked in one order
		err = s.changing(from.n, &r.From, &stFrom, func() error { return s.changing(to.n, &r.To, &stTo, move) })
	default:
		err = s.changing(to.n, &r.To, &stTo, func() error { return s.changing(from.n, &r.From, &stFrom, move) })
	}
	if errors.Is(err, unix.EBUSY) {
		return nfs3.ErrAcces
	}
	if err == nil {
		err = s.durable(to.n)
		if from.n.file != to.n.file {
			err = cmp.Or(err, s.durable(from.n))
		}
	}
	return statusOf(err)
}

// moved keeps fallback handles good over a rename.
func (s *Server) moved(dir *node, name string) {
	if dir.e.table == nil {
		return
	}
	fd, err := openBeneath(dir.fd, name)
	if err != nil {
		return
	}
	var st unix.Stat_t
	if unix.Fstat(fd, &st) == nil {
		dir.e.table.learn(dir.ino, st.Ino, name)
	}
	_ = unix.Close(fd)
}

func (s *Server) link(c *rpcserver.Call) rpcserver.Verdict {
	a := &argsOf(c).link
	var file, dir request
	var r nfs3.LinkRes
	if r.Status = s.findFile(c, a.FH, &file); r.Status == nfs3.OK {
		defer s.end(&file)
		if r.Status = s.findDir(c, a.Link.Dir, &dir, true); r.Status == nfs3.OK {
			defer s.end(&dir)
			r.Status = s.linkIn(&file, &dir, a.Link.Name, &r)
		}
		s.post(file.n, &r.Attr)
	}
	c.Out = r.Append(c.Out)
	return rpcserver.Done
}

func (s *Server) linkIn(file, dir *request, name []byte, r *nfs3.LinkRes) nfs3.Status {
	switch st := checkName(name); {
	case st == errDots:
		return nfs3.ErrExist
	case st != nfs3.OK:
		return st
	case file.n.e.ID != dir.n.e.ID:
		return nfs3.ErrXdev
	case file.n.fmt == unix.S_IFDIR:
		return nfs3.ErrIsdir
	}
	var st unix.Stat_t
	err := s.changing(dir.n, &r.Dir, &st, func() error {
		return s.ids.as(&dir.id, func() error {
			return unix.Linkat(unix.AT_FDCWD, procPath(file.n.fd), dir.n.fd, string(name), unix.AT_SYMLINK_FOLLOW)
		})
	})
	if err == nil {
		err = s.durable(dir.n)
	}
	return statusOf(err)
}
