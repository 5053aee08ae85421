package nfs3

import (
	"github.com/sluice-storage/sluice/internal/xdr"
)

// The NFSACL program, version 3: access control lists beside NFS version 3. No RFC has it; this is what Solaris began and
// Linux speaks (fs/nfs_common/nfsacl.c). Lists are of the kind of POSIX.1e draft 17.
const (
	ACLProg     = 100227
	ACLVers     = 3
	ProcGetACL  = 1
	ProcSetACL  = 2
	maxACL      = 1024 // entries of a list, as Linux bounds it
	DefaultFlag = 0x1000
)

// Bits of a mask: which lists, or their lengths alone, are asked for or given.
const (
	MaskACL     = 1 << iota // the list that governs access
	MaskACLCnt              // its length
	MaskDefault             // the list that new files of a directory inherit
	MaskDefaultCnt
	MaskAll = 1<<iota - 1
)

// Tags of entries; those of a default list have DefaultFlag too.
const (
	ACLUserObj  = 1
	ACLUser     = 2
	ACLGroupObj = 4
	ACLGroup    = 8
	ACLMask     = 0x10
	ACLOther    = 0x20
)

// ACE is one entry of a list.
type ACE struct{ Tag, ID, Perm uint32 }

// ACLArgs are the arguments of GETACL, and with Set those of SETACL.
type ACLArgs struct {
	Set  bool
	FH   []byte
	Mask uint32
	ACLs
}

// ACLs are the two lists of a file, as they are sent: with their lengths, even where the lists themselves stay away.
type ACLs struct {
	AccessCnt, DefaultCnt uint32
	Access, Default       []ACE
}

// Append appends the lists.
func (l *ACLs) Append(b []byte) []byte {
	b = appendACL(xdr.AppendUint32(b, l.AccessCnt), l.Access)
	return appendACL(xdr.AppendUint32(b, l.DefaultCnt), l.Default)
}

// Parse takes the lists from r.
func (l *ACLs) Parse(r *xdr.Reader) {
	l.AccessCnt = r.Uint32()
	l.Access = parseACL(r)
	l.DefaultCnt = r.Uint32()
	l.Default = parseACL(r)
}

func appendACL(b []byte, l []ACE) []byte {
	b = xdr.AppendUint32(b, uint32(len(l)))
	for _, e := range l {
		b = xdr.AppendUint32(xdr.AppendUint32(xdr.AppendUint32(b, e.Tag), e.ID), e.Perm)
	}
	return b
}

func parseACL(r *xdr.Reader) (l []ACE) {
	for range r.Count(maxACL) {
		e := ACE{Tag: r.Uint32(), ID: r.Uint32(), Perm: r.Uint32()}
		if r.Err() != nil {
			return nil
		}
		l = append(l, e)
	}
	return l
}

// Append appends the arguments.
func (a *ACLArgs) Append(b []byte) []byte {
	b = xdr.AppendUint32(xdr.AppendOpaque(b, a.FH), a.Mask)
	if a.Set {
		b = a.ACLs.Append(b)
	}
	return b
}

// Parse takes the arguments from r.
func (a *ACLArgs) Parse(r *xdr.Reader) {
	a.FH, a.Mask = r.Opaque(MaxFH), r.Uint32()
	if a.Set {
		a.ACLs.Parse(r)
	}
}

// ACLRes is the result of GETACL, and with Set that of SETACL.
type ACLRes struct {
	Set    bool
	Status Status
	Attr   OptAttr
	Mask   uint32
	ACLs
}

// Append appends the result.
func (s *ACLRes) Append(b []byte) []byte {
	b = s.Attr.Append(xdr.AppendUint32(b, uint32(s.Status)))
	if s.Set || s.Status != OK {
		return b
	}
	return s.ACLs.Append(xdr.AppendUint32(b, s.Mask))
}

// Parse takes the result from r.
func (s *ACLRes) Parse(r *xdr.Reader) {
	s.Status = Status(r.Uint32())
	if s.Attr.Parse(r); s.Set || s.Status != OK {
		return
	}
	s.Mask = r.Uint32()
	s.ACLs.Parse(r)
}
