package filesystem

import (
	"encoding/binary"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// openBeneath opens one name of a directory as a path descriptor. It follows no symbolic link and crosses no mount: a
// mounted file system is another export's business, and its handles could not be told from this one's.
func openBeneath(dir int, name string) (int, error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
	fd, err := unix.Openat2(dir, name, &how)
	if err == unix.ENOSYS || err == unix.EPERM {
		// Before Linux 5.6, and under seccomp filters that do not know it. The name is one component, so that
		// O_NOFOLLOW is enough; only the mount has to be looked at.
		return openBeneathOld(dir, name)
	}
	return fd, err
}

func openBeneathOld(dir int, name string) (int, error) {
	if strings.ContainsRune(name, '/') || name == ".." {
		return -1, unix.EXDEV
	}
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	var a, b unix.Stat_t
	if unix.Fstat(dir, &a) != nil || unix.Fstat(fd, &b) != nil || a.Dev != b.Dev {
		_ = unix.Close(fd)
		return -1, unix.EXDEV
	}
	return fd, nil
}

// openPath walks a relative path, for MOUNT.
func openPath(root int, path string) (int, error) {
	fd, err := unix.Openat(root, ".", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for _, name := range strings.Split(path, "/") {
		if err != nil {
			return -1, err
		}
		if name == "" || name == "." {
			continue
		}
		if name == ".." {
			_ = unix.Close(fd)
			return -1, unix.EACCES
		}
		var next int
		next, err = openBeneath(fd, name)
		_ = unix.Close(fd)
		fd = next
	}
	return fd, err
}

// procPath is the name under which a path descriptor can be opened for reading or writing, or changed. The kernel checks
// the rights of the calling thread's identity there.
func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// access asks the kernel, for the calling thread's file system identity (faccessat2, Linux 5.8). An error says that the
// kernel cannot tell.
func access(fd int, mode uint32) (bool, error) {
	empty := [1]byte{}
	_, _, e := syscall.Syscall6(unix.SYS_FACCESSAT2, uintptr(fd), uintptr(unsafe.Pointer(&empty[0])), uintptr(mode), unix.AT_EMPTY_PATH|unix.AT_EACCESS, 0, 0)
	switch e {
	case 0:
		return true, nil
	case unix.EACCES, unix.EPERM, unix.EROFS, unix.ETXTBSY:
		return false, nil
	}
	return false, e
}

// preadv2 and pwritev2 at one offset over a few buffers, without allocation.
func rwv2(trap uintptr, fd int, bufs [][]byte, n int, off int64, flags int) (int, error) {
	var iovs [20]unix.Iovec
	k := 0
	left := n
	for _, b := range bufs {
		if left == 0 || k == len(iovs) {
			break
		}
		b = b[:min(len(b), left)]
		if len(b) == 0 {
			continue
		}
		iovs[k].Base = unsafe.SliceData(b)
		iovs[k].SetLen(len(b))
		left -= len(b)
		k++
	}
	for {
		r, _, e := syscall.Syscall6(trap, uintptr(fd), uintptr(unsafe.Pointer(&iovs[0])), uintptr(k), uintptr(off), 0, uintptr(flags))
		runtime.KeepAlive(bufs)
		switch e {
		case 0:
			return int(r), nil
		case syscall.EINTR:
			continue
		}
		return 0, e
	}
}

// dirents reads the records of getdents64.
type dirents struct{ b []byte }

// next reports whether there is another record; it does not move.
func (d *dirents) next() bool { return len(d.b) >= 19 }

func (d *dirents) skip() { d.b = d.b[binary.NativeEndian.Uint16(d.b[16:]):] }

func (d *dirents) ino() uint64 { return binary.NativeEndian.Uint64(d.b) }

// off is the position after this record: what lseek takes to go on.
func (d *dirents) off() uint64 { return binary.NativeEndian.Uint64(d.b[8:]) }

func (d *dirents) typ() byte { return d.b[18] }

func (d *dirents) name() []byte {
	n := d.b[19:binary.NativeEndian.Uint16(d.b[16:])]
	for i, c := range n {
		if c == 0 {
			return n[:i]
		}
	}
	return n
}
