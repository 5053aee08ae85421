package filesystem

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

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
	return !e.shares || alone(fd, off, n)
}

// fiemap is what FS_IOC_FIEMAP takes and gives (linux/fiemap.h).
type fiemap struct {
	start, length          uint64
	flags, mapped, room, _ uint32
	extents                [maxExtents]struct {
		logical, physical, length uint64
		_                         [2]uint64
		flags                     uint32
		_                         [3]uint32
	}
}

const (
	ioctlFiemap  = 0xc020660b // _IOWR('f', 11, struct fiemap)
	extentShared = 0x2000     // of an extent's flags: it is another file's too
)

// alone reports that the file has extents for all of n bytes at off, and shares none with another.
func alone(fd int, off int64, n int) bool {
	m := fiemap{start: uint64(off), length: uint64(n), room: maxExtents}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), ioctlFiemap, uintptr(unsafe.Pointer(&m))); e != 0 || m.mapped > maxExtents {
		return false
	}
	at, end := uint64(off), uint64(off)+uint64(n)
	for _, x := range m.extents[:m.mapped] {
		if x.logical > at || x.flags&extentShared != 0 {
			return false
		}
		at = max(at, x.logical+x.length)
	}
	return at >= end
}
