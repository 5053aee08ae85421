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
