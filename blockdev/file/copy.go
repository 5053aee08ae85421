package file

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
)

var _ blockdev.Cloner = (*Device)(nil)

// devices numbers the open devices.
var devices atomic.Uint64

// CopyRange implements blockdev.RangeCopier between files: their blocks are shared where the file system can do that, and
// else copied by the kernel, holes as holes.
func (d *Device) CopyRange(to blockdev.Device, from, at, n int64) (int64, error) {
	o, ok := to.(*Device)
	if !ok || d.block || o.block || d.thick || o.thick {
		return 0, blockdev.ErrUnsupported // the room of a thick file is its own: nothing is shared with it or punched out
	}
	if err := d.use(); err != nil {
		return 0, err
	}
	defer d.running.Done()
	if err := o.use(); err != nil {
		return 0, err
	}
	defer o.running.Done()
	block := int64(max(d.geo.Logical, o.geo.Logical))
	switch {
	case o.geo.ReadOnly:
		return 0, blockdev.ErrReadOnly
	case from < 0 || at < 0 || n < 0 || from > d.size.Load()-n || at > o.size.Load()-n || from%block != 0 || at%block != 0 || n%block != 0:
		return 0, blockdev.ErrRange
	case d == o && from < at+n && at < from+n:
		return 0, blockdev.ErrUnsupported
	case n == 0:
		return 0, nil
	}
	defer d.lockBoth(o, from, at, n)()
	if err := errors.Join(d.halted(), o.halted()); err != nil {
		return 0, err
	}
	if !d.noClone.Load() {
		err := unix.IoctlFileCloneRange(o.fd, &unix.FileCloneRange{Src_fd: int64(d.fd), Src_offset: uint64(from), Src_length: uint64(n), Dest_offset: uint64(at)})
		switch {
		case err == nil:
			return n, nil
		case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOTTY), errors.Is(err, unix.ENOSYS):
			d.noClone.Store(true) // EXDEV and EINVAL are about this pair and this range only
		}
	}
	return d.copyExtents(o, from, at, n)
}

// Clone implements blockdev.Cloner.
func (d *Device) Clone(dst *os.File) error {
	if d.block || d.thick {
		return blockdev.ErrUnsupported // a write to a shared block has to find room, which a thick file has promised
	}
	if err := d.use(); err != nil {
		return err
	}
	defer d.running.Done()
	size := d.size.Load()
	d.locks.RLock(0, size)
	defer d.locks.RUnlock(0, size)
	if err := d.halted(); err != nil {
		return err
	}
	err := unix.IoctlFileClone(int(dst.Fd()), d.fd)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOTTY), errors.Is(err, unix.EXDEV), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w: clone: %w", blockdev.ErrUnsupported, err)
	}
	return wrap("clone", err)
}

// lockBoth keeps compare-and-writes and atomic writes off both ranges. Two copies in opposite directions take their locks
// in the same order; one file's ranges are locked as one, because a lock must not be taken twice.
func (d *Device) lockBoth(o *Device, from, at, n int64) (unlock func()) {
	if d == o {
		first := min(from, at)
		size := max(from, at) + n - first
		d.locks.RLock(first, size)
		return func() { d.locks.RUnlock(first, size) }
	}
	if d.seq < o.seq {
		d.locks.RLock(from, n)
		o.locks.RLock(at, n)
	} else {
		o.locks.RLock(at, n)
		d.locks.RLock(from, n)
	}
	return func() {
		d.locks.RUnlock(from, n)
		o.locks.RUnlock(at, n)
	}
}

func (d *Device) copyExtents(o *Device, from, at, n int64) (done int64, err error) {
	for done < n {
		if d.closing.Load() || o.closing.Load() {
			return done, blockdev.ErrClosed
		}
		data, end, err := d.dataFrom(from+done, from+n)
		if err != nil {
			return done, err
		}
		if hole := data - (from + done); hole > 0 {
			if err := o.zero(at+done, hole); err != nil {
				return done, err
			}
			done += hole
		}
		for pos := from + done; pos < end && !d.closing.Load() && !o.closing.Load(); {
			src, dst := pos, at+done
			k, err := unix.CopyFileRange(d.fd, &src, o.fd, &dst, int(min(end-pos, maxCopy)), 0)
			switch {
			case errors.Is(err, unix.EINTR):
				continue
			case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
				return done, blockdev.ErrUnsupported
			case err != nil:
				return done, wrap(fmt.Sprintf("copy of %d bytes to %d", end-pos, at+done), err)
			case k == 0:
				return done, fmt.Errorf("%w: copy at %d: %w", blockdev.ErrMedium, pos, io.ErrUnexpectedEOF)
			}
			pos, done = pos+int64(k), done+int64(k)
		}
	}
	return done, nil
}

// dataFrom finds the first data in [off, limit) and its end; both are limit where there is none.
func (d *Device) dataFrom(off, limit int64) (data, end int64, err error) {
	data, err = unix.Seek(d.fd, off, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		data = math.MaxInt64
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return off, limit, nil // a file system that does not know its holes
	case err != nil:
		return 0, 0, wrap("holes", err)
	}
	if data >= limit {
		return limit, limit, nil
	}
	end, err = unix.Seek(d.fd, data, unix.SEEK_HOLE)
	if err != nil {
		return 0, 0, wrap("holes", err)
	}
	if end <= data {
		end = limit // punched in between
	}
	return data, min(end, limit), nil
}

// zero makes a range read as zeroes, without taking room where that is possible.
func (d *Device) zero(off, n int64) error {
	for _, mode := range [...]uint32{unix.FALLOC_FL_PUNCH_HOLE, unix.FALLOC_FL_ZERO_RANGE} {
		switch err := fallocate(d.fd, mode|unix.FALLOC_FL_KEEP_SIZE, off, n); {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINVAL):
			return wrap(fmt.Sprintf("zeroes of %d bytes at %d", n, off), err)
		}
	}
	return blockdev.ErrUnsupported
}

// Space implements blockdev.SpaceReporter: what the file takes, and what its file system has left.
func (d *Device) Space() (blockdev.Space, error) {
	if d.block {
		return blockdev.Space{}, blockdev.ErrUnsupported
	}
	if err := d.use(); err != nil {
		return blockdev.Space{}, err
	}
	defer d.running.Done()
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := errors.Join(unix.Fstat(d.fd, &st), unix.Fstatfs(d.fd, &fs)); err != nil {
		return blockdev.Space{}, wrap("space of "+d.path, err)
	}
	return blockdev.Space{Used: st.Blocks * 512, Available: int64(fs.Bavail) * fs.Bsize}, nil
}
