package nfs

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/target/rpc"
)

// findFile is find for a file whose data or attributes are to change.
func (s *Server) findFile(c *rpc.Call, h []byte, q *request) nfs3.Status {
	st := s.find(c, h, q)
	if st == nfs3.OK && q.rights.ReadOnly {
		s.end(q)
		return nfs3.ErrRofs
	}
	return st
}

func (s *Server) write(c *rpc.Call) rpc.Verdict {
	var a nfs3.WriteArgs
	if a.Parse(&c.Args); c.Args.Err() != nil {
		return c.Garbage()
	}
	data, err := c.Data(int(a.Len))
	if err != nil {
		return c.Garbage()
	}
	var q request
	var r nfs3.WriteRes
	if r.Status = s.findFile(c, a.FH, &q); r.Status == nfs3.OK {
		s.writeTo(&q, &a, data, &r)
		s.end(&q)
	}
	c.Out = r.Append(c.Out)
	return rpc.Done
}

func (s *Server) writeTo(q *request, a *nfs3.WriteArgs, data [][]byte, r *nfs3.WriteRes) {
	n := int(min(a.Count, a.Len))
	if a.Offset > 1<<63-1-uint64(n) {
		r.Status = nfs3.ErrFbig
		s.post(q.n, &r.Wcc.After)
		return
	}
	o, err := s.openToWrite(q, r)
	if err != nil {
		r.Status = statusOf(err)
		return
	}
	defer q.n.closeOpen(o)
	// RFC 1813 section 3.3.7: the verifier is the one in force when the data was taken. If it changes in between, the
	// client is told the old one and finds at COMMIT that it has to send again.
	r.Verf = s.verifier()
	if a.Stable == nfs3.Unstable {
		q.n.dirty.Store(true)
	}
	done := 0
	sw := s.ids.enter(&q.id)
	for done < n && err == nil {
		var k int
		k, err = s.storage.Pwrite(o.fd, skip(data, done), n-done, int64(a.Offset)+int64(done), a.Stable)
		if err == nil && k == 0 {
			err = unix.EIO
		}
		done += k
	}
	s.ids.leave(sw)
	q.n.e.counters.written.Add(uint64(done))
	s.after(q.n, &r.Wcc)
	if errors.Is(err, unix.EIO) && a.Stable != nfs3.Unstable {
		// The medium failed under a synchronous write; what others wrote to the same file may be gone with it.
		s.writebackFailed(q.n, err)
	}
	if err != nil && done == 0 {
		r.Status = statusOf(err)
		return
	}
	r.Count, r.Stable = uint32(done), a.Stable
	if err != nil && a.Stable != nfs3.Unstable {
		r.Status = statusOf(err)
	}
}

// openToWrite begins a change of the file's data: it holds the change lock when it succeeds.
func (s *Server) openToWrite(q *request, r *nfs3.WriteRes) (*openFile, error) {
	for try := 0; ; try++ {
		o, err := s.open(q.n, &q.id, true)
		if err != nil {
			s.post(q.n, &r.Wcc.After)
			return nil, err
		}
		var st unix.Stat_t
		if err := s.beforeStat(q.n, &r.Wcc, &st); err != nil {
			q.n.closeOpen(o)
			return nil, err
		}
		if q.n.still(o, &st) || try == 2 {
			return o, nil
		}
		q.n.change.Unlock()
		q.n.closeOpen(o)
	}
}

// skip returns bufs without their first n bytes.
func skip(bufs [][]byte, n int) [][]byte {
	if n == 0 {
		return bufs
	}
	for i, b := range bufs {
		if n < len(b) {
			return append([][]byte{b[n:]}, bufs[i+1:]...)
		}
		n -= len(b)
	}
	return nil
}

func (s *Server) commit(c *rpc.Call) rpc.Verdict {
	var a nfs3.RangeArgs
	if a.Parse(&c.Args); c.Args.Err() != nil {
		return c.Garbage()
	}
	var q request
	r := nfs3.WriteRes{Commit: true}
	if r.Status = s.findFile(c, a.FH, &q); r.Status == nfs3.OK {
		s.commitNode(&q, &r)
		s.end(&q)
	}
	c.Out = r.Append(c.Out)
	return rpc.Done
}

// commitNode makes all of the file durable, whatever the range: fsync has none.
func (s *Server) commitNode(q *request, r *nfs3.WriteRes) {
	if q.n.fmt != unix.S_IFREG {
		r.Status = nfs3.ErrInval
		return
	}
	var st unix.Stat_t
	if err := s.stat(q.n, &st); err != nil {
		r.Status = statusOf(err)
		return
	}
	w := &r.Wcc
	w.BeforeSet, w.Size, w.Mtime, w.Ctime = true, uint64(st.Size), timeOf(st.Mtim), timeOf(st.Ctim)
	r.Verf = s.verifier()
	// Cleared before the sync: a write that comes during it sets it again.
	q.n.dirty.Store(false)
	if err := s.syncNode(q.n); err != nil {
		s.writebackFailed(q.n, err)
		r.Status = statusOf(err)
	}
	s.post(q.n, &w.After)
}

func (s *Server) setattr(c *rpc.Call) rpc.Verdict {
	var a nfs3.SetattrArgs
	if a.Parse(&c.Args); c.Args.Err() != nil {
		return c.Garbage()
	}
	var q request
	var r nfs3.WccRes
	if r.Status = s.findFile(c, a.FH, &q); r.Status == nfs3.OK {
		var st unix.Stat_t
		if err := s.beforeStat(q.n, &r.Wcc, &st); err != nil {
			r.Status = statusOf(err)
		} else {
			if a.Guard && r.Wcc.Ctime != a.Ctime {
				r.Status = nfs3.ErrNotSync
			} else {
				err := s.change(q.n.fd, &q.id, &a.Attr)
				if err == nil && !timesOfLink(&st, &a.Attr) {
					err = s.durable(q.n)
				}
				r.Status = statusOf(err)
			}
			s.after(q.n, &r.Wcc)
		}
		s.end(&q)
	}
	c.Out = r.Append(c.Out)
	return rpc.Done
}

// timesOfLink reports whether a changes no more than the times of a link or a special file. They wait for the file system's
// next commit: it would have to be flushed as a whole for each link that tar unpacks.
func timesOfLink(st *unix.Stat_t, a *nfs3.SetAttr) bool {
	format := st.Mode & unix.S_IFMT
	if format == unix.S_IFREG || format == unix.S_IFDIR || a.UIDSet && a.UID != st.Uid || a.GIDSet && a.GID != st.Gid {
		return false
	}
	return format == unix.S_IFLNK || !a.ModeSet || a.Mode&0o7777 == st.Mode&0o7777
}

// change applies a sattr3 to what is behind the path descriptor fd, with id's rights.
func (s *Server) change(fd int, id *identity, a *nfs3.SetAttr) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if a.SizeSet {
		if err := s.truncate(fd, &st, id, a.Size); err != nil {
			return err
		}
	}
	sw := s.ids.enter(id)
	defer s.ids.leave(sw)
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
	if a.Atime.How != nfs3.DontChange || a.Mtime.How != nfs3.DontChange {
		ts := []unix.Timespec{timeSpec(a.Atime), timeSpec(a.Mtime)}
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

func timeSpec(t nfs3.SetTime) unix.Timespec {
	switch t.How {
	case nfs3.ServerTime:
		return unix.Timespec{Nsec: unix.UTIME_NOW}
	case nfs3.ClientTime:
		return unix.Timespec{Sec: int64(t.Time.Sec), Nsec: int64(min(t.Time.Nsec, 999_999_999))}
	}
	return unix.Timespec{Nsec: unix.UTIME_OMIT}
}

// truncate sets a size. The owner may, whatever the mode says: the file may have been open before its mode changed.
func (s *Server) truncate(fd int, st *unix.Stat_t, id *identity, size uint64) error {
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
	sw := s.ids.enter(id)
	err := unix.Truncate(procPath(fd), int64(size))
	s.ids.leave(sw)
	if err == unix.EACCES && st.Uid == id.uid {
		err = unix.Truncate(procPath(fd), int64(size))
	}
	return err
}

// durable makes a change of names or attributes durable before it is answered, unless the export says otherwise (RFC
// 1813 section 4.8). What cannot be made durable was done all the same, and is answered as failed: nobody is to build on
// it. A change is all that was done to the file since the last call, so that it comes after the last step.
func (s *Server) durable(n *node) error {
	if n.e.Async {
		return nil
	}
	err := s.syncOnly(n)
	if err != nil {
		s.writebackFailed(n, err)
	}
	return err
}

// syncOnly makes one file durable, or the whole file system where that file cannot be opened: a link, a special file, one
// that the daemon's own user may not read.
func (s *Server) syncOnly(n *node) error {
	if n.fmt != unix.S_IFDIR && n.fmt != unix.S_IFREG {
		return unix.Syncfs(n.e.root)
	}
	fd, err := unix.Open(procPath(n.fd), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return unix.Syncfs(n.e.root)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := s.storage.Sync(fd); !errors.Is(err, unix.EINVAL) { // a file system may not know it for directories
		return err
	}
	return nil
}
