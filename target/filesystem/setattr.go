package filesystem

import (
	"errors"

	"golang.org/x/sys/unix"
)

// SetAttr changes attributes. allowed, if not nil, is asked first, with what the file is.
func (o *Object) SetAttr(a *SetAttr, allowed func(*Change) bool, w *Change) Errno {
	lasting := true
	var st unix.Stat_t
	err := o.s.changing(o.n, w, &st, func() error {
		if allowed != nil && !allowed(w) {
			return ErrChanged
		}
		lasting = !timesOfLink(&st, a)
		return o.s.change(o.n.fd, &o.id, a)
	})
	if err == nil && lasting {
		err = o.s.durable(o.n)
	}
	return errnoOf(err)
}

// timesOfLink reports whether a changes no more than the times of a link or a special file. They wait for the file system's
// next commit: it would have to be flushed as a whole for each link that tar unpacks.
func timesOfLink(st *unix.Stat_t, a *SetAttr) bool {
	format := st.Mode & unix.S_IFMT
	if format == unix.S_IFREG || format == unix.S_IFDIR || a.UIDSet && a.UID != st.Uid || a.GIDSet && a.GID != st.Gid {
		return false
	}
	return format == unix.S_IFLNK || !a.ModeSet || a.Mode&0o7777 == st.Mode&0o7777
}

// change applies attributes to what is behind the path descriptor fd, with id's rights.
func (s *FS) change(fd int, id *identity, a *SetAttr) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if a.SizeSet {
		if err := s.truncate(fd, &st, id, a.Size); err != nil {
			return err
		}
	}
	return s.ids.as(id, func() error { return setOwnerModeTimes(fd, &st, a) })
}

// setOwnerModeTimes applies what is left of attributes but the size, with the rights of the calling thread.
func setOwnerModeTimes(fd int, st *unix.Stat_t, a *SetAttr) error {
	if a.UIDSet && a.UID == ^uint32(0) || a.GIDSet && a.GID == ^uint32(0) {
		return unix.EINVAL // to chown(2) it says that nothing is to change
	}
	if a.UIDSet || a.GIDSet {
		uid, gid := -1, -1
		if a.UIDSet && a.UID != st.Uid {
			uid = int(a.UID)
		}
		if a.GIDSet && a.GID != st.Gid {
			gid = int(a.GID)
		}
		if uid != -1 || gid != -1 {
			if err := unix.Fchownat(fd, "", uid, gid, unix.AT_EMPTY_PATH); err != nil {
				return err
			}
		}
	}
	if a.ModeSet && st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Fchmodat(unix.AT_FDCWD, procPath(fd), a.Mode&0o7777, 0); err != nil {
			return err
		}
	}
	if a.Atime.How != KeepTime || a.Mtime.How != KeepTime {
		ts := []unix.Timespec{a.Atime.timespec(), a.Mtime.timespec()}
		return utimens(fd, ts)
	}
	return nil
}

// utimens sets times through a path descriptor; AT_EMPTY_PATH is there from Linux 5.8 on.
func utimens(fd int, ts []unix.Timespec) error {
	err := unix.UtimesNanoAt(fd, "", ts, unix.AT_EMPTY_PATH)
	if err == unix.EINVAL || err == unix.ENOENT {
		err = unix.UtimesNanoAt(unix.AT_FDCWD, procPath(fd), ts, 0)
	}
	return err
}

// truncate sets a size. The owner may, whatever the mode says: the file may have been open before its mode changed.
func (s *FS) truncate(fd int, st *unix.Stat_t, id *identity, size uint64) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		return unix.EISDIR
	default:
		return unix.EINVAL
	}
	if size > 1<<63-1 {
		return unix.EFBIG
	}
	err := s.ids.as(id, func() error { return unix.Truncate(procPath(fd), int64(size)) })
	if errors.Is(err, unix.EACCES) && st.Uid == id.uid {
		err = unix.Truncate(procPath(fd), int64(size))
	}
	return err
}
