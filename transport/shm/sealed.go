package shm

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// UnsealedError is why memory that a peer offers is refused. A mapping of a file that can be cut short, or that has holes, may raise
// SIGBUS or take memory of this process, whenever the peer likes.
type UnsealedError struct{ Why string }

func (e *UnsealedError) Error() string {
	return "shm: memory that the peer shares is refused: " + e.Why
}

var errNoMemoryFile = &UnsealedError{"it is no file of ordinary memory (memfd_create)"}

const wantSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE

// mapSealed maps size bytes of a peer's file to read, and closes the descriptor.
func mapSealed(fd int, size uint64) ([]byte, error) {
	b, err := mapFile(fd, size)
	closeAll([]int{fd})
	return b, err
}

func mapFile(fd int, size uint64) ([]byte, error) {
	// First of all, because it asks no file system: with FUSE fstat(2) waits for a process, which may be the peer.
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, errNoMemoryFile
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return nil, err
	}
	// Huge pages may not be there when they are touched, and a mapping without them raises SIGBUS.
	if st.Mode&unix.S_IFMT != unix.S_IFREG || int64(fs.Type) != unix.TMPFS_MAGIC { //nolint:unconvert // 32 bits wide on some machines
		return nil, errNoMemoryFile
	}
	if seals&wantSeals != wantSeals {
		return nil, &UnsealedError{fmt.Sprintf("its seals are 0x%x, and SEAL_SHRINK, SEAL_GROW and SEAL_FUTURE_WRITE (0x%x) are needed", seals, wantSeals)}
	}
	// What cannot be written any more cannot be emptied any more either (fallocate(2)): what is there now stays.
	switch {
	case size == 0 || uint64(st.Size) != size:
		return nil, &UnsealedError{fmt.Sprintf("it has %d bytes where the peer says %d", st.Size, size)}
	case uint64(st.Blocks)*512 < size:
		return nil, &UnsealedError{fmt.Sprintf("%d of its %d bytes are holes", size-uint64(st.Blocks)*512, size)}
	}
	return syscall.Mmap(fd, 0, int(size), syscall.PROT_READ, syscall.MAP_SHARED)
}

func unmap(b []byte) {
	if b != nil {
		_ = syscall.Munmap(b) // fails for what is no mapping, and this is one
	}
}
