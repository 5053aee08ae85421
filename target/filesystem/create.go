package filesystem

import (
	"cmp"
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// Made is a new object, and its directory.
type Made struct {
	Handle []byte
	Attr   Attr
	Dir    Change
}

// CreateHow says what Create does where the name is there.
type CreateHow uint8

// Unchecked takes an existing file, and applies no attribute to it but the size. Guarded refuses it. Exclusive takes one that a Create of the same
// verifier has made.
const (
	Unchecked CreateHow = iota
	Guarded
	Exclusive
)

// maker makes one name in a directory, with the rights of the calling thread, and returns a path descriptor of it.
// had is true when the object was there before and is not to be given attributes.
type maker func(dir int, name string) (fd int, had bool, err error)

// makeIn is what Create, Mkdir, Symlink and Mknod have in common. attr, if not nil, is applied to the new object.
func (o *Object) makeIn(name []byte, attr *SetAttr, mk maker, r *Made) Errno {
	s := o.s
	switch e := checkName(name); e {
	case OK:
	case errDots:
		o.After(&r.Dir.After)
		return Errno(unix.EEXIST)
	default:
		o.After(&r.Dir.After)
		return e
	}
	var child *node
	var more bool
	var st unix.Stat_t
	err := s.changing(o.n, &r.Dir, &st, func() (err error) {
		child, more, err = s.makeNode(o, string(name), attr, mk)
		return err
	})
	if err != nil {
		return errnoOf(err)
	}
	defer s.nodes.put(child)
	if more {
		err = s.durable(child)
	}
	// Also for a file that was there: this may be a client that asks once more because its server was lost.
	if err = cmp.Or(err, s.durable(o.n)); err != nil {
		return errnoOf(err)
	}
	r.Handle = []byte(child.key)
	s.after(child, &r.Attr)
	return OK
}

// makeNode makes a name and gives what has it its attributes. more says that the directory's fsync does not cover it all:
// it covers how the file was made, not what is done to it afterwards, EXCLUSIVE's times and what the call that made it
// could not say.
func (s *FS) makeNode(q *Object, name string, attr *SetAttr, mk maker) (child *node, more bool, err error) {
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
func (s *FS) changeMade(fd int, id *identity, a *SetAttr) error {
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
func needed(dir, fd int, had bool, a *SetAttr) (bool, error) {
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
	return a.ModeSet || a.UIDSet || a.GIDSet || a.SizeSet || a.Atime.How != KeepTime || a.Mtime.How != KeepTime, nil
}

// Create makes a file. attr and verf are of those ways that have them.
func (o *Object) Create(name []byte, how CreateHow, attr *SetAttr, verf [8]byte, r *Made) Errno {
	switch how {
	case Exclusive:
		return o.makeIn(name, nil, func(dir int, name string) (int, bool, error) { return createExclusive(dir, name, verf) }, r)
	case Guarded:
		return o.makeIn(name, attr, func(dir int, name string) (int, bool, error) { return createNew(dir, name, attr) }, r)
	}
	wanted := *attr
	return o.makeIn(name, attr, func(dir int, name string) (int, bool, error) {
		fd, had, err := createNew(dir, name, &wanted)
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
		*attr = SetAttr{SizeSet: wanted.SizeSet, Size: wanted.Size}
		return fd, true, nil
	}, r)
}

// createNew makes an empty file. The mode is set at once where it can be, so that no other process gets in between; the umask is
// the client's business and is taken out by setting the mode again (change).
func createNew(dir int, name string, a *SetAttr) (int, bool, error) {
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
func createExclusive(dir int, name string, verf [8]byte) (int, bool, error) {
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
// that its client, which asks once more, is told to be another's. Where a file system knows no files without a name, it
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

// Mkdir makes a directory.
func (o *Object) Mkdir(name []byte, attr *SetAttr, r *Made) Errno {
	attr.SizeSet = false
	return o.makeIn(name, attr, func(dir int, name string) (int, bool, error) {
		mode := uint32(0o700)
		if attr.ModeSet {
			mode = attr.Mode & 0o777
		}
		if err := unix.Mkdirat(dir, name, mode); err != nil {
			return -1, false, err
		}
		fd, err := openBeneath(dir, name)
		if err == nil && attr.ModeSet {
			// A directory that inherits its group's bit keeps it.
			var st unix.Stat_t
			if unix.Fstat(fd, &st) == nil {
				attr.Mode |= st.Mode & unix.S_ISGID
			}
		}
		return fd, false, afterwards(err)
	}, r)
}

// Symlink makes a symbolic link; of the attributes only its owners are applied.
func (o *Object) Symlink(name, target []byte, attr *SetAttr, r *Made) Errno {
	owners := SetAttr{UIDSet: attr.UIDSet, UID: attr.UID, GIDSet: attr.GIDSet, GID: attr.GID}
	return o.makeIn(name, &owners, func(dir int, name string) (int, bool, error) {
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
	}, r)
}

// Mknod makes a special file of a format of S_IFMT; 0 is none that can be made.
func (o *Object) Mknod(name []byte, format, major, minor uint32, attr *SetAttr, r *Made) Errno {
	attr.SizeSet = false
	return o.makeIn(name, attr, func(dir int, name string) (int, bool, error) {
		if format == 0 {
			return -1, false, ErrBadType
		}
		perm := uint32(0o600)
		if attr.ModeSet {
			perm = attr.Mode & 0o777
		}
		if err := unix.Mknodat(dir, name, format|perm, int(unix.Mkdev(major, minor))); err != nil {
			return -1, false, err
		}
		fd, err := openBeneath(dir, name)
		return fd, false, afterwards(err)
	}, r)
}
