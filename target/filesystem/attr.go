package filesystem

import (
	"golang.org/x/sys/unix"
)

// Attr are the attributes of a file.
type Attr struct {
	Known               bool   // false where they could not be had
	Format              uint32 // S_IFMT
	Mode                uint32 // permissions, set-ID and sticky bits
	Nlink               uint32
	UID, GID            uint32
	Size, Used          uint64 // bytes
	Major, Minor        uint32 // of a device
	Export              uint32 // the export's ID: the device's number may change from day to day
	Inode               uint64
	Atime, Mtime, Ctime unix.Timespec
}

func (a *Attr) fill(e *Served, st *unix.Stat_t) {
	a.Known = true
	a.Format, a.Mode, a.Nlink, a.UID, a.GID = st.Mode&unix.S_IFMT, st.Mode&0o7777, uint32(st.Nlink), st.Uid, st.Gid
	a.Size, a.Used = uint64(st.Size), uint64(st.Blocks)*512
	a.Major, a.Minor = unix.Major(st.Rdev), unix.Minor(st.Rdev)
	a.Export, a.Inode = e.ID, st.Ino
	a.Atime, a.Mtime, a.Ctime = st.Atim, st.Mtim, st.Ctim
}

// Change is what a file was before an operation and is after it. Nothing of this server's comes between.
type Change struct {
	Known        bool // of what was before
	Size         uint64
	Mtime, Ctime unix.Timespec
	After        Attr
}

func (c *Change) before(st *unix.Stat_t) {
	c.Known, c.Size, c.Mtime, c.Ctime = true, uint64(st.Size), st.Mtim, st.Ctim
}

// TimeHow says where a time to set comes from.
type TimeHow uint8

// KeepTime leaves a time, TimeNow sets it to this machine's, TimeGiven to the caller's.
const (
	KeepTime TimeHow = iota
	TimeNow
	TimeGiven
)

// SetTime is a time to set.
type SetTime struct {
	How  TimeHow
	Time unix.Timespec // with TimeGiven
}

func (t SetTime) timespec() unix.Timespec {
	switch t.How {
	case TimeNow:
		return unix.Timespec{Nsec: unix.UTIME_NOW}
	case TimeGiven:
		return unix.Timespec{Sec: t.Time.Sec, Nsec: min(t.Time.Nsec, 999_999_999)}
	}
	return unix.Timespec{Nsec: unix.UTIME_OMIT}
}

// SetAttr is what is to change of a file's attributes.
type SetAttr struct {
	ModeSet, UIDSet, GIDSet, SizeSet bool
	Mode, UID, GID                   uint32
	Size                             uint64
	Atime, Mtime                     SetTime
}

// Stability is what must be durable before a write returns.
type Stability uint8

// Unstable data is durable after Commit, DataSync with the write, FileSync with the write and its attributes too.
const (
	Unstable Stability = iota
	DataSync
	FileSync
)
