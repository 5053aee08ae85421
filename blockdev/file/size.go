package file

import (
	"errors"
	"fmt"
	"math"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
)

// extend makes a shorter file size bytes long, durably, or leaves it as it was.
func (d *Device) extend(size int64, thick bool) error {
	var st unix.Stat_t
	if err := unix.Fstat(d.fd, &st); err != nil {
		return wrap("size of "+d.path, err)
	}
	d.grown = st.Size
	what := fmt.Sprintf("grow %s from %d to %d bytes", d.path, st.Size, size)
	var err error
	if thick {
		// The room first, behind the end: where it is not to be had the size has not changed.
		if err = fallocate(d.fd, unix.FALLOC_FL_KEEP_SIZE, st.Size, size-st.Size); err != nil {
			err = wrap(what, err)
		}
	}
	if err == nil {
		if err = d.f.Truncate(size); err != nil {
			err = wrap(what, err)
		} else if serr := d.f.Sync(); serr != nil {
			err = d.loss.found(wrap(what, serr))
		}
	}
	if err == nil {
		return nil
	}
	return errors.Join(err, d.cutBack(st.Size))
}

// cutBack undoes extend.
func (d *Device) cutBack(size int64) error {
	// Truncation gives back what was taken behind the end, also where the size is the same; xfs keeps it without the hole.
	if err := d.f.Truncate(size); err != nil {
		return wrap(fmt.Sprintf("cut %s back to %d bytes", d.path, size), err)
	}
	behind := (size + probeDistance) / probeDistance * probeDistance
	_ = fallocate(d.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, behind, math.MaxInt64/2-behind)
	return nil
}

// fill takes room for the first size bytes of the file, of its own: what is shared with a clone is so no longer.
func (d *Device) fill(size int64) error {
	what := fmt.Sprintf("take %d bytes for all of %s", size, d.path)
	if err := fallocate(d.fd, unix.FALLOC_FL_KEEP_SIZE, 0, size); err != nil {
		return wrap(what, err)
	}
	err := fallocate(d.fd, unix.FALLOC_FL_UNSHARE_RANGE|unix.FALLOC_FL_KEEP_SIZE, 0, size)
	if err == nil || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		return nil // a file system that does not know this shares nothing
	}
	return wrap(what, err)
}

// Grow implements blockdev.Growable.
func (d *Device) Grow(size int64) error {
	if err := d.use(); err != nil {
		return err
	}
	defer d.running.Done()
	d.refreshMu.Lock()
	defer d.refreshMu.Unlock()
	now, err := d.measure(d.geo.Logical)
	switch {
	case err != nil:
		return err
	case d.geo.ReadOnly:
		return blockdev.ErrReadOnly
	case d.block && size > now:
		return fmt.Errorf("%w: %s has %d bytes; make the block device itself larger", blockdev.ErrUnsupported, d.path, now)
	case size < now || size%int64(d.geo.Logical) != 0:
		return fmt.Errorf("%w: %s has %d bytes and can grow to a larger number of whole blocks, not to %d", blockdev.ErrRange, d.path, now, size)
	}
	var st unix.Stat_t
	if err := unix.Fstat(d.fd, &st); err != nil {
		return wrap("size of "+d.path, err)
	}
	d.ungrown = st.Size
	if size > now {
		if err := d.extend(size, d.thick); err != nil {
			return err
		}
	}
	_, err = d.refreshLocked()
	return err
}

// Ungrow implements blockdev.Growable.
func (d *Device) Ungrow() error {
	if err := d.use(); err != nil {
		return err
	}
	defer d.running.Done()
	d.refreshMu.Lock()
	defer d.refreshMu.Unlock()
	if d.ungrown == 0 {
		return nil // nothing was grown since it was opened
	}
	if err := d.cutBack(d.ungrown); err != nil {
		return err
	}
	d.ungrown = 0
	_, err := d.refreshLocked()
	return err
}

// Refresh implements blockdev.Resizable. A file that shrank answers ErrRange beyond its new end.
func (d *Device) Refresh() (bool, error) {
	if err := d.use(); err != nil {
		return false, err
	}
	defer d.running.Done()
	d.refreshMu.Lock()
	defer d.refreshMu.Unlock()
	return d.refreshLocked()
}

func (d *Device) refreshLocked() (bool, error) {
	size, err := d.measure(d.geo.Logical)
	if err != nil {
		return false, err
	}
	if d.thick && size > d.size.Load() {
		if err := d.fill(size); err != nil {
			return false, err
		}
	}
	if d.size.Swap(size) == size {
		return false, nil
	}
	d.gen.Add(1)
	return true, nil
}
