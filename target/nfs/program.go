package nfs

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/hist"
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// program is the NFS program.
type program Server

// ID is the program number.
func (p *program) ID() uint32 { return nfs3.Prog }

// Versions are 3 and 3.
func (p *program) Versions() (low, high uint32) { return nfs3.Vers, nfs3.Vers }

type procedure struct {
	run   func(*Server, *rpcserver.Call) rpcserver.Verdict
	class rpcserver.Class
	attrs int  // flags of attributes in a result that is an error
	keep  bool // does harm when executed twice (RFC 1813 section 4.5)
}

var procedures = [nfs3.NumProcs]procedure{
	nfs3.ProcGetattr:     {run: (*Server).getattr, class: rpcserver.Inline},
	nfs3.ProcSetattr:     {run: (*Server).setattr, attrs: 2, keep: true, class: rpcserver.Worker},
	nfs3.ProcLookup:      {run: (*Server).lookup, attrs: 1, class: rpcserver.Worker},
	nfs3.ProcAccess:      {run: (*Server).access, attrs: 1, class: rpcserver.Worker},
	nfs3.ProcReadlink:    {run: (*Server).readlink, attrs: 1, class: rpcserver.Worker},
	nfs3.ProcRead:        {run: (*Server).read, attrs: 1, class: rpcserver.Inline},
	nfs3.ProcWrite:       {run: (*Server).write, attrs: 2, class: rpcserver.Brief},
	nfs3.ProcCreate:      {run: (*Server).create, attrs: 2, keep: true, class: rpcserver.Worker},
	nfs3.ProcMkdir:       {run: (*Server).mkdir, attrs: 2, keep: true, class: rpcserver.Worker},
	nfs3.ProcSymlink:     {run: (*Server).symlink, attrs: 2, keep: true, class: rpcserver.Worker},
	nfs3.ProcMknod:       {run: (*Server).mknod, attrs: 2, keep: true, class: rpcserver.Worker},
	nfs3.ProcRemove:      {run: (*Server).remove, attrs: 2, keep: true, class: rpcserver.Worker},
	nfs3.ProcRmdir:       {run: (*Server).rmdir, attrs: 2, keep: true, class: rpcserver.Worker},
	nfs3.ProcRename:      {run: (*Server).rename, attrs: 4, keep: true, class: rpcserver.Worker},
	nfs3.ProcLink:        {run: (*Server).link, attrs: 3, keep: true, class: rpcserver.Worker},
	nfs3.ProcReaddir:     {run: (*Server).readdir, attrs: 1, class: rpcserver.Worker},
	nfs3.ProcReaddirplus: {run: (*Server).readdir, attrs: 1, class: rpcserver.Worker},
	nfs3.ProcFsstat:      {run: (*Server).fsstat, attrs: 1, class: rpcserver.Worker},
	nfs3.ProcFsinfo:      {run: (*Server).fsinfo, attrs: 1, class: rpcserver.Worker},
	nfs3.ProcPathconf:    {run: (*Server).pathconf, attrs: 1, class: rpcserver.Worker},
	nfs3.ProcCommit:      {run: (*Server).commit, attrs: 2, class: rpcserver.Worker},
}

// Keeps reports the procedures that must not be executed twice.
func (p *program) Keeps(_, proc uint32) bool {
	return proc < uint32(nfs3.NumProcs) && procedures[proc].keep
}

// Overwrites reports WRITE, and what must not be executed twice: executed late they take back what came after them. The reply
// cache alone does not keep the latter off, because it has no room for ever.
func (p *program) Overwrites(vers, proc uint32) bool {
	return nfs3.Proc(proc) == nfs3.ProcWrite || p.Keeps(vers, proc)
}

// Classify parses the arguments. A READ or a GETATTR is tried by who reads the connection, but of a medium that may hang; a WRITE is brief where it
// goes to the page cache, or where there is nothing below that.
func (p *program) Classify(c *rpcserver.Call) rpcserver.Class {
	s, proc := (*Server)(p), nfs3.Proc(c.Proc)
	if proc >= nfs3.NumProcs || procedures[proc].run == nil {
		c.NoProc()
		return rpcserver.Answered
	}
	a := argsOf(c)
	if !a.parse(proc, c) {
		c.Garbage()
		p.stray.observe(c, 0)
		return rpcserver.Answered
	}
	class := procedures[proc].class
	switch class {
	case rpcserver.Inline:
		if e := s.exportOf(a.handle); e != nil && e.mayHang {
			return rpcserver.Worker
		}
	case rpcserver.Brief:
		if e := s.exportOf(a.handle); a.write.Stable != nfs3.Unstable && (e == nil || !e.inMemory) {
			return rpcserver.Worker
		}
	}
	return class
}

// Serve executes one call.
func (p *program) Serve(c *rpcserver.Call) rpcserver.Verdict {
	pr := &procedures[c.Proc]
	if c.Worker {
		in, ok := (*Server)(p).enter(c.Peer, argsOf(c).handle)
		if !ok {
			return later(c, pr.attrs)
		}
		defer in.leave()
	}
	c.Scope = nil
	from := hist.Clock()
	v := pr.run((*Server)(p), c)
	if v != rpcserver.Again {
		k := &p.stray
		if e, ok := c.Scope.(*export); ok {
			k = e.counters
		}
		k.observe(c, hist.Clock()-from)
	}
	c.Scope = nil
	return v
}

// request is what every procedure needs: the file, and on whose behalf.
type request struct {
	n      *node
	inline bool // nothing may be waited for
	id     identity
	rights Rights
}

type memo struct {
	e      *export
	rights Rights
	ok     bool
	until  time.Time
}

// decide finds what the caller may do on an export, and remembers it with the connection.
func (s *Server) decide(c *rpcserver.Call, e *export) (r Rights, ok, unsure bool) {
	now := time.Now()
	from := callerOf(c.Peer)
	if m := from.decided.Load(); m != nil && m.e == e && now.Before(m.until) {
		return m.rights, m.ok, false
	}
	matches := s.names.matches
	if !c.Worker {
		matches = unasked
	}
	if r, ok, unsure = e.rightsOf(c.Peer.Addr.Addr(), matches); unsure {
		return r, ok, true
	}
	if ok && !r.Insecure && !c.Peer.Privileged() {
		ok = false
	}
	if ok {
		c.Peer.Trust()
	}
	from.decided.Store(&memo{e: e, rights: r, ok: ok, until: now.Add(decisionAge)})
	return r, ok, false
}

// Entitled reports whether a host has a right on some export, from a port that only root may use or from another. Where only a name
// server could tell, it is taken to have one.
func (s *Server) Entitled(host netip.Addr, privileged bool) bool {
	return slices.ContainsFunc(s.table.Load().list, func(e *export) bool {
		r, ok, unsure := e.rightsOf(host, unasked)
		return unsure || ok && (r.Insecure || privileged)
	})
}

// unasked is what is known of names where nothing may be waited for.
func unasked(question) (yes, known bool) { return false, false }

// errAgain is an internal status: the call has to be run by a worker.
const errAgain = nfs3.Status(1 << 30)

// errLater is another: the call has to wait for memory for its result.
const errLater = nfs3.Status(1<<30 + 1)

// find resolves a handle and the caller's rights. On OK the request has to be ended.
func (s *Server) find(c *rpcserver.Call, h []byte, q *request) nfs3.Status {
	n := s.nodes.cached(h)
	if n != nil && s.table.Load().byID[n.e.ID] != n.e {
		// The exports were replaced while the node was in use: it belongs to the old ones, and so do its rules. Its medium may be
		// another, which hangs.
		s.nodes.forget(n)
		s.nodes.leave(n)
		n = nil
	}
	if n != nil && n.e.mayHang && !c.Worker {
		s.nodes.leave(n)
		return errAgain
	}
	if n == nil {
		if !c.Worker {
			return errAgain
		}
		var err error
		if n, err = s.nodes.get(h); err != nil {
			return statusOf(err)
		}
	}
	c.Scope = n.e
	r, ok, unsure := s.decide(c, n.e)
	switch {
	case unsure:
		s.nodes.leave(n)
		if c.Worker {
			return nfs3.ErrJukebox // the client asks again; a refusal would be one for the program that waits there
		}
		return errAgain
	case !ok:
		s.nodes.leave(n)
		return nfs3.ErrAcces
	}
	if n.e.SubtreeCheck && !n.e.contains(n.fd) {
		s.nodes.leave(n)
		return nfs3.ErrStale
	}
	q.n, q.inline, q.rights = n, !c.Worker, r
	q.id = n.e.identityOf(c.Cred.Flavor, &c.Sys, r.Squash)
	s.ids.admit(&q.id, n.e.AnonUID, n.e.AnonGID)
	return nfs3.OK
}

// findDir is find for a directory that is to change, or not.
func (s *Server) findDir(c *rpcserver.Call, h []byte, q *request, change bool) nfs3.Status {
	st := s.find(c, h, q)
	if st != nfs3.OK {
		return st
	}
	if q.n.fmt != unix.S_IFDIR {
		s.end(q)
		return nfs3.ErrNotdir
	}
	if change && q.rights.ReadOnly {
		s.end(q)
		return nfs3.ErrRofs
	}
	return nfs3.OK
}

func (s *Server) end(q *request) {
	if q.inline {
		s.nodes.leave(q.n)
		return
	}
	s.nodes.put(q.n)
}

// stat reads a node's attributes. A file without a name is stale, even while a descriptor of ours keeps it.
func (s *Server) stat(n *node, st *unix.Stat_t) error {
	if err := unix.Fstat(n.fd, st); err != nil {
		return err
	}
	if st.Nlink == 0 {
		s.nodes.forget(n)
		return unix.ESTALE
	}
	return nil
}

func attrOf(st *unix.Stat_t, a *nfs3.Attr) {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		a.Type = nfs3.TypeDir
	case unix.S_IFBLK:
		a.Type = nfs3.TypeBlk
	case unix.S_IFCHR:
		a.Type = nfs3.TypeChr
	case unix.S_IFLNK:
		a.Type = nfs3.TypeLnk
	case unix.S_IFSOCK:
		a.Type = nfs3.TypeSock
	case unix.S_IFIFO:
		a.Type = nfs3.TypeFifo
	default:
		a.Type = nfs3.TypeReg
	}
	a.Mode, a.Nlink, a.UID, a.GID = st.Mode&0o7777, uint32(st.Nlink), st.Uid, st.Gid
	a.Size, a.Used = uint64(st.Size), uint64(st.Blocks)*512
	a.Major, a.Minor = unix.Major(st.Rdev), unix.Minor(st.Rdev)
	a.FSID, a.FileID = st.Dev, st.Ino
	a.Atime, a.Mtime, a.Ctime = timeOf(st.Atim), timeOf(st.Mtim), timeOf(st.Ctim)
}

func timeOf(t unix.Timespec) nfs3.Time { return nfs3.Time{Sec: uint32(t.Sec), Nsec: uint32(t.Nsec)} }

// post fills post-operation attributes as far as they can be had.
func (s *Server) post(n *node, o *nfs3.OptAttr) {
	var st unix.Stat_t
	if s.stat(n, &st) == nil {
		s.attr(n.e, &st, o)
	}
}

// attr fills attributes. The file system's ID is the export's: it must not change with the device number of the day.
func (s *Server) attr(e *export, st *unix.Stat_t, o *nfs3.OptAttr) {
	o.Set = true
	attrOf(st, &o.Attr)
	o.Attr.FSID = uint64(e.ID)
}

// changing brackets f, a change of n, with weak cache consistency data: no other change of the file comes between. st is
// what stood before. (f takes no argument of it: the compiler would move that to the heap for each WRITE.)
func (s *Server) changing(n *node, w *nfs3.Wcc, st *unix.Stat_t, f func() error) error {
	n.file.change.Lock()
	defer n.file.change.Unlock()
	if err := s.stat(n, st); err != nil {
		return err
	}
	w.BeforeSet, w.Size, w.Mtime, w.Ctime = true, uint64(st.Size), timeOf(st.Mtim), timeOf(st.Ctim)
	defer s.post(n, &w.After)
	return f()
}

// CheckLock finds the file that a handle is, for the lock manager: the caller needs the rights to the export, not to the
// file, because what may be locked a client decides when the file is opened. The key is of the file, not of the handle, in
// which its export is; the birth time tells it from a later file of the same number.
func (s *Server) CheckLock(c *rpcserver.Call, fh []byte) (key string, st nfs3.Status) {
	in, ok := s.enter(c.Peer, fh)
	if !ok {
		return "", nfs3.ErrJukebox
	}
	defer in.leave()
	var q request
	if st := s.find(c, fh, &q); st != nfs3.OK {
		return "", st
	}
	defer s.end(&q)
	id, err := inodeID(q.n.fd)
	if err != nil {
		return "", statusOf(err)
	}
	return string(id.append(binary.BigEndian.AppendUint64(nil, q.n.file.id.dev))), nfs3.OK
}
