package nfs

import (
	"cmp"
	"encoding/binary"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// aclProgram is NFSACL version 3, which every Linux client tries on the connection that it mounted by. The lists are the
// file system's own; where it keeps none, a file's mode is shown as one.
type aclProgram Server

// The extended attributes that hold the lists, and their form (linux/posix_acl_xattr.h): a version, then entries of tag,
// permissions and ID, all little endian.
const (
	xattrAccess   = "system.posix_acl_access"
	xattrDefault  = "system.posix_acl_default"
	xattrVersion  = 2
	xattrHead     = 4
	xattrEntry    = 8
	maxACLEntries = 1024
)

// ID is the program number.
func (p *aclProgram) ID() uint32 { return nfs3.ACLProg }

// Versions are 3 and 3.
func (p *aclProgram) Versions() (low, high uint32) { return nfs3.ACLVers, nfs3.ACLVers }

// Keeps is false: setting a list twice does no harm.
func (p *aclProgram) Keeps(_, _ uint32) bool { return false }

// Classify leaves all to workers.
func (p *aclProgram) Classify(*rpcserver.Call) rpcserver.Class { return rpcserver.Worker }

// Serve executes one call.
func (p *aclProgram) Serve(c *rpcserver.Call) rpcserver.Verdict {
	if c.Proc != nfs3.ProcGetACL && c.Proc != nfs3.ProcSetACL {
		return c.NoProc()
	}
	a := nfs3.ACLArgs{Set: c.Proc == nfs3.ProcSetACL}
	if a.Parse(&c.Args); c.Args.Err() != nil {
		return c.Garbage()
	}
	s := (*Server)(p)
	in, ok := s.enter(c.Peer, a.FH)
	if !ok {
		return later(c, 1)
	}
	defer in.leave()
	if a.Set {
		return s.setacl(c, &a)
	}
	return s.getacl(c, &a)
}

func (s *Server) getacl(c *rpcserver.Call, a *nfs3.ACLArgs) rpcserver.Verdict {
	var q request
	r := nfs3.ACLRes{Mask: a.Mask}
	if r.Status = s.find(c, a.FH, &q); r.Status == nfs3.OK {
		defer s.end(&q)
	}
	switch {
	case r.Status != nfs3.OK:
	case a.Mask&^nfs3.MaskAll != 0:
		r.Status = nfs3.ErrInval
	default:
		r.Status = statusOf(s.readACLs(q.n, &r))
	}
	if q.n != nil {
		s.post(q.n, &r.Attr)
	}
	c.Out = r.Append(c.Out)
	return rpcserver.Done
}

func (s *Server) readACLs(n *node, r *nfs3.ACLRes) error {
	var st unix.Stat_t
	if err := s.stat(n, &st); err != nil {
		return err
	}
	if r.Mask&(nfs3.MaskACL|nfs3.MaskACLCnt) != 0 {
		l, err := readACL(n, xattrAccess)
		if err != nil {
			return err
		}
		if l == nil {
			l = aclOfMode(st.Mode)
		}
		l = wireACL(l, &st, 0)
		r.AccessCnt = uint32(len(l))
		if r.Mask&nfs3.MaskACL != 0 {
			r.Access = l
		}
	}
	if n.fmt == unix.S_IFDIR && r.Mask&(nfs3.MaskDefault|nfs3.MaskDefaultCnt) != 0 {
		l, err := readACL(n, xattrDefault)
		if err != nil {
			return err
		}
		l = wireACL(l, &st, nfs3.DefaultFlag)
		r.DefaultCnt = uint32(len(l))
		if r.Mask&nfs3.MaskDefault != 0 {
			r.Default = l
		}
	}
	return nil
}

// readACL reads a list; nil is none. A symbolic link has none, and asking by its path would ask what it points to.
func readACL(n *node, name string) ([]nfs3.ACE, error) {
	if n.fmt == unix.S_IFLNK {
		return nil, nil
	}
	b := make([]byte, xattrHead+maxACLEntries*xattrEntry)
	k, err := unix.Getxattr(procPath(n.fd), name, b)
	switch {
	case errors.Is(err, unix.ENODATA), errors.Is(err, unix.EOPNOTSUPP):
		return nil, nil
	case err != nil:
		return nil, err
	}
	if b = b[:k]; k < xattrHead || (k-xattrHead)%xattrEntry != 0 || binary.LittleEndian.Uint32(b) != xattrVersion {
		return nil, unix.EIO
	}
	var l []nfs3.ACE
	for b = b[xattrHead:]; len(b) > 0; b = b[xattrEntry:] {
		l = append(l, nfs3.ACE{Tag: uint32(binary.LittleEndian.Uint16(b)), Perm: uint32(binary.LittleEndian.Uint16(b[2:])), ID: binary.LittleEndian.Uint32(b[4:])})
	}
	return l, nil
}

func hasDefaultACL(dir int) (bool, error) {
	n, err := unix.Getxattr(procPath(dir), xattrDefault, nil)
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EOPNOTSUPP) {
		return false, nil
	}
	return n > xattrHead, err
}

func aclOfMode(mode uint32) []nfs3.ACE {
	return []nfs3.ACE{{Tag: nfs3.ACLUserObj, Perm: mode >> 6 & 7}, {Tag: nfs3.ACLGroupObj, Perm: mode >> 3 & 7}, {Tag: nfs3.ACLOther, Perm: mode & 7}}
}

// wireACL gives a list the form that it is sent in: entries of owner and group name them, those of a default list are
// marked, and one without a mask gets the group's permissions as its mask, because Solaris insists on four entries.
func wireACL(l []nfs3.ACE, st *unix.Stat_t, flag uint32) []nfs3.ACE {
	var out []nfs3.ACE
	for _, e := range l {
		switch e.Tag {
		case nfs3.ACLUserObj:
			e.ID = st.Uid
		case nfs3.ACLGroupObj:
			e.ID = st.Gid
		case nfs3.ACLMask, nfs3.ACLOther:
			e.ID = 0
		}
		if e.Tag == nfs3.ACLOther && len(l) == 3 {
			out = append(out, nfs3.ACE{Tag: nfs3.ACLMask | flag, Perm: l[1].Perm})
		}
		e.Tag |= flag
		out = append(out, e)
	}
	return out
}

func (s *Server) setacl(c *rpcserver.Call, a *nfs3.ACLArgs) rpcserver.Verdict {
	var q request
	r := nfs3.ACLRes{Set: true}
	if r.Status = s.findFile(c, a.FH, &q); r.Status == nfs3.OK {
		defer s.end(&q)
		var w nfs3.Wcc // an answer to SETACL has no room for it
		var st unix.Stat_t
		err := s.changing(q.n, &w, &st, func() error { return s.writeACLs(&q, a) })
		if err == nil {
			err = s.durable(q.n)
		}
		r.Status = statusOf(err)
		s.post(q.n, &r.Attr)
	}
	c.Out = r.Append(c.Out)
	return rpcserver.Done
}

func (s *Server) writeACLs(q *request, a *nfs3.ACLArgs) error {
	access, ok := ownACL(a.Access, 0)
	inherit, ok2 := ownACL(a.Default, nfs3.DefaultFlag)
	switch {
	case a.Mask&^nfs3.MaskAll != 0, !ok, !ok2:
		return nfs3.ErrInval
	case q.n.fmt == unix.S_IFLNK:
		return nfs3.ErrNotsupp
	case q.n.fmt != unix.S_IFDIR && len(inherit) > 0:
		return nfs3.ErrInval
	}
	// The kernel decides whether the caller may, and whether a list makes sense.
	return s.ids.as(&q.id, func() (err error) {
		if a.Mask&nfs3.MaskACL != 0 {
			err = writeACL(q.n, xattrAccess, access)
		}
		if err == nil && a.Mask&nfs3.MaskDefault != 0 && q.n.fmt == unix.S_IFDIR {
			err = writeACL(q.n, xattrDefault, inherit)
		}
		return err
	})
}

func writeACL(n *node, name string, l []nfs3.ACE) error {
	if len(l) == 0 {
		err := unix.Removexattr(procPath(n.fd), name)
		if errors.Is(err, unix.ENODATA) {
			return nil
		}
		return err
	}
	b := binary.LittleEndian.AppendUint32(nil, xattrVersion)
	for _, e := range l {
		b = binary.LittleEndian.AppendUint16(b, uint16(e.Tag))
		b = binary.LittleEndian.AppendUint16(b, uint16(e.Perm))
		b = binary.LittleEndian.AppendUint32(b, e.ID)
	}
	return unix.Setxattr(procPath(n.fd), name, b, 0)
}

// ownACL brings a list that was sent into the file system's form: in order of tags and IDs, and without the mask of
// wireACL, which says nothing that the group's entry does not.
func ownACL(sent []nfs3.ACE, flag uint32) (l []nfs3.ACE, ok bool) {
	const undefined = ^uint32(0) // ACL_UNDEFINED_ID
	for _, e := range sent {
		if e.Tag&nfs3.DefaultFlag != flag || e.Perm > 7 {
			return nil, false
		}
		switch e.Tag &^= nfs3.DefaultFlag; e.Tag {
		case nfs3.ACLUser, nfs3.ACLGroup:
		case nfs3.ACLUserObj, nfs3.ACLGroupObj, nfs3.ACLMask, nfs3.ACLOther:
			e.ID = undefined
		default:
			return nil, false
		}
		l = append(l, e)
	}
	slices.SortFunc(l, func(a, b nfs3.ACE) int { return cmp.Or(cmp.Compare(a.Tag, b.Tag), cmp.Compare(a.ID, b.ID)) })
	if len(l) == 4 && l[1].Tag == nfs3.ACLGroupObj && l[2].Tag == nfs3.ACLMask && l[1].Perm == l[2].Perm {
		l = slices.Delete(l, 2, 3)
	}
	return l, true
}
