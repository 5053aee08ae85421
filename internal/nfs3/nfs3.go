// Package nfs3 is the wire form of NFS version 3 (RFC 1813): arguments and results of all 22 procedures, each with an
// Append and a Parse. Handles, names and data that Parse returns alias the message.
package nfs3

import (
	"fmt"
	"io/fs"
	"strings"

	"github.com/sluice-storage/sluice/internal/xdr"
)

// Program and version (RFC 1813 section 2).
const (
	Prog = 100003
	Vers = 3
)

// Proc is a procedure number.
type Proc uint32

// The procedures (RFC 1813 section 3.3).
const (
	ProcNull Proc = iota
	ProcGetattr
	ProcSetattr
	ProcLookup
	ProcAccess
	ProcReadlink
	ProcRead
	ProcWrite
	ProcCreate
	ProcMkdir
	ProcSymlink
	ProcMknod
	ProcRemove
	ProcRmdir
	ProcRename
	ProcLink
	ProcReaddir
	ProcReaddirplus
	ProcFsstat
	ProcFsinfo
	ProcPathconf
	ProcCommit
	NumProcs
)

var procNames = [NumProcs]string{"NULL", "GETATTR", "SETATTR", "LOOKUP", "ACCESS", "READLINK", "READ", "WRITE", "CREATE", "MKDIR",
	"SYMLINK", "MKNOD", "REMOVE", "RMDIR", "RENAME", "LINK", "READDIR", "READDIRPLUS", "FSSTAT", "FSINFO", "PATHCONF", "COMMIT"}

func (p Proc) String() string {
	if p < NumProcs {
		return procNames[p]
	}
	return fmt.Sprintf("procedure %d", uint32(p))
}

// Status is an nfsstat3. As an error it matches the fs sentinels.
type Status uint32

// The status values (RFC 1813 section 2.6).
const (
	OK             Status = 0
	ErrPerm        Status = 1
	ErrNoent       Status = 2
	ErrIO          Status = 5
	ErrNxio        Status = 6
	ErrAcces       Status = 13
	ErrExist       Status = 17
	ErrXdev        Status = 18
	ErrNodev       Status = 19
	ErrNotdir      Status = 20
	ErrIsdir       Status = 21
	ErrInval       Status = 22
	ErrFbig        Status = 27
	ErrNospc       Status = 28
	ErrRofs        Status = 30
	ErrMlink       Status = 31
	ErrNametoolong Status = 63
	ErrNotempty    Status = 66
	ErrDquot       Status = 69
	ErrStale       Status = 70
	ErrRemote      Status = 71
	ErrBadhandle   Status = 10001
	ErrNotSync     Status = 10002
	ErrBadCookie   Status = 10003
	ErrNotsupp     Status = 10004
	ErrToosmall    Status = 10005
	ErrServerfault Status = 10006
	ErrBadtype     Status = 10007
	ErrJukebox     Status = 10008
)

var statusNames = map[Status]string{
	OK: "NFS3_OK", ErrPerm: "NFS3ERR_PERM: only the owner may do this", ErrNoent: "NFS3ERR_NOENT: no such file or directory",
	ErrIO: "NFS3ERR_IO: the server's medium failed", ErrNxio: "NFS3ERR_NXIO: no such device", ErrAcces: "NFS3ERR_ACCES: permission denied",
	ErrExist: "NFS3ERR_EXIST: the file exists", ErrXdev: "NFS3ERR_XDEV: not on one file system", ErrNodev: "NFS3ERR_NODEV: no such device",
	ErrNotdir: "NFS3ERR_NOTDIR: not a directory", ErrIsdir: "NFS3ERR_ISDIR: is a directory", ErrInval: "NFS3ERR_INVAL: invalid argument",
	ErrFbig: "NFS3ERR_FBIG: the file would be too large", ErrNospc: "NFS3ERR_NOSPC: no space left", ErrRofs: "NFS3ERR_ROFS: exported read-only",
	ErrMlink: "NFS3ERR_MLINK: too many links", ErrNametoolong: "NFS3ERR_NAMETOOLONG: the name is too long",
	ErrNotempty: "NFS3ERR_NOTEMPTY: the directory is not empty", ErrDquot: "NFS3ERR_DQUOT: quota exceeded",
	ErrStale: "NFS3ERR_STALE: the file is gone", ErrRemote: "NFS3ERR_REMOTE: too many levels of remote",
	ErrBadhandle: "NFS3ERR_BADHANDLE: the server does not know this file handle", ErrNotSync: "NFS3ERR_NOT_SYNC: the file changed meanwhile",
	ErrBadCookie: "NFS3ERR_BAD_COOKIE: the directory cookie is stale", ErrNotsupp: "NFS3ERR_NOTSUPP: not supported",
	ErrToosmall: "NFS3ERR_TOOSMALL: the buffer is too small", ErrServerfault: "NFS3ERR_SERVERFAULT: the server failed",
	ErrBadtype: "NFS3ERR_BADTYPE: this type cannot be made", ErrJukebox: "NFS3ERR_JUKEBOX: try again later",
}

func (s Status) Error() string {
	if n, ok := statusNames[s]; ok {
		return "nfs: " + n
	}
	return fmt.Sprintf("nfs: status %d", uint32(s))
}

// Name is the status in the RFC's words: "NFS3ERR_NOENT".
func (s Status) Name() string {
	name, _, _ := strings.Cut(statusNames[s], ":")
	if name == "" {
		return fmt.Sprint(uint32(s))
	}
	return name
}

// Is makes errors.Is(err, fs.ErrNotExist) and the like work.
func (s Status) Is(target error) bool {
	switch target {
	case fs.ErrNotExist:
		return s == ErrNoent || s == ErrStale
	case fs.ErrExist:
		return s == ErrExist || s == ErrNotempty
	case fs.ErrPermission:
		return s == ErrPerm || s == ErrAcces || s == ErrRofs
	case fs.ErrInvalid:
		return s == ErrInval
	}
	return false
}

// FileType is an ftype3 (RFC 1813 section 2.6).
type FileType uint32

// The file types.
const (
	TypeReg  FileType = 1
	TypeDir  FileType = 2
	TypeBlk  FileType = 3
	TypeChr  FileType = 4
	TypeLnk  FileType = 5
	TypeSock FileType = 6
	TypeFifo FileType = 7
)

// Time is an nfstime3.
type Time struct{ Sec, Nsec uint32 }

// Append appends the time.
func (t Time) Append(b []byte) []byte { return xdr.AppendUint32(xdr.AppendUint32(b, t.Sec), t.Nsec) }

func parseTime(r *xdr.Reader) Time { return Time{Sec: r.Uint32(), Nsec: r.Uint32()} }

// Attr is a fattr3 (RFC 1813 section 2.6), 84 bytes on the wire.
type Attr struct {
	Type                FileType
	Mode, Nlink         uint32
	UID, GID            uint32
	Size, Used          uint64
	Major, Minor        uint32 // of a device
	FSID, FileID        uint64
	Atime, Mtime, Ctime Time
}

// Append appends the attributes.
func (a *Attr) Append(b []byte) []byte {
	b = xdr.AppendUint32(b, uint32(a.Type))
	b = xdr.AppendUint32(b, a.Mode)
	b = xdr.AppendUint32(b, a.Nlink)
	b = xdr.AppendUint32(b, a.UID)
	b = xdr.AppendUint32(b, a.GID)
	b = xdr.AppendUint64(b, a.Size)
	b = xdr.AppendUint64(b, a.Used)
	b = xdr.AppendUint32(b, a.Major)
	b = xdr.AppendUint32(b, a.Minor)
	b = xdr.AppendUint64(b, a.FSID)
	b = xdr.AppendUint64(b, a.FileID)
	return a.Ctime.Append(a.Mtime.Append(a.Atime.Append(b)))
}

// Parse takes attributes from r.
func (a *Attr) Parse(r *xdr.Reader) {
	a.Type = FileType(r.Enum("ftype3", uint32(TypeFifo)))
	a.Mode, a.Nlink, a.UID, a.GID = r.Uint32(), r.Uint32(), r.Uint32(), r.Uint32()
	a.Size, a.Used = r.Uint64(), r.Uint64()
	a.Major, a.Minor = r.Uint32(), r.Uint32()
	a.FSID, a.FileID = r.Uint64(), r.Uint64()
	a.Atime, a.Mtime, a.Ctime = parseTime(r), parseTime(r), parseTime(r)
}

// OptAttr is a post_op_attr.
type OptAttr struct {
	Set  bool
	Attr Attr
}

// Append appends the post_op_attr.
func (o *OptAttr) Append(b []byte) []byte {
	b = xdr.AppendBool(b, o.Set)
	if o.Set {
		b = o.Attr.Append(b)
	}
	return b
}

// Parse takes a post_op_attr from r.
func (o *OptAttr) Parse(r *xdr.Reader) {
	*o = OptAttr{Set: r.Bool()}
	if o.Set {
		o.Attr.Parse(r)
	}
}

// Wcc is a wcc_data: what a file was before an operation and is after it (RFC 1813 section 2.6).
type Wcc struct {
	BeforeSet    bool
	Size         uint64
	Mtime, Ctime Time
	After        OptAttr
}

// Append appends the wcc_data.
func (w *Wcc) Append(b []byte) []byte {
	b = xdr.AppendBool(b, w.BeforeSet)
	if w.BeforeSet {
		b = w.Ctime.Append(w.Mtime.Append(xdr.AppendUint64(b, w.Size)))
	}
	return w.After.Append(b)
}

// Parse takes a wcc_data from r.
func (w *Wcc) Parse(r *xdr.Reader) {
	*w = Wcc{BeforeSet: r.Bool()}
	if w.BeforeSet {
		w.Size, w.Mtime, w.Ctime = r.Uint64(), parseTime(r), parseTime(r)
	}
	w.After.Parse(r)
}

// OptFH is a post_op_fh3; nil is none.
type OptFH []byte

// Append appends the post_op_fh3.
func (f OptFH) Append(b []byte) []byte {
	b = xdr.AppendBool(b, f != nil)
	if f != nil {
		b = xdr.AppendOpaque(b, f)
	}
	return b
}

func parseOptFH(r *xdr.Reader) OptFH {
	if r.Bool() {
		return r.Opaque(MaxFH)
	}
	return nil
}

// TimeHow says where a time to set comes from.
type TimeHow uint32

// The values of time_how (RFC 1813 section 2.6).
const (
	DontChange TimeHow = 0
	ServerTime TimeHow = 1
	ClientTime TimeHow = 2
)

// SetTime is a set_atime or set_mtime.
type SetTime struct {
	How  TimeHow
	Time Time // with ClientTime
}

func (t SetTime) append(b []byte) []byte {
	b = xdr.AppendUint32(b, uint32(t.How))
	if t.How == ClientTime {
		b = t.Time.Append(b)
	}
	return b
}

func parseSetTime(r *xdr.Reader) SetTime {
	t := SetTime{How: TimeHow(r.Enum("time_how", uint32(ClientTime)))}
	if t.How == ClientTime {
		t.Time = parseTime(r)
	}
	return t
}

// SetAttr is a sattr3: what is to change.
type SetAttr struct {
	ModeSet, UIDSet, GIDSet, SizeSet bool
	Mode, UID, GID                   uint32
	Size                             uint64
	Atime, Mtime                     SetTime
}

// Append appends the sattr3.
func (s *SetAttr) Append(b []byte) []byte {
	b = appendOpt32(b, s.ModeSet, s.Mode)
	b = appendOpt32(b, s.UIDSet, s.UID)
	b = appendOpt32(b, s.GIDSet, s.GID)
	b = xdr.AppendBool(b, s.SizeSet)
	if s.SizeSet {
		b = xdr.AppendUint64(b, s.Size)
	}
	return s.Mtime.append(s.Atime.append(b))
}

// Parse takes a sattr3 from r.
func (s *SetAttr) Parse(r *xdr.Reader) {
	*s = SetAttr{}
	s.Mode, s.ModeSet = parseOpt32(r)
	s.UID, s.UIDSet = parseOpt32(r)
	s.GID, s.GIDSet = parseOpt32(r)
	if s.SizeSet = r.Bool(); s.SizeSet {
		s.Size = r.Uint64()
	}
	s.Atime, s.Mtime = parseSetTime(r), parseSetTime(r)
}

func appendOpt32(b []byte, set bool, v uint32) []byte {
	b = xdr.AppendBool(b, set)
	if set {
		b = xdr.AppendUint32(b, v)
	}
	return b
}

func parseOpt32(r *xdr.Reader) (uint32, bool) {
	if r.Bool() {
		return r.Uint32(), true
	}
	return 0, false
}

// DirOp is a diropargs3: a name in a directory.
type DirOp struct{ Dir, Name []byte }

// Append appends the diropargs3.
func (d *DirOp) Append(b []byte) []byte { return xdr.AppendOpaque(xdr.AppendOpaque(b, d.Dir), d.Name) }

// Parse takes a diropargs3 from r.
func (d *DirOp) Parse(r *xdr.Reader) { d.Dir, d.Name = r.Opaque(MaxFH), r.Opaque(MaxName) }
