package file

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/mem"
)

// wrap gives an error of the system the meaning that all engines share.
func wrap(what string, err error) error {
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EFBIG):
		return fmt.Errorf("%w: %s: %w", blockdev.ErrNoSpace, what, err)
	case errors.Is(err, unix.EIO), errors.Is(err, unix.EREMOTEIO), errors.Is(err, unix.ENODATA), errors.Is(err, unix.EUCLEAN):
		return fmt.Errorf("%w: %s: %w", blockdev.ErrMedium, what, err)
	}
	return fmt.Errorf("blockdev/file: %s: %w", what, err)
}

// vector fills iov with the part of spans that begins at byte off, and returns how many entries and bytes that is.
func vector(iov []unix.Iovec, spans []mem.Span, off int64) (n int, bytes int64) {
	for i := range spans {
		if n == len(iov) {
			break
		}
		l := int64(spans[i].Len)
		if off >= l {
			off -= l
			continue
		}
		b := spans[i].Bytes()[off:]
		iov[n].Base = &b[0]
		iov[n].SetLen(len(b))
		n, bytes, off = n+1, bytes+int64(len(b)), 0
	}
	return n, bytes
}

// vectored is preadv2 or pwritev2 on iov at off. x/sys would allocate its own copy of the iovec.
func vectored(trap uintptr, fd int, iov []unix.Iovec, off int64, flags int) (int64, error) {
	for {
		// The offset goes as two longs, low and high; on 64 bits the high one is shifted out (pwritev2(2)).
		n, _, errno := unix.Syscall6(trap, uintptr(fd), uintptr(unsafe.Pointer(&iov[0])), uintptr(len(iov)),
			uintptr(off), uintptr(off>>32), uintptr(flags))
		switch errno {
		case 0:
			return int64(n), nil
		case unix.EINTR:
			continue
		}
		return 0, errno
	}
}

// alignment is what O_DIRECT wants of memory and of offsets.
func alignment(fd int) (memory, offset int) {
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &st); err == nil &&
		st.Mask&unix.STATX_DIOALIGN != 0 && st.Dio_mem_align > 0 {
		return int(st.Dio_mem_align), int(st.Dio_offset_align)
	}
	// Before Linux 6.1 nobody tells. The logical block of the disk below is enough for both, and 4096 covers every disk
	// in use; callers with 512-byte blocks go by the 512 that almost every file system takes.
	return 512, 512
}

func rotational(rdev uint64) bool {
	p := fmt.Sprintf("/sys/dev/block/%d:%d/", unix.Major(rdev), unix.Minor(rdev))
	for _, q := range []string{p + "queue/rotational", p + "../queue/rotational"} {
		if b, err := os.ReadFile(q); err == nil {
			return strings.TrimSpace(string(b)) == "1"
		}
	}
	return false
}

// probeDiscard punches a hole beyond the end of a file, where there is nothing to lose.
func (d *Device) probeDiscard() {
	d.geo.DiscardUnit = max(d.geo.Logical, d.geo.Physical)
	if d.block {
		return // found out by the first discard
	}
	err := fallocate(d.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, d.size.Load(), int64(d.geo.Physical))
	if err != nil {
		d.noPunch.Store(true)
		d.geo.DiscardUnit = 0
	}
}

func fallocate(fd int, mode uint32, off, n int64) error {
	for {
		if err := unix.Fallocate(fd, mode, off, n); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
