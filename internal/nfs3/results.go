package nfs3

import "github.com/sluice-storage/sluice/internal/xdr"

// AttrRes is the result of GETATTR.
type AttrRes struct {
	Status Status
	Attr   Attr
}

// Append appends the result.
func (s *AttrRes) Append(b []byte) []byte {
	b = xdr.AppendUint32(b, uint32(s.Status))
	if s.Status == OK {
		b = s.Attr.Append(b)
	}
	return b
}

// Parse takes the result from r.
func (s *AttrRes) Parse(r *xdr.Reader) {
	if s.Status = Status(r.Uint32()); s.Status == OK {
		s.Attr.Parse(r)
	}
}

// WccRes is the result of SETATTR, REMOVE and RMDIR: a status and a wcc_data, whatever the status is.
type WccRes struct {
	Status Status
	Wcc    Wcc
}

// Append appends the result.
func (s *WccRes) Append(b []byte) []byte {
	return s.Wcc.Append(xdr.AppendUint32(b, uint32(s.Status)))
}

// Parse takes the result from r.
func (s *WccRes) Parse(r *xdr.Reader) {
	s.Status = Status(r.Uint32())
	s.Wcc.Parse(r)
}

// LookupRes is the result of LOOKUP.
type LookupRes struct {
	Status Status
	FH     []byte
	Attr   OptAttr
	Dir    OptAttr
}

// Append appends the result.
func (s *LookupRes) Append(b []byte) []byte {
	b = xdr.AppendUint32(b, uint32(s.Status))
	if s.Status == OK {
		b = s.Attr.Append(xdr.AppendOpaque(b, s.FH))
	}
	return s.Dir.Append(b)
}

// Parse takes the result from r.
func (s *LookupRes) Parse(r *xdr.Reader) {
	if s.Status = Status(r.Uint32()); s.Status == OK {
		s.FH = r.Opaque(MaxFH)
		s.Attr.Parse(r)
	}
	s.Dir.Parse(r)
}

// AccessRes is the result of ACCESS.
type AccessRes struct {
	Status Status
	Attr   OptAttr
	Access uint32
}

// Append appends the result.
func (s *AccessRes) Append(b []byte) []byte {
	b = s.Attr.Append(xdr.AppendUint32(b, uint32(s.Status)))
	if s.Status == OK {
		b = xdr.AppendUint32(b, s.Access)
	}
	return b
}

// Parse takes the result from r.
func (s *AccessRes) Parse(r *xdr.Reader) {
	s.Status = Status(r.Uint32())
	s.Attr.Parse(r)
	if s.Status == OK {
		s.Access = r.Uint32()
	}
}

// ReadlinkRes is the result of READLINK up to the path, whose length is Len: the transport places it.
type ReadlinkRes struct {
	Status Status
	Attr   OptAttr
	Len    uint32
}

// Append appends the result up to the path.
func (s *ReadlinkRes) Append(b []byte) []byte {
	b = s.Attr.Append(xdr.AppendUint32(b, uint32(s.Status)))
	if s.Status == OK {
		b = xdr.AppendUint32(b, s.Len)
	}
	return b
}

// Parse takes the result from r and leaves r at the path.
func (s *ReadlinkRes) Parse(r *xdr.Reader) {
	s.Status = Status(r.Uint32())
	s.Attr.Parse(r)
	if s.Status == OK {
		s.Len = r.Uint32()
	}
}

// ReadRes is the result of READ up to the data, whose length is Len: the transport places it.
type ReadRes struct {
	Status Status
	Attr   OptAttr
	Count  uint32
	EOF    bool
	Len    uint32
}

// Append appends the result up to the data.
func (s *ReadRes) Append(b []byte) []byte {
	b = s.Attr.Append(xdr.AppendUint32(b, uint32(s.Status)))
	if s.Status == OK {
		b = xdr.AppendUint32(xdr.AppendBool(xdr.AppendUint32(b, s.Count), s.EOF), s.Len)
	}
	return b
}

// Parse takes the result from r and leaves r at the data.
func (s *ReadRes) Parse(r *xdr.Reader) {
	s.Status = Status(r.Uint32())
	s.Attr.Parse(r)
	if s.Status == OK {
		s.Count, s.EOF, s.Len = r.Uint32(), r.Bool(), r.Uint32()
	}
}

// WriteRes is the result of WRITE, and without Count and Stable that of COMMIT.
type WriteRes struct {
	Commit bool // not on the wire: the procedure says it
	Status Status
	Wcc    Wcc
	Count  uint32
	Stable Stable
	Verf   Verf
}

// Append appends the result.
func (s *WriteRes) Append(b []byte) []byte {
	b = s.Wcc.Append(xdr.AppendUint32(b, uint32(s.Status)))
	if s.Status != OK {
		return b
	}
	if !s.Commit {
		b = xdr.AppendUint32(xdr.AppendUint32(b, s.Count), uint32(s.Stable))
	}
	return append(b, s.Verf[:]...)
}

// Parse takes the result from r.
func (s *WriteRes) Parse(r *xdr.Reader) {
	s.Status = Status(r.Uint32())
	s.Wcc.Parse(r)
	if s.Status != OK {
		return
	}
	if !s.Commit {
		s.Count, s.Stable = r.Uint32(), Stable(r.Enum("stable_how", uint32(FileSync)))
	}
	s.Verf = parseVerf(r)
}

// CreateRes is the result of CREATE, MKDIR, SYMLINK and MKNOD.
type CreateRes struct {
	Status Status
	FH     OptFH
	Attr   OptAttr
	Dir    Wcc
}

// Append appends the result.
func (s *CreateRes) Append(b []byte) []byte {
	b = xdr.AppendUint32(b, uint32(s.Status))
	if s.Status == OK {
		b = s.Attr.Append(s.FH.Append(b))
	}
	return s.Dir.Append(b)
}

// Parse takes the result from r.
func (s *CreateRes) Parse(r *xdr.Reader) {
	if s.Status = Status(r.Uint32()); s.Status == OK {
		s.FH = parseOptFH(r)
		s.Attr.Parse(r)
	}
	s.Dir.Parse(r)
}

// RenameRes is the result of RENAME.
type RenameRes struct {
	Status   Status
	From, To Wcc
}

// Append appends the result.
func (s *RenameRes) Append(b []byte) []byte {
	return s.To.Append(s.From.Append(xdr.AppendUint32(b, uint32(s.Status))))
}

// Parse takes the result from r.
func (s *RenameRes) Parse(r *xdr.Reader) {
	s.Status = Status(r.Uint32())
	s.From.Parse(r)
	s.To.Parse(r)
}

// LinkRes is the result of LINK.
type LinkRes struct {
	Status Status
	Attr   OptAttr
	Dir    Wcc
}

// Append appends the result.
func (s *LinkRes) Append(b []byte) []byte {
	return s.Dir.Append(s.Attr.Append(xdr.AppendUint32(b, uint32(s.Status))))
}

// Parse takes the result from r.
func (s *LinkRes) Parse(r *xdr.Reader) {
	s.Status = Status(r.Uint32())
	s.Attr.Parse(r)
	s.Dir.Parse(r)
}

// ReaddirRes is the result of READDIR and READDIRPLUS up to the entries: Entry items follow, each after a true, and
// then a false and the end-of-directory flag (RFC 1813 section 3.3.16).
type ReaddirRes struct {
	Status Status
	Dir    OptAttr
	Verf   Verf
}

// Append appends the result up to the entries.
func (s *ReaddirRes) Append(b []byte) []byte {
	b = s.Dir.Append(xdr.AppendUint32(b, uint32(s.Status)))
	if s.Status == OK {
		b = append(b, s.Verf[:]...)
	}
	return b
}

// Parse takes the result from r and leaves r at the entries.
func (s *ReaddirRes) Parse(r *xdr.Reader) {
	s.Status = Status(r.Uint32())
	s.Dir.Parse(r)
	if s.Status == OK {
		s.Verf = parseVerf(r)
	}
}

// Entry is an entry3, or with Plus an entryplus3.
type Entry struct {
	Plus   bool // not on the wire: the procedure says it
	FileID uint64
	Name   []byte
	Cookie uint64
	Attr   OptAttr
	FH     OptFH
}

// Append appends the true that announces an entry, and the entry.
func (e *Entry) Append(b []byte) []byte {
	b = xdr.AppendUint64(xdr.AppendBool(b, true), e.FileID)
	b = xdr.AppendUint64(xdr.AppendOpaque(b, e.Name), e.Cookie)
	if e.Plus {
		b = e.FH.Append(e.Attr.Append(b))
	}
	return b
}

// Parse takes the next entry from r; more is false at the end of the list, and eof is then the flag that ends it.
func (e *Entry) Parse(r *xdr.Reader) (more, eof bool) {
	if !r.Bool() {
		return false, r.Bool()
	}
	e.FileID, e.Name, e.Cookie = r.Uint64(), r.Opaque(MaxName), r.Uint64()
	if e.Plus {
		e.Attr.Parse(r)
		e.FH = parseOptFH(r)
	}
	return r.Err() == nil, false
}

// AppendEnd ends a list of entries.
func AppendEnd(b []byte, eof bool) []byte { return xdr.AppendBool(xdr.AppendBool(b, false), eof) }

// FsstatRes is the result of FSSTAT.
type FsstatRes struct {
	Status               Status
	Attr                 OptAttr
	Total, Free, Avail   uint64 // bytes
	Files, FFree, FAvail uint64
	Invarsec             uint32
}

// Append appends the result.
func (s *FsstatRes) Append(b []byte) []byte {
	b = s.Attr.Append(xdr.AppendUint32(b, uint32(s.Status)))
	if s.Status != OK {
		return b
	}
	for _, v := range [...]uint64{s.Total, s.Free, s.Avail, s.Files, s.FFree, s.FAvail} {
		b = xdr.AppendUint64(b, v)
	}
	return xdr.AppendUint32(b, s.Invarsec)
}

// Parse takes the result from r.
func (s *FsstatRes) Parse(r *xdr.Reader) {
	s.Status = Status(r.Uint32())
	s.Attr.Parse(r)
	if s.Status == OK {
		s.Total, s.Free, s.Avail = r.Uint64(), r.Uint64(), r.Uint64()
		s.Files, s.FFree, s.FAvail = r.Uint64(), r.Uint64(), r.Uint64()
		s.Invarsec = r.Uint32()
	}
}

// Properties of FSINFO (RFC 1813 section 3.3.19).
const (
	FSFLink        = 0x1
	FSFSymlink     = 0x2
	FSFHomogeneous = 0x8
	FSFCanSetTime  = 0x10
)

// FsinfoRes is the result of FSINFO.
type FsinfoRes struct {
	Status                Status
	Attr                  OptAttr
	RTMax, RTPref, RTMult uint32 // bytes
	WTMax, WTPref, WTMult uint32
	DTPref                uint32
	MaxFileSize           uint64
	TimeDelta             Time
	Properties            uint32
}

// Append appends the result.
func (s *FsinfoRes) Append(b []byte) []byte {
	b = s.Attr.Append(xdr.AppendUint32(b, uint32(s.Status)))
	if s.Status != OK {
		return b
	}
	for _, v := range [...]uint32{s.RTMax, s.RTPref, s.RTMult, s.WTMax, s.WTPref, s.WTMult, s.DTPref} {
		b = xdr.AppendUint32(b, v)
	}
	return xdr.AppendUint32(s.TimeDelta.Append(xdr.AppendUint64(b, s.MaxFileSize)), s.Properties)
}

// Parse takes the result from r.
func (s *FsinfoRes) Parse(r *xdr.Reader) {
	s.Status = Status(r.Uint32())
	s.Attr.Parse(r)
	if s.Status != OK {
		return
	}
	s.RTMax, s.RTPref, s.RTMult = r.Uint32(), r.Uint32(), r.Uint32()
	s.WTMax, s.WTPref, s.WTMult = r.Uint32(), r.Uint32(), r.Uint32()
	s.DTPref, s.MaxFileSize, s.TimeDelta, s.Properties = r.Uint32(), r.Uint64(), parseTime(r), r.Uint32()
}

// PathconfRes is the result of PATHCONF.
type PathconfRes struct {
	Status           Status
	Attr             OptAttr
	LinkMax, NameMax uint32
	NoTrunc          bool
	ChownRestricted  bool
	CaseInsensitive  bool
	CasePreserving   bool
}

// Append appends the result.
func (s *PathconfRes) Append(b []byte) []byte {
	b = s.Attr.Append(xdr.AppendUint32(b, uint32(s.Status)))
	if s.Status != OK {
		return b
	}
	b = xdr.AppendUint32(xdr.AppendUint32(b, s.LinkMax), s.NameMax)
	for _, v := range [...]bool{s.NoTrunc, s.ChownRestricted, s.CaseInsensitive, s.CasePreserving} {
		b = xdr.AppendBool(b, v)
	}
	return b
}

// Parse takes the result from r.
func (s *PathconfRes) Parse(r *xdr.Reader) {
	s.Status = Status(r.Uint32())
	s.Attr.Parse(r)
	if s.Status == OK {
		s.LinkMax, s.NameMax = r.Uint32(), r.Uint32()
		s.NoTrunc, s.ChownRestricted, s.CaseInsensitive, s.CasePreserving = r.Bool(), r.Bool(), r.Bool(), r.Bool()
	}
}
