package filesystem

import "golang.org/x/sys/unix"

// What a WRITE does in its caller's name is to take room, where quotas and what is kept for root bind all but root, and to take the
// set-user-ID bits off the file, which root's leaves on. Whether it may write at all was asked when the file was opened. So one over data
// that is there, in a file without such bits, needs no identity: where adapters are in use that spares it the way to a thread apart and
// back (internal/threads), two switches that cost more than the write of a few pages.

// overData reports such a WRITE. To ask is one system call a block, so only few are asked for.
func (e *Served) overData(fd int, st *unix.Stat_t, off int64, n int) bool {
	end := off + int64(n)
	if e.block <= 0 || st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 || end > st.Size || end-off/e.block*e.block > maxOverData*e.block {
		return false
	}
	if st.Blocks*512 < st.Size {
		return false // it has holes, which ext2's own driver takes for data
	}
	for at := off; at < end; at = (at/e.block + 1) * e.block {
		if data, err := unix.Seek(fd, at, unix.SEEK_DATA); err != nil || data != at {
			return false // a hole, or room that was taken and not used yet
		}
	}
	return true
}

// blockSize is in what units a file system takes room, bytes; 0 for those that are not known to tell holes from data: in the kernel's
// general answer to SEEK_DATA all of a file is data.
func blockSize(fd int) int64 {
	var st unix.Statfs_t
	if unix.Fstatfs(fd, &st) != nil {
		return 0
	}
	switch uint32(st.Type) {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.TMPFS_MAGIC:
	default:
		return 0
	}
	if st.Frsize > 0 {
		return min(st.Frsize, st.Bsize)
	}
	return st.Bsize
}
