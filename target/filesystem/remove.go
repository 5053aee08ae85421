package filesystem

import (
	"cmp"
	"errors"

	"golang.org/x/sys/unix"
)

// Remove takes the name of a file away.
func (o *Object) Remove(name []byte, w *Change) Errno { return o.unlink(name, 0, w) }

// Rmdir removes an empty directory.
func (o *Object) Rmdir(name []byte, w *Change) Errno { return o.unlink(name, unix.AT_REMOVEDIR, w) }

func (o *Object) unlink(name []byte, flags int, w *Change) Errno {
	s := o.s
	switch e := checkName(name); {
	case e == errDots && string(name) == "..":
		return Errno(unix.EEXIST) // RFC 1813 section 3.3.13
	case e == errDots:
		return Errno(unix.EINVAL)
	case e != OK:
		return e
	}
	var st unix.Stat_t
	err := s.changing(o.n, w, &st, func() error {
		defer s.release(s.peek(o, name))
		return s.ids.as(&o.id, func() error { return unix.Unlinkat(o.n.fd, string(name), flags) })
	})
	if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EBUSY) {
		return Errno(unix.EACCES) // a mount point
	}
	if err == nil {
		err = s.durable(o.n)
	}
	return errnoOf(err)
}

// peek returns the cached node of a name that is about to go, so that its descriptors do not keep the space of what
// no client can reach any more. nil if there is none.
func (s *FS) peek(q *Object, name []byte) *node {
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
func (s *FS) release(n *node) {
	if n == nil {
		return
	}
	var st unix.Stat_t
	if errors.Is(s.stat(n, &st), unix.ESTALE) {
		n.file.forget()
	}
	s.nodes.put(n)
}

// Rename moves a name from one directory to another, or in one.
func (o *Object) Rename(oldName []byte, to *Object, newName []byte, wFrom, wTo *Change) Errno {
	s := o.s
	for _, name := range [...][]byte{oldName, newName} {
		if e := checkName(name); e == errDots {
			return Errno(unix.EINVAL)
		} else if e != OK {
			return e
		}
	}
	if o.n.e.ID != to.n.e.ID { // of one export there are two while the list is replaced
		return Errno(unix.EXDEV)
	}
	move := func() error {
		defer s.release(s.peek(to, newName))
		err := s.ids.as(&o.id, func() error {
			return unix.Renameat(o.n.fd, string(oldName), to.n.fd, string(newName))
		})
		if err == nil {
			s.moved(to.n, string(newName))
		}
		return err
	}
	var err error
	var stFrom, stTo unix.Stat_t
	switch f, t := o.n.file, to.n.file; {
	case f == t:
		err = s.changing(to.n, wTo, &stTo, move)
		*wFrom = *wTo
	case f.born < t.born:
		// Two directories are always locked in one order. It is not that of their inode numbers: roots of btrfs's subvolumes, which are no
		// mount points, all have the number 256.
		err = s.changing(o.n, wFrom, &stFrom, func() error { return s.changing(to.n, wTo, &stTo, move) })
	default:
		err = s.changing(to.n, wTo, &stTo, func() error { return s.changing(o.n, wFrom, &stFrom, move) })
	}
	if errors.Is(err, unix.EBUSY) {
		return Errno(unix.EACCES)
	}
	if err == nil {
		err = s.durable(to.n)
		if o.n.file != to.n.file {
			err = cmp.Or(err, s.durable(o.n))
		}
	}
	return errnoOf(err)
}

// moved keeps fallback handles good over a rename.
func (s *FS) moved(dir *node, name string) {
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

// Link gives a file another name in a directory.
func (o *Object) Link(dir *Object, name []byte, w *Change) Errno {
	s := o.s
	switch e := checkName(name); {
	case e == errDots:
		return Errno(unix.EEXIST)
	case e != OK:
		return e
	case o.n.e.ID != dir.n.e.ID:
		return Errno(unix.EXDEV)
	case o.n.fmt == unix.S_IFDIR:
		return Errno(unix.EISDIR)
	}
	var st unix.Stat_t
	err := s.changing(dir.n, w, &st, func() error {
		return s.ids.as(&dir.id, func() error {
			return unix.Linkat(unix.AT_FDCWD, procPath(o.n.fd), dir.n.fd, string(name), unix.AT_SYMLINK_FOLLOW)
		})
	})
	if err == nil {
		err = s.durable(dir.n)
	}
	return errnoOf(err)
}
