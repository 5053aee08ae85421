package nfs

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/threads"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// findFile is find for a file whose data or attributes are to change.
func (s *Server) findFile(c *rpcserver.Call, h []byte, q *request) nfs3.Status {
	st := s.find(c, h, q)
	if st == nfs3.OK && q.rights.ReadOnly {
		s.end(q)
		return nfs3.ErrRofs
	}
	return st
}

func (s *Server) write(c *rpcserver.Call) rpcserver.Verdict {
	a := &argsOf(c).write
	data, err := c.Data(int(a.Len))
	if err != nil {
		return c.Garbage()
	}
	var q request
	var r nfs3.WriteRes
	if r.Status = s.findFile(c, a.FH, &q); r.Status == nfs3.OK {
		defer s.end(&q)
		if !s.writeTo(c, &q, a, data, &r) {
			return rpcserver.Drop
		}
	}
	c.Out = r.Append(c.Out)
	return rpcserver.Done
}

// errSuperseded is a WRITE's that came too late to be executed.
var errSuperseded = errors.New("nfs: the client has repeated this WRITE")

// writeTo reports false where the call is not to be answered.
func (s *Server) writeTo(c *rpcserver.Call, q *request, a *nfs3.WriteArgs, data [][]byte, r *nfs3.WriteRes) bool {
	n := int(min(a.Count, a.Len))
	if a.Offset > 1<<63-1-uint64(n) {
		r.Status = nfs3.ErrFbig
		s.post(q.n, &r.Wcc.After)
		return true
	}
	for try := 0; ; try++ {
		o, err := s.open(q.n, &q.id, true)
		if err != nil {
			r.Status = statusOf(err)
			s.post(q.n, &r.Wcc.After)
			return true
		}
		switch err := s.writeBy(c, o, q, a, data, n, r, try == 2); {
		case errors.Is(err, errSuperseded):
			return false
		case err == nil:
			return true
		}
	}
}

// errReopen says that the rights that a file was opened with are not what they were: it has to be opened anew.
var errReopen = errors.New("nfs: rights have changed")

// writeBy writes by the descriptor o. Its error is errReopen, but at the last try, or errSuperseded; any other is in r.
func (s *Server) writeBy(c *rpcserver.Call, o *openFile, q *request, a *nfs3.WriteArgs, data [][]byte, n int, r *nfs3.WriteRes, last bool) error {
	defer q.n.closeOpen(o)
	done := 0
	var st unix.Stat_t
	err := s.changing(q.n, &r.Wcc, &st, func() (err error) {
		if !q.n.still(o, &st) && !last {
			return errReopen
		}
		// The call may have waited, for room, for the medium or for the file. No change of the file comes between this and
		// the write.
		if c.Superseded() {
			return errSuperseded
		}
		if a.Stable == nfs3.Unstable {
			if err := q.n.file.begin(q.n, o); err != nil {
				return err
			}
			defer q.n.file.end()
		}
		// RFC 1813 section 3.3.7: the verifier is the one in force when the data was taken. If it changes in between, the
		// client is told the old one and finds at COMMIT that it has to send again.
		r.Verf = s.verifier()
		done, err = s.pwrite(o.fd, q, &st, a, data, n)
		return err
	})
	if errors.Is(err, errReopen) || errors.Is(err, errSuperseded) {
		return err
	}
	q.n.e.counters.written.Add(uint64(done))
	if a.Stable != nfs3.Unstable && err != nil && (errors.Is(err, unix.EIO) || q.n.file.dirty()) {
		// The medium failed under a synchronous write; what others wrote to the same file may be gone with it. A medium
		// that is full may have said so of the write, or of making it durable: the next flush need not hear of that.
		s.writebackFailed(q.n, err)
		q.n.retire()
	}
	if err != nil && done == 0 {
		r.Status = statusOf(err)
		return nil
	}
	r.Count, r.Stable = uint32(done), a.Stable
	if err != nil && a.Stable != nfs3.Unstable {
		r.Status = statusOf(err)
	}
	return nil
}

// pwrite writes n bytes with the caller's rights, and returns how many of them went before an error. st is of the file.
func (s *Server) pwrite(fd int, q *request, st *unix.Stat_t, a *nfs3.WriteArgs, data [][]byte, n int) (done int, err error) {
	if s.ids.apart(&q.id) {
		if q.n.e.overData(fd, st, int64(a.Offset), n) {
			return s.pwriteAll(fd, a.Offset, a.Stable, data, n)
		}
		return s.pwriteApart(fd, q.id, a.Offset, a.Stable, slices.Clone(data), n)
	}
	err = s.ids.here(&q.id, func() (err error) {
		done, err = s.pwriteAll(fd, a.Offset, a.Stable, data, n)
		return err
	})
	return done, err
}

// pwriteApart is pwrite on a thread of its own.
func (s *Server) pwriteApart(fd int, id identity, off uint64, stable nfs3.Stable, data [][]byte, n int) (done int, err error) {
	err = threads.Alone(func() error {
		return s.ids.here(&id, func() (err error) {
			done, err = s.pwriteAll(fd, off, stable, data, n)
			return err
		})
	})
	return done, err
}

func (s *Server) pwriteAll(fd int, off uint64, stable nfs3.Stable, data [][]byte, n int) (done int, err error) {
	for done < n {
		k, err := s.storage.Pwrite(fd, skip(data, done), n-done, int64(off)+int64(done), stable)
		if err == nil && k == 0 {
			err = unix.EIO
		}
		if done += k; err != nil {
			return done, err
		}
	}
	return done, nil
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

func (s *Server) commit(c *rpcserver.Call) rpcserver.Verdict {
	a := &argsOf(c).span
	var q request
	r := nfs3.WriteRes{Commit: true}
	if r.Status = s.findFile(c, a.FH, &q); r.Status == nfs3.OK {
		defer s.end(&q)
		s.commitNode(&q, &r)
	}
	c.Out = r.Append(c.Out)
	return rpcserver.Done
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
	err := s.flush(q.n)
	// Read after the flush: a loss that this one or another has heard of has changed it.
	r.Verf = s.verifier()
	if err == nil {
		err = s.stat(q.n, &st)
	}
	if r.Status = statusOf(err); err != nil {
		s.post(q.n, &r.Wcc.After)
		return
	}
	// COMMIT changes no attributes, so those before it are those after it, of one instant: a client that sees others than
	// it knows of has missed another's WRITE, and must not take it for its own (RFC 1813 section 2.6).
	w := &r.Wcc
	w.BeforeSet, w.Size, w.Mtime, w.Ctime = true, uint64(st.Size), timeOf(st.Mtim), timeOf(st.Ctim)
	s.attr(q.n.e, &st, &w.After)
}

func (s *Server) setattr(c *rpcserver.Call) rpcserver.Verdict {
	a := &argsOf(c).setattr
	var q request
	var r nfs3.WccRes
	if r.Status = s.findFile(c, a.FH, &q); r.Status == nfs3.OK {
		defer s.end(&q)
		lasting := true
		var st unix.Stat_t
		err := s.changing(q.n, &r.Wcc, &st, func() error {
			if a.Guard && r.Wcc.Ctime != a.Ctime {
				return nfs3.ErrNotSync
			}
			lasting = !timesOfLink(&st, &a.Attr)
			return s.change(q.n.fd, &q.id, &a.Attr)
		})
		if err == nil && lasting {
			err = s.durable(q.n)
		}
		r.Status = statusOf(err)
	}
	c.Out = r.Append(c.Out)
	return rpcserver.Done
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
	return s.ids.as(id, func() error { return setOwnerModeTimes(fd, &st, a) })
}

// setOwnerModeTimes applies what is left of a sattr3 without the size, with the rights of the calling thread.
func setOwnerModeTimes(fd int, st *unix.Stat_t, a *nfs3.SetAttr) error {
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
	err := s.ids.as(id, func() error { return unix.Truncate(procPath(fd), int64(size)) })
	if errors.Is(err, unix.EACCES) && st.Uid == id.uid {
		err = unix.Truncate(procPath(fd), int64(size))
	}
	return err
}
