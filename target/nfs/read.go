package nfs

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

func (s *Server) getattr(c *rpcserver.Call) rpcserver.Verdict {
	a := &argsOf(c).fh
	var q request
	var r nfs3.AttrRes
	if r.Status = s.find(c, a.FH, &q); r.Status == nfs3.OK {
		defer s.end(&q)
		var st unix.Stat_t
		if r.Status = statusOf(s.stat(q.n, &st)); r.Status == nfs3.OK {
			attrOf(&st, &r.Attr)
			r.Attr.FSID = uint64(q.n.e.ID)
		}
	}
	if r.Status == errAgain {
		return rpcserver.Again
	}
	c.Out = r.Append(c.Out)
	return rpcserver.Done
}

func (s *Server) lookup(c *rpcserver.Call) rpcserver.Verdict {
	a := &argsOf(c).dirOp
	var q request
	var r nfs3.LookupRes
	if r.Status = s.findDir(c, a.Dir, &q, false); r.Status == nfs3.OK {
		defer s.end(&q)
		s.lookupIn(&q, a.Name, &r)
		s.post(q.n, &r.Dir)
	}
	c.Out = r.Append(c.Out)
	return rpcserver.Done
}

func (s *Server) lookupIn(q *request, name []byte, r *nfs3.LookupRes) {
	child, err := s.child(q, name)
	if err != nil {
		r.Status = statusOf(err)
		return
	}
	defer s.nodes.put(child)
	r.FH = []byte(child.key)
	s.post(child, &r.Attr)
}

// child finds a name in a directory with the caller's rights. The node comes with a reference.
func (s *Server) child(q *request, name []byte) (*node, error) {
	if st := checkName(name); st != nfs3.OK && st != errDots {
		return nil, st
	}
	var st unix.Stat_t
	if err := s.stat(q.n, &st); err != nil {
		return nil, err
	}
	e := entry{q.n, string(name)}
	fd, err := with(s.ids, &q.id, e, entry.open)
	if err == nil && string(name) == ".." {
		if err = q.n.e.below(fd); err != nil {
			_ = unix.Close(fd)
		}
	}
	if errors.Is(err, unix.EXDEV) {
		err = unix.EACCES // a mount point: another export's, or nobody's, business
	}
	if err != nil {
		return nil, err
	}
	return s.nodeOf(q.n, e.name, fd)
}

// entry is a name in a directory.
type entry struct {
	dir  *node
	name string
}

// open opens what has the name, as a path.
func (e entry) open() (int, error) {
	switch e.name {
	case "..":
		up := ".."
		if e.dir.ino == e.dir.e.ino {
			up = "." // nothing is above the root of an export
		}
		return unix.Openat(e.dir.fd, up, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}
	return openBeneath(e.dir.fd, e.name)
}

// nodeOf makes the node of a path descriptor just opened below dir, and takes it over.
func (s *Server) nodeOf(dir *node, name string, fd int) (*node, error) {
	h, err := s.makeHandle(dir.e, fd)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	n, err := s.nodes.add(dir.e, string(h), fd)
	if err == nil && dir.e.table != nil && name != "." && name != ".." {
		dir.e.table.learn(dir.ino, n.ino, name)
	}
	return n, err
}

// below is nil where the directory behind fd lies in the export, and ESTALE where it does not. A directory may have been moved out of
// the export while a client held its handle, and must not lead further up. Any other error says that the place is not known.
func (e *export) below(fd int) error {
	cur := fd
	for depth := 0; depth < maxDepth; depth++ {
		var st unix.Stat_t
		err := unix.Fstat(cur, &st)
		up := -1
		if err == nil && (st.Dev != e.dev || st.Ino != e.ino) {
			up, err = unix.Openat(cur, "..", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		}
		if cur != fd {
			_ = unix.Close(cur)
		}
		if err != nil || up < 0 {
			return err
		}
		cur = up
	}
	if cur != fd {
		_ = unix.Close(cur)
	}
	return unix.ESTALE
}

// errDots is checkName's word for "." and "..", which some procedures take and others refuse.
const errDots = nfs3.Status(1<<30 + 1)

func checkName(name []byte) nfs3.Status {
	switch {
	case len(name) == 0:
		return nfs3.ErrInval
	case len(name) > maxName:
		return nfs3.ErrNametoolong
	case string(name) == ".", string(name) == "..":
		return errDots
	}
	for _, b := range name {
		if b == 0 || b == '/' {
			return nfs3.ErrInval
		}
	}
	return nfs3.OK
}

func (s *Server) access(c *rpcserver.Call) rpcserver.Verdict {
	a := &argsOf(c).access
	var q request
	var r nfs3.AccessRes
	if r.Status = s.find(c, a.FH, &q); r.Status == nfs3.OK {
		defer s.end(&q)
		var st unix.Stat_t
		if r.Status = statusOf(s.stat(q.n, &st)); r.Status == nfs3.OK {
			s.attr(q.n.e, &st, &r.Attr)
			granted, err := s.granted(&q)
			r.Access, r.Status = granted&a.Access, statusOf(err)
		}
	}
	c.Out = r.Append(c.Out)
	return rpcserver.Done
}

// granted is what the caller may do. A medium that does not tell is no refusal: clients remember those.
func (s *Server) granted(q *request) (bits uint32, err error) {
	may, err := with(s.ids, &q.id, asked{q.n.fd, !q.rights.ReadOnly}, asked.may)
	rd, wr, ex := may[0], may[1], may[2]
	if errors.Is(err, unix.EACCES) {
		return 0, nil // an identity that cannot be taken may nothing
	}
	if err != nil {
		return 0, err
	}
	if rd {
		bits |= nfs3.AccessRead
	}
	if wr {
		bits |= nfs3.AccessModify | nfs3.AccessExtend
	}
	if q.n.fmt == unix.S_IFDIR {
		if ex {
			bits |= nfs3.AccessLookup
		}
		if wr && ex {
			bits |= nfs3.AccessDelete
		}
	} else if ex {
		bits |= nfs3.AccessExecute
	}
	return bits, nil
}

// asked is what ACCESS asks the kernel.
type asked struct {
	fd    int
	write bool
}

// may says whether reading, writing and executing are allowed.
func (a asked) may() (is [3]bool, err error) {
	for i, mode := range [...]uint32{unix.R_OK, unix.W_OK, unix.X_OK} {
		if mode == unix.W_OK && !a.write {
			continue
		}
		if is[i], err = access(a.fd, mode); err != nil {
			return is, err
		}
	}
	return is, nil
}

func (s *Server) readlink(c *rpcserver.Call) rpcserver.Verdict {
	a := &argsOf(c).fh
	var q request
	var r nfs3.ReadlinkRes
	if r.Status = s.find(c, a.FH, &q); r.Status == nfs3.OK {
		defer s.end(&q)
		if q.n.fmt != unix.S_IFLNK {
			r.Status = nfs3.ErrInval
		} else if sink, err := c.Sink(nfs3.MaxPath); errors.Is(err, rpcserver.ErrNoMemory) {
			return rpcserver.Later
		} else if err != nil {
			r.Status = nfs3.ErrJukebox
		} else if n, err := unix.Readlinkat(q.n.fd, "", sink[0]); err != nil {
			r.Status = statusOf(err)
		} else {
			r.Len = uint32(n)
		}
		s.post(q.n, &r.Attr)
	}
	c.Out = r.Append(c.Out)
	if r.Status == nfs3.OK {
		c.SetPayload(int(r.Len))
	}
	return rpcserver.Done
}

func (s *Server) read(c *rpcserver.Call) rpcserver.Verdict {
	a := &argsOf(c).span
	var q request
	var r nfs3.ReadRes
	if r.Status = s.find(c, a.FH, &q); r.Status == nfs3.OK {
		defer s.end(&q)
		if s.readFrom(c, &q, a, &r) {
			return rpcserver.Again
		}
	}
	switch r.Status {
	case errAgain:
		return rpcserver.Again
	case errLater:
		return rpcserver.Later
	}
	c.Out = r.Append(c.Out)
	if r.Status == nfs3.OK {
		c.SetPayload(int(r.Len))
	}
	return rpcserver.Done
}

// readFrom reads into the transport's memory. It reports true when it would have to block and may not.
func (s *Server) readFrom(c *rpcserver.Call, q *request, a *nfs3.RangeArgs, r *nfs3.ReadRes) (again bool) {
	for try := 0; ; try++ {
		o := q.n.opened(&q.id, false)
		if o == nil {
			if !c.Worker {
				return true
			}
			var err error
			if o, err = s.open(q.n, &q.id, false); err != nil {
				r.Status = statusOf(err)
				s.post(q.n, &r.Attr)
				return false
			}
		}
		again, stale := s.readOpen(c, q, a, r, o)
		q.n.closeOpen(o)
		if stale && try == 2 {
			r.Status = nfs3.ErrJukebox // somebody changes its mode or size all the time
			return false
		}
		if again || !stale {
			return again
		}
		if !c.Worker {
			return true
		}
	}
}

// nowait says how a call reads. What has no medium below it waits for none; nor could tmpfs be asked, which has no reads that do not
// wait, so that each would be begun in vain and go to a worker.
func nowait(c *rpcserver.Call, q *request) bool { return !c.Worker && !q.n.e.inMemory }

func (s *Server) readOpen(c *rpcserver.Call, q *request, a *nfs3.RangeArgs, r *nfs3.ReadRes, o *openFile) (again, stale bool) {
	want := int(min(a.Count, MaxTransfer))
	if a.Offset > 1<<63-1-MaxTransfer {
		want = 0 // beyond what a file can have: the end
	}
	if s.lender != nil && !q.n.e.noLoans.Load() {
		if pipe, ok := c.Loan(want, int(a.Offset%uint64(pageSize))); ok {
			again, stale, ok = s.lend(c, q, a, r, o, pipe, want)
			if ok {
				return again, stale
			}
		}
	}
	n := 0
	var err error
	if want > 0 {
		var sink [][]byte
		if sink, err = c.Sink(want); errors.Is(err, rpcserver.ErrNoMemory) {
			r.Status = errLater
			return false, false
		} else if err != nil {
			r.Status = nfs3.ErrJukebox
			return false, false
		}
		n, err = s.storage.Pread(o.fd, sink, want, int64(a.Offset), nowait(c, q))
		if !c.Worker && (errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EOPNOTSUPP)) {
			return true, false
		}
	}
	var st unix.Stat_t
	if serr := s.stat(q.n, &st); err == nil {
		err = serr
	}
	if err != nil {
		r.Status = statusOf(err)
		return false, false
	}
	if !q.n.still(o, &st) {
		return false, true
	}
	end := a.Offset+uint64(n) >= uint64(st.Size)
	if n < want && !end && !c.Worker {
		return true, false // a part was in the cache; the rest may take time
	}
	if n == 0 && want > 0 && !end {
		return false, true // it was shorter a moment ago: nothing, and no end either, would be an answer to nobody
	}
	s.readDone(c, q, r, &st, n, end)
	return false, false
}

func (s *Server) readDone(c *rpcserver.Call, q *request, r *nfs3.ReadRes, st *unix.Stat_t, n int, end bool) {
	r.Count, r.Len, r.EOF = uint32(n), uint32(n), end
	s.attr(q.n.e, st, &r.Attr)
	q.n.e.counters.read.Add(uint64(n))
}

// lend answers READ with pages of the file. ok is false when the file system has none to lend. The attributes are those
// of before: pages may show later writes, and a client that took attributes for newer than they are would not look again.
func (s *Server) lend(c *rpcserver.Call, q *request, a *nfs3.RangeArgs, r *nfs3.ReadRes, o *openFile, pipe, want int) (again, stale, ok bool) {
	var st unix.Stat_t
	if err := s.stat(q.n, &st); err != nil {
		c.Unlend()
		r.Status = statusOf(err)
		return false, false, true
	}
	if !q.n.still(o, &st) {
		c.Unlend()
		return false, true, true
	}
	have := int(min(max(st.Size-int64(a.Offset), 0), int64(want)))
	n, err := 0, error(nil)
	if have > 0 {
		n, err = s.lender.Lend(o.fd, pipe, have, int64(a.Offset), nowait(c, q))
	}
	if n == 0 {
		c.Unlend()
	}
	switch {
	case errors.Is(err, unix.EAGAIN) && !c.Worker:
		return true, false, true
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EOPNOTSUPP):
		q.n.e.noLoans.Store(true)
		return false, false, false
	case err != nil:
		r.Status = statusOf(err)
		return false, false, true
	case n == 0 && have > 0:
		return false, false, false // it became shorter just now
	}
	if n < have {
		// The same, or the rest could not be had: as many bytes as there are, and what is true now.
		if err := s.stat(q.n, &st); err != nil {
			r.Status = statusOf(err)
			return false, false, true
		}
	}
	s.readDone(c, q, r, &st, n, a.Offset+uint64(n) >= uint64(st.Size))
	return false, false, true
}

func (s *Server) fsstat(c *rpcserver.Call) rpcserver.Verdict {
	a := &argsOf(c).fh
	var q request
	var r nfs3.FsstatRes
	if r.Status = s.find(c, a.FH, &q); r.Status == nfs3.OK {
		defer s.end(&q)
		var st unix.Statfs_t
		if err := unix.Fstatfs(q.n.fd, &st); err != nil {
			r.Status = statusOf(err)
		} else {
			b := uint64(st.Bsize)
			r.Total, r.Free, r.Avail = st.Blocks*b, st.Bfree*b, st.Bavail*b
			r.Files, r.FFree, r.FAvail = st.Files, st.Ffree, st.Ffree
		}
		s.post(q.n, &r.Attr)
	}
	c.Out = r.Append(c.Out)
	return rpcserver.Done
}

func (s *Server) fsinfo(c *rpcserver.Call) rpcserver.Verdict {
	a := &argsOf(c).fh
	var q request
	r := nfs3.FsinfoRes{RTMax: MaxTransfer, RTPref: MaxTransfer, RTMult: 4096, WTMax: MaxTransfer, WTPref: MaxTransfer, WTMult: 4096,
		DTPref: maxReaddir, MaxFileSize: 1<<63 - 1, TimeDelta: nfs3.Time{Nsec: 1},
		Properties: nfs3.FSFLink | nfs3.FSFSymlink | nfs3.FSFHomogeneous | nfs3.FSFCanSetTime}
	if c.Peer.UDP {
		// A datagram carries no megabyte; what fits without IP reassembly of many fragments does.
		r.RTMax, r.RTPref, r.WTMax, r.WTPref, r.DTPref = 8192, 8192, 8192, 8192, 4096
	}
	if r.Status = s.find(c, a.FH, &q); r.Status == nfs3.OK {
		defer s.end(&q)
		s.post(q.n, &r.Attr)
	}
	c.Out = r.Append(c.Out)
	return rpcserver.Done
}

func (s *Server) pathconf(c *rpcserver.Call) rpcserver.Verdict {
	a := &argsOf(c).fh
	var q request
	// Linux file systems cut no name short and let nobody give a file away.
	r := nfs3.PathconfRes{LinkMax: 32000, NameMax: maxName, NoTrunc: true, ChownRestricted: true, CasePreserving: true}
	if r.Status = s.find(c, a.FH, &q); r.Status == nfs3.OK {
		defer s.end(&q)
		s.post(q.n, &r.Attr)
	}
	c.Out = r.Append(c.Out)
	return rpcserver.Done
}

// cookieVerf goes with every cookie. A cookie is the file system's own position (the d_off of getdents64), which stays
// true while a directory changes; so the verifier need not change with the directory, only with the meaning of cookies.
var cookieVerf = func() (v nfs3.Verf) {
	binary.BigEndian.PutUint64(v[:], 0x646f6666_00000001) // "doff", 1
	return v
}()
