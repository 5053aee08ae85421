package nfs

import (
	"cmp"
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// maker makes one name in a directory, with the rights of the calling thread, and returns a path descriptor of it.
// had is true when the object was there before and is not to be given attributes.
type maker func(dir int, name string) (fd int, had bool, err error)

// make is what CREATE, MKDIR, SYMLINK and MKNOD have in common. attr, if not nil, is applied to the new object.
func (s *Server) make(c *rpcserver.Call, where *nfs3.DirOp, attr *nfs3.SetAttr, mk maker) rpcserver.Verdict {
	var q request
	var r nfs3.CreateRes
	if r.Status = s.findDir(c, where.Dir, &q, true); r.Status == nfs3.OK {
		defer s.end(&q)
		s.makeIn(&q, where, attr, mk, &r)
	}
	c.Out = r.Append(c.Out)
	return rpcserver.Done
}

func (s *Server) makeIn(q *request, where *nfs3.DirOp, attr *nfs3.SetAttr, mk maker, r *nfs3.CreateRes) {
	switch st := checkName(where.Name); st {
	case nfs3.OK:
	case errDots:
		r.Status = nfs3.ErrExist
	default:
		r.Status = st
	}
	if r.Status != nfs3.OK {
		s.post(q.n, &r.Dir.After)
		return
	}
	var child *node
	var more bool
	var st unix.Stat_t
	err := s.changing(q.n, &r.Dir, &st, func() (err error) {
		child, more, err = s.makeNode(q, string(where.Name), attr, mk)
		return err
	})
	if err != nil {
		r.Status = statusOf(err)
		return
	}
	defer s.nodes.put(child)
	if more {
		err = s.durable(child)
	}
	// Also for a file that was there: this may be a client that asks once more because its server was lost.
	if err = cmp.Or(err, s.durable(q.n)); err != nil {
		r.Status = statusOf(err)
		return
	}
	r.FH = nfs3.OptFH(child.key)
	s.post(child, &r.Attr)
}

// makeNode makes a name and gives what has it its attributes. more says that the directory's fsync does not cover it all:
// it covers how the file was made, not what is done to it afterwards, EXCLUSIVE's times and what the call that made it
// could not say.
func (s *Server) makeNode(q *request, name string, attr *nfs3.SetAttr, mk maker) (child *node, more bool, err error) {
	fd, had := -1, false
	defer func() {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}()
	err = s.ids.as(&q.id, func() (err error) {
		fd, had, err = mk(q.n.fd, name)
		return err
	})
	if err != nil {
		return nil, false, err
	}
	more = true
	if attr != nil {
		if more, err = needed(q.n.fd, fd, had, attr); err != nil {
			return nil, false, afterwards(err)
		}
		if more {
			if err = s.changeMade(fd, &q.id, attr); err != nil {
				return nil, false, afterwards(err)
			}
		}
	}
	took := fd
	fd = -1
	child, err = s.nodeOf(q.n, name, took)
	return child, more, afterwards(err)
}

// changeMade is change for a file that a CREATE has made or found: no WRITE of ours comes between what it looks at and what it does.
func (s *Server) changeMade(fd int, id *identity, a *nfs3.SetAttr) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	f := s.files.get(fileID{st.Dev, st.Ino})
	defer s.files.put(f)
	f.change.Lock()
	defer f.change.Unlock()
	return s.change(fd, id, a)
}

// needed takes out of a what a new file of the directory dir has already, and reports whether anything is left. A file
// that was there before is given its size even if it has it: its times change. Where the directory has a default list,
// that and not the server's umask has limited the mode, and the limit stands.
func needed(dir, fd int, had bool, a *nfs3.SetAttr) (bool, error) {
	var st unix.Stat_t
	if !had && unix.Fstat(fd, &st) == nil {
		if a.ModeSet && a.Mode&0o777 != st.Mode&0o777 {
			limited, err := hasDefaultACL(dir)
			if err != nil {
				return false, err
			}
			if limited {
				a.Mode = a.Mode&^0o777 | st.Mode&0o777
			}
		}
		a.ModeSet = a.ModeSet && a.Mode&0o7777 != st.Mode&0o7777
		a.UIDSet = a.UIDSet && a.UID != st.Uid
		a.GIDSet = a.GIDSet && a.GID != st.Gid
		a.SizeSet = a.SizeSet && a.Size != uint64(st.Size)
	}
	return a.ModeSet || a.UIDSet || a.GIDSet || a.SizeSet || a.Atime.How != nfs3.DontChange || a.Mtime.How != nfs3.DontChange, nil
}

func (s *Server) create(c *rpcserver.Call) rpcserver.Verdict {
	a := &argsOf(c).create
	switch a.How {
	case nfs3.Exclusive:
		return s.make(c, &a.Where, nil, func(dir int, name string) (int, bool, error) { return createExclusive(dir, name, a.Verf) })
	case nfs3.Guarded:
		return s.make(c, &a.Where, &a.Attr, func(dir int, name string) (int, bool, error) { return createNew(dir, name, a.Attr) })
	}
	// UNCHECKED: an existing file is taken, and of the attributes only the size is applied.
	attr := a.Attr
	return s.make(c, &a.Where, &attr, func(dir int, name string) (int, bool, error) {
		fd, had, err := createNew(dir, name, a.Attr)
		if !errors.Is(err, unix.EEXIST) {
			return fd, had, err
		}
		if fd, err = openBeneath(dir, name); err != nil {
			return fd, true, err
		}
		var st unix.Stat_t
		err = unix.Fstat(fd, &st)
		if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
			err = unix.EEXIST
		}
		if err != nil {
			_ = unix.Close(fd)
			return -1, true, err
		}
		attr = nfs3.SetAttr{SizeSet: a.Attr.SizeSet, Size: a.Attr.Size}
		return fd, true, nil
	})
}

// createNew makes an empty file. The mode is set at once where it can be, so that no one gets in between; the umask is
// the client's business and is taken out by setting the mode again (change).
func createNew(dir int, name string, a nfs3.SetAttr) (int, bool, error) {
	mode := uint32(0o600)
	if a.ModeSet {
		mode = a.Mode & 0o777
	}
	fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	if err != nil {
		return -1, false, err
	}
	return toPath(fd, dir, name)
}

// toPath turns a descriptor of a new file into a path descriptor of the same file.
func toPath(fd, dir int, name string) (int, bool, error) {
	p, err := unix.Open(procPath(fd), unix.O_PATH|unix.O_CLOEXEC, 0)
	_ = unix.Close(fd)
	if err != nil {
		p, err = openBeneath(dir, name)
	}
	return p, false, afterwards(err)
}

// createExclusive makes a file, or takes one that the same verifier made: the verifier is kept in the times until the
// client's SETATTR sets them (RFC 1813 section 3.3.8 leaves the place to the server).
func createExclusive(dir int, name string, verf nfs3.Verf) (int, bool, error) {
	ts := []unix.Timespec{
		{Sec: int64(binary.BigEndian.Uint32(verf[:]) & 0x7fffffff)},
		{Sec: int64(binary.BigEndian.Uint32(verf[4:]) & 0x7fffffff)},
	}
	p, err := createWithTimes(dir, name, ts)
	if err == nil {
		return p, false, nil
	}
	if !errors.Is(err, unix.EEXIST) {
		return -1, false, err
	}
	if p, err = openBeneath(dir, name); err != nil {
		return -1, true, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(p, &st); err == nil && (st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != 0 ||
		st.Atim.Sec != ts[0].Sec || st.Mtim.Sec != ts[1].Sec) {
		err = unix.EEXIST
	}
	if err != nil {
		_ = unix.Close(p)
		return -1, true, err
	}
	return p, true, nil
}

// createWithTimes makes a file that has its times before it has its name: a server that dies in between must not leave one
// that its client, which asks once more, is told to be somebody else's. Where a file system knows no files without a name, it
// may.
func createWithTimes(dir int, name string, ts []unix.Timespec) (int, error) {
	if fd, err := unix.Openat(dir, ".", unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600); err == nil {
		defer func() { _ = unix.Close(fd) }()
		if err = utimens(fd, ts); err == nil {
			err = unix.Linkat(unix.AT_FDCWD, procPath(fd), dir, name, unix.AT_SYMLINK_FOLLOW)
		}
		switch {
		case err == nil:
			p, err := openBeneath(dir, name) // fd itself will never know its name
			return p, afterwards(err)
		case errors.Is(err, unix.EEXIST):
			return -1, err
		}
	}
	fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return -1, err
	}
	// Each step that fails takes the name back, which is known to no client yet: it could not be told from another's file.
	p, _, err := toPath(fd, dir, name)
	if err == nil {
		if err = utimens(p, ts); err == nil {
			return p, nil
		}
		_ = unix.Close(p)
	}
	if unix.Unlinkat(dir, name, 0) != nil {
		err = afterwards(err)
	}
	return -1, err
}

func (s *Server) mkdir(c *rpcserver.Call) rpcserver.Verdict {
	a := &argsOf(c).mkdir
	a.Attr.SizeSet = false
	return s.make(c, &a.Where, &a.Attr, func(dir int, name string) (int, bool, error) {
		mode := uint32(0o700)
		if a.Attr.ModeSet {
			mode = a.Attr.Mode & 0o777
		}
		if err := unix.Mkdirat(dir, name, mode); err != nil {
			return -1, false, err
		}
		fd, err := openBeneath(dir, name)
		if err == nil && a.Attr.ModeSet {
			// A directory that inherits its group's bit keeps it.
			var st unix.Stat_t
			if unix.Fstat(fd, &st) == nil {
				a.Attr.Mode |= st.Mode & unix.S_ISGID
			}
		}
		return fd, false, afterwards(err)
	})
}

func (s *Server) symlink(c *rpcserver.Call) rpcserver.Verdict {
	a := &argsOf(c).symlink
	data, err := c.Data(int(min(a.PathLen, 1<<30)))
	if err != nil {
		return c.Garbage()
	}
	var target []byte
	for _, b := range data {
		target = append(target, b...)
	}
	attr := nfs3.SetAttr{UIDSet: a.Attr.UIDSet, UID: a.Attr.UID, GIDSet: a.Attr.GIDSet, GID: a.Attr.GID}
	return s.make(c, &a.Where, &attr, func(dir int, name string) (int, bool, error) {
		switch {
		case len(target) >= unix.PathMax:
			return -1, false, unix.ENAMETOOLONG
		case len(target) == 0:
			return -1, false, unix.EINVAL
		}
		if err := unix.Symlinkat(string(target), dir, name); err != nil {
			return -1, false, err
		}
		fd, err := openBeneath(dir, name)
		return fd, false, afterwards(err)
	})
}

func (s *Server) mknod(c *rpcserver.Call) rpcserver.Verdict {
	a := &argsOf(c).mknod
	var mode uint32
	switch a.Type {
	case nfs3.TypeBlk:
		mode = unix.S_IFBLK
	case nfs3.TypeChr:
		mode = unix.S_IFCHR
	case nfs3.TypeSock:
		mode = unix.S_IFSOCK
	case nfs3.TypeFifo:
		mode = unix.S_IFIFO
	}
	a.Attr.SizeSet = false
	return s.make(c, &a.Where, &a.Attr, func(dir int, name string) (int, bool, error) {
		if mode == 0 {
			return -1, false, nfs3.ErrBadtype
		}
		perm := uint32(0o600)
		if a.Attr.ModeSet {
			perm = a.Attr.Mode & 0o777
		}
		if err := unix.Mknodat(dir, name, mode|perm, int(unix.Mkdev(a.Major, a.Minor))); err != nil {
			return -1, false, err
		}
		fd, err := openBeneath(dir, name)
		return fd, false, afterwards(err)
	})
}
