package nfs

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

var direntBufs = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}

func (s *Server) readdir(c *rpcserver.Call) rpcserver.Verdict {
	a := &argsOf(c).readdir
	var q request
	r := nfs3.ReaddirRes{Verf: cookieVerf}
	r.Status = s.findDir(c, a.Dir, &q, false)
	if r.Status != nfs3.OK {
		c.Out = r.Append(c.Out)
		return rpcserver.Done
	}
	defer s.end(&q)
	s.post(q.n, &r.Dir)
	if a.Cookie != 0 && a.Verf != cookieVerf || int64(a.Cookie) < 0 {
		r.Status = nfs3.ErrBadCookie
		c.Out = r.Append(c.Out)
		return rpcserver.Done
	}
	mark := len(c.Out)
	c.Out = r.Append(c.Out)
	l := lister{s: s, c: c, q: &q, plus: a.Plus, names: int(min(a.DirCount, maxReaddir))}
	if !a.Plus || l.names == 0 {
		l.names = maxReaddir
	}
	l.end = mark + int(min(a.MaxCount, maxReaddir)) - 8 // the list's end and the flag have to fit
	if st := l.run(a.Cookie); st != nfs3.OK {
		r.Status = st
		c.Out = r.Append(c.Out[:mark])
	}
	return rpcserver.Done
}

// lister appends directory entries to a call's result.
type lister struct {
	s     *Server
	c     *rpcserver.Call
	q     *request
	plus  bool
	end   int // of c.Out, bytes
	names int // left for names, cookies and file ids, bytes
	count int
}

func (l *lister) run(cookie uint64) nfs3.Status {
	n := l.q.n
	fd, err := with(l.s.ids, &l.q.id, n.fd, func(fd int) (int, error) {
		return unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return statusOf(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if cookie != 0 {
		if _, err := unix.Seek(fd, int64(cookie), unix.SEEK_SET); err != nil {
			return nfs3.ErrBadCookie
		}
	}
	buf, _ := direntBufs.Get().(*[]byte)
	defer direntBufs.Put(buf)
	for {
		k, err := unix.Getdents(fd, *buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return statusOf(err)
		}
		if k == 0 {
			l.c.Out = nfs3.AppendEnd(l.c.Out, true)
			return nfs3.OK
		}
		for d := (dirents{(*buf)[:k]}); d.next(); d.skip() {
			if l.entry(&d, fd) {
				continue
			}
			if l.count == 0 {
				return nfs3.ErrToosmall
			}
			l.c.Out = nfs3.AppendEnd(l.c.Out, false)
			return nfs3.OK
		}
	}
}

// entry appends one entry and reports false when it does not fit.
func (l *lister) entry(d *dirents, fd int) bool {
	e := nfs3.Entry{Plus: l.plus, FileID: d.ino(), Name: d.name(), Cookie: d.off()}
	n := l.q.n
	if string(e.Name) == ".." && n.ino == n.e.ino {
		e.FileID = n.ino // nothing is above the root of an export
	}
	cost := 24 + len(e.Name) + xdr.Pad(len(e.Name))
	if cost > l.names {
		return false
	}
	mark := len(l.c.Out)
	if l.plus {
		l.attributes(&e, fd)
	}
	l.c.Out = e.Append(l.c.Out)
	if len(l.c.Out) > l.end {
		l.c.Out = l.c.Out[:mark]
		return false
	}
	l.names -= cost
	l.count++
	return true
}

// beneath is a name below a directory that is open.
type beneath struct {
	dir  int
	name string
}

func (b beneath) open() (int, error) { return openBeneath(b.dir, b.name) }

// attributes adds attributes and handle as far as the caller may look the name up. What cannot be had is left out, which
// READDIRPLUS allows (RFC 1813 section 3.3.17).
func (l *lister) attributes(e *nfs3.Entry, dir int) {
	n := l.q.n
	name := string(e.Name)
	if name == ".." {
		return // the client knows where it came from; LOOKUP answers if not
	}
	fd, err := with(l.s.ids, &l.q.id, beneath{dir, name}, beneath.open)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Nlink == 0 {
		return
	}
	h, err := l.s.makeHandle(n.e, fd)
	if err != nil {
		return
	}
	if n.e.table != nil && name != "." {
		n.e.table.learn(n.ino, st.Ino, name)
	}
	e.FH, e.FileID = h, st.Ino
	l.s.attr(n.e, &st, &e.Attr)
}
