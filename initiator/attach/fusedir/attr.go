package fusedir

import (
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/initiator/nfs"
)

var modes = map[nfs.FileType]uint32{
	nfs.TypeRegular: syscall.S_IFREG, nfs.TypeDir: syscall.S_IFDIR, nfs.TypeBlock: syscall.S_IFBLK, nfs.TypeChar: syscall.S_IFCHR,
	nfs.TypeSymlink: syscall.S_IFLNK, nfs.TypeSocket: syscall.S_IFSOCK, nfs.TypeFIFO: syscall.S_IFIFO,
}

// blockSize is what programs are told is a good size for I/O.
const blockSize = 64 << 10

func put(out *fuse.Attr, a *nfs.Attr) {
	*out = fuse.Attr{
		Ino: a.FileID, Size: a.Size, Blocks: (a.Used + 511) / 512, Mode: modes[a.Type] | a.Mode&0o7777, Nlink: a.Nlink,
		Atime: uint64(a.Atime.Sec), Atimensec: a.Atime.Nsec, Mtime: uint64(a.Mtime.Sec), Mtimensec: a.Mtime.Nsec,
		Ctime: uint64(a.Ctime.Sec), Ctimensec: a.Ctime.Nsec, Owner: fuse.Owner{Uid: a.UID, Gid: a.GID}, Blksize: blockSize,
	}
	if a.Type == nfs.TypeBlock || a.Type == nfs.TypeChar {
		out.Rdev = uint32(unix.Mkdev(a.Major, a.Minor)) //nolint:gosec // the kernel's form has 32 bits here
	}
}

func (f *dirFS) entry(out *fuse.EntryOut, n *node, a *nfs.Attr) {
	out.NodeId, out.Generation = n.id, 0
	out.SetEntryTimeout(f.entryFor)
	out.SetAttrTimeout(f.attrFor)
	put(&out.Attr, a)
}

func (f *dirFS) attr(out *fuse.AttrOut, a *nfs.Attr) {
	out.SetTimeout(f.attrFor)
	put(&out.Attr, a)
}

// sattr translates the changes that the kernel asks for. Times before 1970 and after 2106 are not NFS version 3's.
func sattr(in *fuse.SetAttrIn) (nfs.SetAttr, bool) {
	var s nfs.SetAttr
	if m, ok := in.GetMode(); ok {
		s.ModeSet, s.Mode = true, m&0o7777
	}
	if u, ok := in.GetUID(); ok {
		s.UIDSet, s.UID = true, u
	}
	if g, ok := in.GetGID(); ok {
		s.GIDSet, s.GID = true, g
	}
	if n, ok := in.GetSize(); ok {
		s.SizeSet, s.Size = true, n
	}
	set := func(valid, now bool, sec uint64, nsec uint32) (nfs.SetTime, bool) {
		switch {
		case !valid:
			return nfs.SetTime{}, true
		case now:
			return nfs.SetTime{How: nfs.ServerTime}, true
		}
		return nfs.SetTime{How: nfs.ClientTime, Time: nfs.Time{Sec: uint32(sec), Nsec: nsec}}, sec <= 1<<32-1 && nsec < uint32(time.Second)
	}
	var ok1, ok2 bool
	s.Atime, ok1 = set(in.Valid&fuse.FATTR_ATIME != 0, in.Valid&fuse.FATTR_ATIME_NOW != 0, in.Atime, in.Atimensec)
	s.Mtime, ok2 = set(in.Valid&fuse.FATTR_MTIME != 0, in.Valid&fuse.FATTR_MTIME_NOW != 0, in.Mtime, in.Mtimensec)
	return s, ok1 && ok2
}
