package nfs

import (
	"cmp"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/target/filesystem"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// aclProgram is NFSACL version 3, which every Linux client tries on the connection that it mounted by. The lists are the
// file system's own; where it keeps none, a file's mode is shown as one.
type aclProgram Server

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
	if a.Parse((*xdr.Reader)(&c.Args)); c.Args.Err() != nil {
		return c.Garbage()
	}
	s := (*Server)(p)
	in, ok := s.fs.ExportOf(a.FH).Enter(c.Peer)
	if !ok {
		return later(c, 1)
	}
	defer in.Leave()
	if a.Set {
		return s.setacl(c, &a)
	}
	return s.getacl(c, &a)
}

func (s *Server) getacl(c *rpcserver.Call, a *nfs3.ACLArgs) rpcserver.Verdict {
	from := callerOf(c)
	var o filesystem.Object
	r := nfs3.ACLRes{Mask: a.Mask}
	e := s.fs.Find(&from, a.FH, &o)
	if e == filesystem.OK {
		defer o.End()
		if a.Mask&^nfs3.MaskAll != 0 {
			e = filesystem.Errno(unix.EINVAL)
		} else {
			e = readACLs(&o, &r)
		}
		after(&o, &r.Attr)
	}
	r.Status = statusOf(e)
	c.Out = r.Append(c.Out)
	return rpcserver.Done
}

func readACLs(o *filesystem.Object, r *nfs3.ACLRes) filesystem.Errno {
	var st filesystem.Attr
	if e := o.Stat(&st); e != filesystem.OK {
		return e
	}
	if r.Mask&(nfs3.MaskACL|nfs3.MaskACLCnt) != 0 {
		l, e := o.AccessACL()
		if e != filesystem.OK {
			return e
		}
		if l == nil {
			l = aclOfMode(st.Mode)
		}
		sent := wireACL(l, &st, 0)
		r.AccessCnt = uint32(len(sent))
		if r.Mask&nfs3.MaskACL != 0 {
			r.Access = sent
		}
	}
	if st.Format == unix.S_IFDIR && r.Mask&(nfs3.MaskDefault|nfs3.MaskDefaultCnt) != 0 {
		l, e := o.DefaultACL()
		if e != filesystem.OK {
			return e
		}
		sent := wireACL(l, &st, nfs3.DefaultFlag)
		r.DefaultCnt = uint32(len(sent))
		if r.Mask&nfs3.MaskDefault != 0 {
			r.Default = sent
		}
	}
	return filesystem.OK
}

func aclOfMode(mode uint32) []filesystem.ACE {
	return []filesystem.ACE{{Tag: nfs3.ACLUserObj, Perm: mode >> 6 & 7}, {Tag: nfs3.ACLGroupObj, Perm: mode >> 3 & 7}, {Tag: nfs3.ACLOther, Perm: mode & 7}}
}

// wireACL gives a list the form that it is sent in: entries of owner and group name them, those of a default list are
// marked, and one without a mask gets the group's permissions as its mask, because Solaris insists on four entries.
func wireACL(l []filesystem.ACE, st *filesystem.Attr, flag uint32) []nfs3.ACE {
	var out []nfs3.ACE
	for _, e := range l {
		switch e.Tag {
		case nfs3.ACLUserObj:
			e.ID = st.UID
		case nfs3.ACLGroupObj:
			e.ID = st.GID
		case nfs3.ACLMask, nfs3.ACLOther:
			e.ID = 0
		}
		if e.Tag == nfs3.ACLOther && len(l) == 3 {
			out = append(out, nfs3.ACE{Tag: nfs3.ACLMask | flag, Perm: l[1].Perm})
		}
		out = append(out, nfs3.ACE{Tag: e.Tag | flag, Perm: e.Perm, ID: e.ID})
	}
	return out
}

func (s *Server) setacl(c *rpcserver.Call, a *nfs3.ACLArgs) rpcserver.Verdict {
	from := callerOf(c)
	var o filesystem.Object
	r := nfs3.ACLRes{Set: true}
	e := s.fs.FindToChange(&from, a.FH, &o)
	if e == filesystem.OK {
		defer o.End()
		set := filesystem.SetACLs{AccessSet: a.Mask&nfs3.MaskACL != 0, DefaultSet: a.Mask&nfs3.MaskDefault != 0}
		var ok, ok2 bool
		set.Access, ok = ownACL(a.Access, 0)
		set.Default, ok2 = ownACL(a.Default, nfs3.DefaultFlag)
		if a.Mask&^nfs3.MaskAll != 0 || !ok || !ok2 {
			e = filesystem.Errno(unix.EINVAL)
		} else {
			e = o.SetACLs(&set)
		}
		after(&o, &r.Attr)
	}
	r.Status = statusOf(e)
	c.Out = r.Append(c.Out)
	return rpcserver.Done
}

// ownACL brings a list that was sent into the file system's form: in order of tags and IDs, and without the mask of
// wireACL, which says nothing that the group's entry does not.
func ownACL(sent []nfs3.ACE, flag uint32) (l []filesystem.ACE, ok bool) {
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
		l = append(l, filesystem.ACE{Tag: e.Tag, Perm: e.Perm, ID: e.ID})
	}
	slices.SortFunc(l, func(a, b filesystem.ACE) int { return cmp.Or(cmp.Compare(a.Tag, b.Tag), cmp.Compare(a.ID, b.ID)) })
	if len(l) == 4 && l[1].Tag == nfs3.ACLGroupObj && l[2].Tag == nfs3.ACLMask && l[1].Perm == l[2].Perm {
		l = slices.Delete(l, 2, 3)
	}
	return l, true
}
