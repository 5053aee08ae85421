package filesystem

import "golang.org/x/sys/unix"

// What is known of a file system by its number (statfs(2)).

// File systems of clusters whose numbers linux/magic.h does not have.
const (
	lustreMagic = 0x0bd00bd0
	gfs2Magic   = 0x01161970
	beegfsMagic = 0x19830326
	gpfsMagic   = 0x47504653
)

// mayHang reports a file system whose every call may wait for another machine or process: nothing of it is tried by the
// goroutine that reads a connection.
func mayHang(fd int) bool {
	var st unix.Statfs_t
	if unix.Fstatfs(fd, &st) != nil {
		return true
	}
	switch uint32(st.Type) {
	case unix.FUSE_SUPER_MAGIC, unix.NFS_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC,
		unix.V9FS_MAGIC, unix.CEPH_SUPER_MAGIC, unix.AFS_SUPER_MAGIC, unix.CODA_SUPER_MAGIC, unix.OCFS2_SUPER_MAGIC,
		unix.AUTOFS_SUPER_MAGIC, lustreMagic, gfs2Magic, beegfsMagic, gpfsMagic:
		return true
	}
	return false
}

// inMemory reports a file system that keeps its files in memory alone: at worst a page has been swapped out.
func inMemory(fd int) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(fd, &st) == nil && (uint32(st.Type) == unix.TMPFS_MAGIC || uint32(st.Type) == unix.RAMFS_MAGIC)
}

// blockSize is in what units a file system takes room, bytes; 0 for those that are not known to tell holes from data, in the kernel's
// general answer to SEEK_DATA all of a file is data, and for those that write elsewhere what is written over: btrfs and f2fs take room for it.
func blockSize(fd int) int64 {
	var st unix.Statfs_t
	if unix.Fstatfs(fd, &st) != nil {
		return 0
	}
	switch uint32(st.Type) {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.TMPFS_MAGIC:
	default:
		return 0
	}
	if st.Frsize > 0 {
		return min(st.Frsize, st.Bsize)
	}
	return st.Bsize
}

// shares reports a file system of those that blockSize knows whose files may have blocks in common (ioctl_ficlone(2)): what is written over those
// takes room.
func shares(fd int) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(fd, &st) != nil || uint32(st.Type) == unix.XFS_SUPER_MAGIC
}
