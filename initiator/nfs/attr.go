package nfs

import (
	"time"

	"github.com/sluice-storage/sluice/internal/nfs3"
)

// FileType is the kind of a file (ftype3, RFC 1813 section 2.6).
type FileType uint32

// The kinds of files.
const (
	TypeRegular FileType = 1
	TypeDir     FileType = 2
	TypeBlock   FileType = 3
	TypeChar    FileType = 4
	TypeSymlink FileType = 5
	TypeSocket  FileType = 6
	TypeFIFO    FileType = 7
)

// Time is a time as the server keeps it: seconds since 1970, which end in 2106, and nanoseconds.
type Time struct{ Sec, Nsec uint32 }

// Go is the time as the standard library has it.
func (t Time) Go() time.Time { return time.Unix(int64(t.Sec), int64(t.Nsec)) }

// Attr is what the server says of a file (fattr3, RFC 1813 section 2.6).
type Attr struct {
	Type                FileType
	Mode, Nlink         uint32 // Mode holds the permissions alone
	UID, GID            uint32
	Size, Used          uint64 // bytes
	Major, Minor        uint32 // of a device
	FSID, FileID        uint64
	Atime, Mtime, Ctime Time
}

// OptAttr is attributes that a server may leave out.
type OptAttr struct {
	Set  bool
	Attr Attr
}

// Wcc is what a file was before a change and is after it (wcc_data, RFC 1813 section 2.6). A cache stays good if the file was
// before the change what the cache knows of it.
type Wcc struct {
	BeforeSet    bool
	Size         uint64
	Mtime, Ctime Time
	After        OptAttr
}

// TimeHow says where a time to be set comes from (time_how, RFC 1813 section 2.6).
type TimeHow uint32

// The sources of a time.
const (
	DontChange TimeHow = 0
	ServerTime TimeHow = 1
	ClientTime TimeHow = 2
)

// SetTime changes a time, or does not.
type SetTime struct {
	How  TimeHow
	Time Time // with ClientTime
}

// SetAttr says which attributes are to change (sattr3, RFC 1813 section 2.6). The zero value changes nothing.
type SetAttr struct {
	ModeSet, UIDSet, GIDSet, SizeSet bool
	Mode, UID, GID                   uint32
	Size                             uint64
	Atime, Mtime                     SetTime
}

// The rights that Caller.Access asks for, to be joined by or (RFC 1813 section 3.3.4).
const (
	AccessRead    = nfs3.AccessRead
	AccessLookup  = nfs3.AccessLookup
	AccessModify  = nfs3.AccessModify
	AccessExtend  = nfs3.AccessExtend
	AccessDelete  = nfs3.AccessDelete
	AccessExecute = nfs3.AccessExecute
)

func attrOf(a *nfs3.Attr) Attr {
	return Attr{
		Type: FileType(a.Type), Mode: a.Mode, Nlink: a.Nlink, UID: a.UID, GID: a.GID, Size: a.Size, Used: a.Used, Major: a.Major, Minor: a.Minor,
		FSID: a.FSID, FileID: a.FileID, Atime: Time(a.Atime), Mtime: Time(a.Mtime), Ctime: Time(a.Ctime),
	}
}

func optAttrOf(o *nfs3.OptAttr) OptAttr {
	if !o.Set {
		return OptAttr{}
	}
	return OptAttr{Set: true, Attr: attrOf(&o.Attr)}
}

func wccOf(w *nfs3.Wcc) Wcc {
	return Wcc{BeforeSet: w.BeforeSet, Size: w.Size, Mtime: Time(w.Mtime), Ctime: Time(w.Ctime), After: optAttrOf(&w.After)}
}

func (t SetTime) wire() nfs3.SetTime {
	return nfs3.SetTime{How: nfs3.TimeHow(t.How), Time: nfs3.Time(t.Time)}
}

func (s *SetAttr) wire() nfs3.SetAttr {
	return nfs3.SetAttr{
		ModeSet: s.ModeSet, UIDSet: s.UIDSet, GIDSet: s.GIDSet, SizeSet: s.SizeSet, Mode: s.Mode, UID: s.UID, GID: s.GID, Size: s.Size,
		Atime: s.Atime.wire(), Mtime: s.Mtime.wire(),
	}
}
