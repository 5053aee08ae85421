package nfs3

import "github.com/sluice-storage/sluice/internal/xdr"

// Verf is a cookie, create or write verifier.
type Verf [VerfLen]byte

func parseVerf(r *xdr.Reader) (v Verf) {
	copy(v[:], r.Fixed(VerfLen))
	return v
}

// FHArgs are the arguments of GETATTR, READLINK, FSSTAT, FSINFO and PATHCONF.
type FHArgs struct{ FH []byte }

// Append appends the arguments.
func (a *FHArgs) Append(b []byte) []byte { return xdr.AppendOpaque(b, a.FH) }

// Parse takes the arguments from r.
func (a *FHArgs) Parse(r *xdr.Reader) { a.FH = r.Opaque(MaxFH) }

// SetattrArgs are the arguments of SETATTR (RFC 1813 section 3.3.2).
type SetattrArgs struct {
	FH    []byte
	Attr  SetAttr
	Guard bool // only if Ctime is still the file's
	Ctime Time
}

// Append appends the arguments.
func (a *SetattrArgs) Append(b []byte) []byte {
	b = a.Attr.Append(xdr.AppendOpaque(b, a.FH))
	b = xdr.AppendBool(b, a.Guard)
	if a.Guard {
		b = a.Ctime.Append(b)
	}
	return b
}

// Parse takes the arguments from r.
func (a *SetattrArgs) Parse(r *xdr.Reader) {
	a.FH = r.Opaque(MaxFH)
	a.Attr.Parse(r)
	if a.Guard = r.Bool(); a.Guard {
		a.Ctime = parseTime(r)
	}
}

// The bits of ACCESS (RFC 1813 section 3.3.4).
const (
	AccessRead    = 0x01
	AccessLookup  = 0x02
	AccessModify  = 0x04
	AccessExtend  = 0x08
	AccessDelete  = 0x10
	AccessExecute = 0x20
)

// AccessArgs are the arguments of ACCESS.
type AccessArgs struct {
	FH     []byte
	Access uint32
}

// Append appends the arguments.
func (a *AccessArgs) Append(b []byte) []byte {
	return xdr.AppendUint32(xdr.AppendOpaque(b, a.FH), a.Access)
}

// Parse takes the arguments from r.
func (a *AccessArgs) Parse(r *xdr.Reader) { a.FH, a.Access = r.Opaque(MaxFH), r.Uint32() }

// RangeArgs are the arguments of READ and COMMIT (RFC 1813 sections 3.3.6 and 3.3.21).
type RangeArgs struct {
	FH     []byte
	Offset uint64
	Count  uint32
}

// Append appends the arguments.
func (a *RangeArgs) Append(b []byte) []byte {
	return xdr.AppendUint32(xdr.AppendUint64(xdr.AppendOpaque(b, a.FH), a.Offset), a.Count)
}

// Parse takes the arguments from r.
func (a *RangeArgs) Parse(r *xdr.Reader) {
	a.FH, a.Offset, a.Count = r.Opaque(MaxFH), r.Uint64(), r.Uint32()
}

// Stable is a stable_how.
type Stable uint32

// The values of stable_how (RFC 1813 section 3.3.7).
const (
	Unstable Stable = 0
	DataSync Stable = 1
	FileSync Stable = 2
)

// WriteArgs are the arguments of WRITE up to the data, whose length is Len: the data itself is the transport's to place.
type WriteArgs struct {
	FH     []byte
	Offset uint64
	Count  uint32
	Stable Stable
	Len    uint32
}

// Append appends the arguments up to the data, which the caller lets follow with its padding.
func (a *WriteArgs) Append(b []byte) []byte {
	b = xdr.AppendUint64(xdr.AppendOpaque(b, a.FH), a.Offset)
	return xdr.AppendUint32(xdr.AppendUint32(xdr.AppendUint32(b, a.Count), uint32(a.Stable)), a.Len)
}

// Parse takes the arguments from r and leaves r at the data.
func (a *WriteArgs) Parse(r *xdr.Reader) {
	a.FH, a.Offset, a.Count = r.Opaque(MaxFH), r.Uint64(), r.Uint32()
	a.Stable = Stable(r.Enum("stable_how", uint32(FileSync)))
	a.Len = r.Uint32()
}

// CreateHow is a createmode3.
type CreateHow uint32

// The values of createmode3 (RFC 1813 section 3.3.8).
const (
	Unchecked CreateHow = 0
	Guarded   CreateHow = 1
	Exclusive CreateHow = 2
)

// CreateArgs are the arguments of CREATE.
type CreateArgs struct {
	Where DirOp
	How   CreateHow
	Attr  SetAttr // Unchecked, Guarded
	Verf  Verf    // Exclusive
}

// Append appends the arguments.
func (a *CreateArgs) Append(b []byte) []byte {
	b = xdr.AppendUint32(a.Where.Append(b), uint32(a.How))
	if a.How == Exclusive {
		return append(b, a.Verf[:]...)
	}
	return a.Attr.Append(b)
}

// Parse takes the arguments from r.
func (a *CreateArgs) Parse(r *xdr.Reader) {
	a.Where.Parse(r)
	a.How = CreateHow(r.Enum("createmode3", uint32(Exclusive)))
	if a.How == Exclusive {
		a.Verf = parseVerf(r)
		return
	}
	a.Attr.Parse(r)
}

// MkdirArgs are the arguments of MKDIR (RFC 1813 section 3.3.9).
type MkdirArgs struct {
	Where DirOp
	Attr  SetAttr
}

// Append appends the arguments.
func (a *MkdirArgs) Append(b []byte) []byte { return a.Attr.Append(a.Where.Append(b)) }

// Parse takes the arguments from r.
func (a *MkdirArgs) Parse(r *xdr.Reader) {
	a.Where.Parse(r)
	a.Attr.Parse(r)
}

// SymlinkArgs are the arguments of SYMLINK up to the target path, whose length is PathLen: like the data of WRITE it is
// the transport's to place (RFC 1813 section 3.3.10, RFC 8267 section 2).
type SymlinkArgs struct {
	MkdirArgs
	PathLen uint32
}

// Append appends the arguments up to the target, which the caller lets follow with its padding.
func (a *SymlinkArgs) Append(b []byte) []byte {
	return xdr.AppendUint32(a.MkdirArgs.Append(b), a.PathLen)
}

// Parse takes the arguments from r and leaves r at the target.
func (a *SymlinkArgs) Parse(r *xdr.Reader) {
	a.MkdirArgs.Parse(r)
	a.PathLen = r.Uint32()
}

// MknodArgs are the arguments of MKNOD (RFC 1813 section 3.3.11). Types other than the four specials carry nothing.
type MknodArgs struct {
	Where        DirOp
	Type         FileType
	Attr         SetAttr
	Major, Minor uint32
}

// Append appends the arguments.
func (a *MknodArgs) Append(b []byte) []byte {
	b = xdr.AppendUint32(a.Where.Append(b), uint32(a.Type))
	switch a.Type {
	case TypeBlk, TypeChr:
		return xdr.AppendUint32(xdr.AppendUint32(a.Attr.Append(b), a.Major), a.Minor)
	case TypeSock, TypeFifo:
		return a.Attr.Append(b)
	}
	return b
}

// Parse takes the arguments from r.
func (a *MknodArgs) Parse(r *xdr.Reader) {
	a.Where.Parse(r)
	a.Type = FileType(r.Enum("ftype3", uint32(TypeFifo)))
	switch a.Type {
	case TypeBlk, TypeChr:
		a.Attr.Parse(r)
		a.Major, a.Minor = r.Uint32(), r.Uint32()
	case TypeSock, TypeFifo:
		a.Attr.Parse(r)
	}
}

// RenameArgs are the arguments of RENAME (RFC 1813 section 3.3.14).
type RenameArgs struct{ From, To DirOp }

// Append appends the arguments.
func (a *RenameArgs) Append(b []byte) []byte { return a.To.Append(a.From.Append(b)) }

// Parse takes the arguments from r.
func (a *RenameArgs) Parse(r *xdr.Reader) {
	a.From.Parse(r)
	a.To.Parse(r)
}

// LinkArgs are the arguments of LINK (RFC 1813 section 3.3.15).
type LinkArgs struct {
	FH   []byte
	Link DirOp
}

// Append appends the arguments.
func (a *LinkArgs) Append(b []byte) []byte { return a.Link.Append(xdr.AppendOpaque(b, a.FH)) }

// Parse takes the arguments from r.
func (a *LinkArgs) Parse(r *xdr.Reader) {
	a.FH = r.Opaque(MaxFH)
	a.Link.Parse(r)
}

// ReaddirArgs are the arguments of READDIR, and with Plus those of READDIRPLUS (RFC 1813 sections 3.3.16 and 3.3.17).
type ReaddirArgs struct {
	Plus     bool // not on the wire: the procedure says it
	Dir      []byte
	Cookie   uint64
	Verf     Verf
	DirCount uint32 // Plus: bytes of names, cookies and file ids
	MaxCount uint32 // bytes of the whole result
}

// Append appends the arguments.
func (a *ReaddirArgs) Append(b []byte) []byte {
	b = xdr.AppendUint64(xdr.AppendOpaque(b, a.Dir), a.Cookie)
	b = append(b, a.Verf[:]...)
	if a.Plus {
		b = xdr.AppendUint32(b, a.DirCount)
	}
	return xdr.AppendUint32(b, a.MaxCount)
}

// Parse takes the arguments from r, of READDIRPLUS if Plus is set.
func (a *ReaddirArgs) Parse(r *xdr.Reader) {
	a.Dir, a.Cookie, a.Verf = r.Opaque(MaxFH), r.Uint64(), parseVerf(r)
	if a.Plus {
		a.DirCount = r.Uint32()
	}
	a.MaxCount = r.Uint32()
}
