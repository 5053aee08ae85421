package filesystem

import (
	"sync"

	"golang.org/x/sys/unix"
)

var direntBufs = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}

// Dirent is an entry of a directory.
type Dirent struct {
	Inode  uint64
	Name   []byte
	Cookie uint64 // the place behind it: the file system's own, which stays true while a directory changes
	Handle []byte // with Look, as far as the caller may look the name up
	Attr   Attr

	dir *Object
	fd  int
}

// ReadDir gives entries to take, from behind the one with the cookie on, or from the beginning for 0, until it takes no more. end says that
// there are no more.
func (o *Object) ReadDir(cookie uint64, take func(*Dirent) bool) (end bool, e Errno) {
	if int64(cookie) < 0 {
		return false, ErrBadCookie
	}
	fd, err := with(o.s.ids, &o.id, o.n.fd, func(fd int) (int, error) {
		return unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return false, errnoOf(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if cookie != 0 {
		if _, err := unix.Seek(fd, int64(cookie), unix.SEEK_SET); err != nil {
			return false, ErrBadCookie
		}
	}
	buf, _ := direntBufs.Get().(*[]byte)
	defer direntBufs.Put(buf)
	entry := Dirent{dir: o, fd: fd}
	for {
		k, err := unix.Getdents(fd, *buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return false, errnoOf(err)
		}
		if k == 0 {
			return true, OK
		}
		for d := (dirents{(*buf)[:k]}); d.next(); d.skip() {
			entry.Inode, entry.Name, entry.Cookie = d.ino(), d.name(), d.off()
			entry.Handle, entry.Attr.Known = nil, false
			if string(entry.Name) == ".." && o.n.ino == o.n.e.ino {
				entry.Inode = o.n.ino // nothing is above the root of an export
			}
			if !take(&entry) {
				return false, OK
			}
		}
	}
}

// beneath is a name below a directory that is open.
type beneath struct {
	dir  int
	name string
}

func (b beneath) open() (int, error) { return openBeneath(b.dir, b.name) }

// Look adds attributes and handle as far as the caller may look the name up. What cannot be had is left out, which
// READDIRPLUS allows (RFC 1813 section 3.3.17).
func (d *Dirent) Look() {
	o, name := d.dir, string(d.Name)
	if name == ".." {
		return // the client knows where it came from; LOOKUP answers if not
	}
	fd, err := with(o.s.ids, &o.id, beneath{d.fd, name}, beneath.open)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Nlink == 0 {
		return
	}
	e := o.n.e
	h, err := o.s.makeHandle(e, fd)
	if err != nil {
		return
	}
	if e.table != nil && name != "." {
		e.table.learn(o.n.ino, st.Ino, name)
	}
	d.Handle, d.Inode = h, st.Ino
	d.Attr.fill(e, &st)
}
