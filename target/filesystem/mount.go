package filesystem

import (
	"strings"

	"golang.org/x/sys/unix"
)

// Mount finds the handle of the directory that a client names: an export, or one below. No symbolic link is followed and no ".."
// taken on the way. ErrLater says that the client's rights cannot be said now, or that the medium is busy.
func (s *FS) Mount(c *Caller, path string) (handle []byte, e Errno) {
	if !strings.HasPrefix(path, "/") || strings.ContainsRune(path, 0) {
		return nil, Errno(unix.ENOENT)
	}
	at, rest := s.table.Load().lookup(path)
	for at != nil && !at.hold() {
		at, rest = s.table.Load().lookup(path) // the exports were replaced just now
	}
	if at == nil {
		return nil, Errno(unix.ENOENT)
	}
	defer at.close()
	in, free := at.medium.enter(c.Peer)
	if !free {
		return nil, ErrLater
	}
	defer in.Leave()
	switch _, ok, unsure := s.decide(c, at); {
	case unsure:
		return nil, ErrLater
	case !ok:
		return nil, Errno(unix.EACCES)
	}
	fd, err := openPath(at.root, rest)
	if err != nil {
		return nil, mountErrno(err)
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, mountErrno(err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil, Errno(unix.ENOTDIR)
	}
	h, err := s.makeHandle(at, fd)
	return h, mountErrno(err)
}

// mountErrno is errnoOf where ErrLater has its own meaning.
func mountErrno(err error) Errno {
	e := errnoOf(err)
	if e == ErrLater {
		return ErrFault
	}
	return e
}

// lookup finds the export with the longest path that path begins with, and the rest.
func (t *exportTable) lookup(path string) (*Served, string) {
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
