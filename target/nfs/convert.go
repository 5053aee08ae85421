package nfs

import (
	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/target/filesystem"
)

// statusOf is the status of NFS version 3 that stands for an error of the file system (RFC 1813 section 2.6).
func statusOf(e filesystem.Errno) nfs3.Status {
	switch e {
	case filesystem.OK:
		return nfs3.OK
	case filesystem.ErrBadHandle:
		return nfs3.ErrBadhandle
	case filesystem.ErrChanged:
		return nfs3.ErrNotSync
	case filesystem.ErrBadCookie:
		return nfs3.ErrBadCookie
	case filesystem.ErrBadType:
		return nfs3.ErrBadtype
	case filesystem.ErrFault:
		return nfs3.ErrServerfault
	case filesystem.ErrLater:
		return nfs3.ErrJukebox
	}
	switch no := unix.Errno(e); no {
	case unix.EPERM, unix.ENOENT, unix.EIO, unix.ENXIO, unix.EACCES, unix.EEXIST, unix.ENODEV, unix.ENOTDIR, unix.EISDIR,
		unix.EINVAL, unix.EFBIG, unix.ENOSPC, unix.EROFS, unix.EMLINK:
		return nfs3.Status(no) // the RFC took these numbers from UNIX
	case unix.EXDEV:
		return nfs3.ErrXdev
	case unix.ENAMETOOLONG:
		return nfs3.ErrNametoolong
	case unix.ENOTEMPTY:
		return nfs3.ErrNotempty
	case unix.EDQUOT:
		return nfs3.ErrDquot
	case unix.ESTALE:
		return nfs3.ErrStale
	case unix.EOPNOTSUPP, unix.ENOSYS:
		return nfs3.ErrNotsupp
	case unix.ELOOP:
		return nfs3.ErrInval
	case unix.ETXTBSY:
		return nfs3.ErrAcces
	case unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EAGAIN, unix.EBUSY:
		return nfs3.ErrJukebox
	case unix.ENOBUFS, unix.EOVERFLOW:
		return nfs3.ErrServerfault
	}
	return nfs3.ErrIO
}

func timeOf(t unix.Timespec) nfs3.Time { return nfs3.Time{Sec: uint32(t.Sec), Nsec: uint32(t.Nsec)} }

func typeOf(format uint32) nfs3.FileType {
	switch format {
	case unix.S_IFDIR:
		return nfs3.TypeDir
	case unix.S_IFBLK:
		return nfs3.TypeBlk
	case unix.S_IFCHR:
		return nfs3.TypeChr
	case unix.S_IFLNK:
		return nfs3.TypeLnk
	case unix.S_IFSOCK:
		return nfs3.TypeSock
	case unix.S_IFIFO:
		return nfs3.TypeFifo
	}
	return nfs3.TypeReg
}

// attrOf is a fattr3. The file system's ID is the export's.
func attrOf(a *filesystem.Attr, to *nfs3.Attr) {
	to.Type, to.Mode, to.Nlink, to.UID, to.GID = typeOf(a.Format), a.Mode, a.Nlink, a.UID, a.GID
	to.Size, to.Used, to.Major, to.Minor = a.Size, a.Used, a.Major, a.Minor
	to.FSID, to.FileID = uint64(a.Export), a.Inode
	to.Atime, to.Mtime, to.Ctime = timeOf(a.Atime), timeOf(a.Mtime), timeOf(a.Ctime)
}

// postOf is a post_op_attr.
func postOf(a *filesystem.Attr, to *nfs3.OptAttr) {
	if to.Set = a.Known; a.Known {
		attrOf(a, &to.Attr)
	}
}

// after is the post_op_attr of an object as it is now.
func after(o *filesystem.Object, to *nfs3.OptAttr) {
	var a filesystem.Attr
	o.After(&a)
	postOf(&a, to)
}

// wccOf is a wcc_data.
func wccOf(c *filesystem.Change, to *nfs3.Wcc) {
	if to.BeforeSet = c.Known; c.Known {
		to.Size, to.Mtime, to.Ctime = c.Size, timeOf(c.Mtime), timeOf(c.Ctime)
	}
	postOf(&c.After, &to.After)
}

func setAttrOf(a *nfs3.SetAttr) filesystem.SetAttr {
	return filesystem.SetAttr{ModeSet: a.ModeSet, UIDSet: a.UIDSet, GIDSet: a.GIDSet, SizeSet: a.SizeSet, Mode: a.Mode, UID: a.UID, GID: a.GID, Size: a.Size,
		Atime: setTimeOf(a.Atime), Mtime: setTimeOf(a.Mtime)}
}

func setTimeOf(t nfs3.SetTime) filesystem.SetTime {
	switch t.How {
	case nfs3.ServerTime:
		return filesystem.SetTime{How: filesystem.TimeNow}
	case nfs3.ClientTime:
		return filesystem.SetTime{How: filesystem.TimeGiven, Time: unix.Timespec{Sec: int64(t.Time.Sec), Nsec: int64(t.Time.Nsec)}}
	}
	return filesystem.SetTime{}
}

func stabilityOf(s nfs3.Stable) filesystem.Stability {
	switch s {
	case nfs3.DataSync:
		return filesystem.DataSync
	case nfs3.FileSync:
		return filesystem.FileSync
	}
	return filesystem.Unstable
}
