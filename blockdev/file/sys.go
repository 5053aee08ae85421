package file

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
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
	for c := mem.At(spans, off); n < len(iov); n++ {
		b := c.Next(math.MaxInt)
		if len(b) == 0 {
			break
		}
		iov[n].Base = &b[0]
		iov[n].SetLen(len(b))
		bytes += int64(len(b))
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
			if flags&unix.RWF_DSYNC != 0 {
				return 0, errno // perhaps what the writeback of an earlier write came to, which is said once
			}
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
	// Linux before 6.1 does not tell. The logical block of the disk below is enough for both, and 4096 covers every disk
	// in use; callers with 512-byte blocks go by the 512 that almost every file system takes.
	return 512, 512
}

func rotational(rdev uint64) bool { return blockAttribute(rdev, "queue/rotational") == "1" }

// probeDiscard finds out whether space can be given back, without a change of a single byte: by a hole far behind the end
// of a file, whose last bytes may be a block's beginning, and by what sysfs says of a block device.
func (d *Device) probeDiscard() error {
	d.geo.DiscardUnit, d.geo.DiscardZeroes = max(d.geo.Logical, d.geo.Physical), !d.block
	if d.block {
		granularity, ok := discardGranularity(d.fd)
		if !ok {
			d.noPunch.Store(true)
			d.geo.DiscardUnit = 0
			return nil
		}
		d.geo.DiscardUnit = max(d.geo.Logical, granularity-granularity%d.geo.Logical)
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(d.fd, &st); err != nil {
		return wrap("size of "+d.path, err)
	}
	behind := (st.Size + probeDistance) / probeDistance * probeDistance
	if fallocate(d.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, behind, probeDistance) != nil {
		d.noPunch.Store(true)
		d.noHole.Store(true)
		d.geo.DiscardUnit = 0
	}
	return nil
}

// discardGranularity is a block device's, where it discards at all.
func discardGranularity(fd int) (bytes int, ok bool) {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return 0, false
	}
	number := func(name string) int {
		n, err := strconv.Atoi(blockAttribute(st.Rdev, "queue/"+name))
		if err != nil {
			return 0
		}
		return n
	}
	return number("discard_granularity"), number("discard_max_bytes") > 0
}

// blockAttribute is what sysfs says of a block device, or of the whole disk that a partition is of.
func blockAttribute(rdev uint64, name string) string {
	p := fmt.Sprintf("/sys/dev/block/%d:%d/", unix.Major(rdev), unix.Minor(rdev))
	for _, q := range []string{p + name, p + "../" + name} {
		if b, err := os.ReadFile(q); err == nil {
			return strings.TrimSpace(string(b))
		}
	}
	return ""
}

// blkDiscardRequest is BLKDISCARD of linux/fs.h: _IO(0x12, 119).
const blkDiscardRequest = 0x1277

// blkDiscard is the ioctl.
func blkDiscard(fd int, off, n int64) error {
	what := [2]uint64{uint64(off), uint64(n)}
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), blkDiscardRequest, uintptr(unsafe.Pointer(&what)))
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
			continue
		}
		return errno
	}
}

func fallocate(fd int, mode uint32, off, n int64) error {
	for {
		if err := unix.Fallocate(fd, mode, off, n); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
