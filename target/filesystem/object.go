package filesystem

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Peer is the connection that a caller speaks on. *rpcserver.Peer is one.
type Peer interface {
	Host() netip.Addr
	// Privileged reports a port that only root may use.
	Privileged() bool
	// Trust is told that a right of the peer's was found.
	Trust()
	// Slots is how many calls it may have in flight, 0 for what is no connection.
	Slots() int
	// Memo and HostMemo keep what this package knows of a connection, and of its host; HostMemo is nil for what is no connection.
	Memo() *atomic.Pointer[any]
	HostMemo() *atomic.Pointer[any]
}

// Credential is who a caller says it is. The zero value says nothing.
type Credential struct {
	Known    bool
	UID, GID uint32
	Groups   []uint32 // of which 16 count at most
}

// Caller is on whose behalf an operation is done.
type Caller struct {
	Peer Peer
	Cred Credential
	// MayWait says that the operation may wait; without it what would have to wait is ErrWait.
	MayWait bool
	// Named is what ExportOf has said of the handle just now, for a caller that must not wait.
	Named *Served
	// Export is that of the last handle that was found, also where the caller has no right. A handle that is not found leaves it.
	Export *Served
}

// Object is a file that was found for a caller. It belongs to one goroutine, from Find to End.
type Object struct {
	s      *FS
	n      *node
	inline bool // nothing may be waited for
	id     identity
	rights Rights
}

type memo struct {
	e      *Served
	rights Rights
	ok     bool
	until  time.Time
}

// decide finds what the caller may do on an export, and remembers it with the connection.
func (s *FS) decide(c *Caller, e *Served) (r Rights, ok, unsure bool) {
	now := time.Now()
	from := callerOf(c.Peer)
	if m := from.decided.Load(); m != nil && m.e == e && now.Before(m.until) {
		return m.rights, m.ok, false
	}
	matches := s.names.matches
	if !c.MayWait {
		matches = unasked
	}
	if r, ok, unsure = e.rightsOf(c.Peer.Host(), matches); unsure {
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

// unasked is what is known of names where nothing may be waited for.
func unasked(question) (yes, known bool) { return false, false }

// Find resolves a handle and the caller's rights. On OK the object has to be ended.
func (s *FS) Find(c *Caller, h []byte, o *Object) Errno {
	n := s.nodes.cached(h)
	if n != nil {
		e := c.Named
		if c.MayWait || e == nil { // it may have waited since it looked
			e = s.table.Load().byID[n.e.ID]
		}
		if n.e != e {
			// The exports were replaced while the node was in use: it belongs to the old ones, and so do its rules. Its medium may be
			// another, which hangs.
			s.nodes.forget(n)
			s.nodes.leave(n)
			n = nil
		}
	}
	if n != nil && n.e.mayHang && !c.MayWait {
		s.nodes.leave(n)
		return ErrWait
	}
	if n == nil {
		if !c.MayWait {
			return ErrWait
		}
		var err error
		if n, err = s.nodes.get(h); err != nil {
			return errnoOf(err)
		}
	}
	c.Export = n.e
	r, ok, unsure := s.decide(c, n.e)
	switch {
	case unsure:
		s.nodes.leave(n)
		if c.MayWait {
			return ErrLater // the client asks again; a refusal would be one for the program that waits there
		}
		return ErrWait
	case !ok:
		s.nodes.leave(n)
		return Errno(unix.EACCES)
	}
	if n.e.SubtreeCheck && !n.e.contains(n.fd) {
		s.nodes.leave(n)
		return Errno(unix.ESTALE)
	}
	o.s, o.n, o.inline, o.rights = s, n, !c.MayWait, r
	o.id = n.e.identityOf(&c.Cred, r.Squash)
	s.ids.admit(&o.id, n.e.AnonUID, n.e.AnonGID)
	return OK
}

// FindToChange is Find for a file whose data or attributes are to change.
func (s *FS) FindToChange(c *Caller, h []byte, o *Object) Errno {
	e := s.Find(c, h, o)
	if e == OK && o.rights.ReadOnly {
		o.End()
		return Errno(unix.EROFS)
	}
	return e
}

// FindDir is Find for a directory that is to change, or not.
func (s *FS) FindDir(c *Caller, h []byte, o *Object, change bool) Errno {
	if e := s.Find(c, h, o); e != OK {
		return e
	}
	if o.n.fmt != unix.S_IFDIR {
		o.End()
		return Errno(unix.ENOTDIR)
	}
	if change && o.rights.ReadOnly {
		o.End()
		return Errno(unix.EROFS)
	}
	return OK
}

// End ends what Find began. The object is not to be used after it.
func (o *Object) End() {
	if o.inline {
		o.s.nodes.leave(o.n)
		return
	}
	o.s.nodes.put(o.n)
}

// Format is the file's type, S_IFMT.
func (o *Object) Format() uint32 { return o.n.fmt }

// Stat reads the attributes.
func (o *Object) Stat(a *Attr) Errno {
	var st unix.Stat_t
	if err := o.s.stat(o.n, &st); err != nil {
		return errnoOf(err)
	}
	a.fill(o.n.e, &st)
	return OK
}

// After reads the attributes behind an operation, as far as they can be had.
func (o *Object) After(a *Attr) { o.s.after(o.n, a) }

func (s *FS) after(n *node, a *Attr) {
	var st unix.Stat_t
	if s.stat(n, &st) == nil {
		a.fill(n.e, &st)
	}
}

// stat reads a node's attributes. A file without a name is stale, even while a descriptor of ours keeps it.
func (s *FS) stat(n *node, st *unix.Stat_t) error {
	if err := unix.Fstat(n.fd, st); err != nil {
		return err
	}
	if st.Nlink == 0 {
		s.nodes.forget(n)
		return unix.ESTALE
	}
	return nil
}

// changing brackets f, a change of n, with what the file is before and after: no other change of the file comes between. st is
// what stood before. (f takes no argument of it: the compiler would move that to the heap for each WRITE.)
func (s *FS) changing(n *node, w *Change, st *unix.Stat_t, f func() error) error {
	n.file.change.Lock()
	defer n.file.change.Unlock()
	if err := s.stat(n, st); err != nil {
		return err
	}
	w.before(st)
	defer s.after(n, &w.After)
	return f()
}

// StatFS is the room of a file system, in bytes and files.
type StatFS struct {
	Total, Free, Avail uint64 // bytes
	Files, FilesFree   uint64
}

// StatFS asks for the room.
func (o *Object) StatFS(r *StatFS) Errno {
	var st unix.Statfs_t
	if err := unix.Fstatfs(o.n.fd, &st); err != nil {
		return errnoOf(err)
	}
	b := uint64(st.Bsize)
	*r = StatFS{Total: st.Blocks * b, Free: st.Bfree * b, Avail: st.Bavail * b, Files: st.Files, FilesFree: st.Ffree}
	return OK
}

// FileKey is a file's, whatever the handle or the export: locks are kept by it.
type FileKey string

// Key is the object's. The birth time tells it from a later file of the same number.
func (o *Object) Key() (FileKey, Errno) {
	id, err := inodeID(o.n.fd)
	if err != nil {
		return "", errnoOf(err)
	}
	return FileKey(id.append(binary.BigEndian.AppendUint64(nil, o.n.file.id.dev))), OK
}
