package rbd

import (
	"fmt"

	"github.com/sluice-storage/sluice/blockdev"
)

// OnChange implements blockdev.Notifier.
func (d *Device) OnChange(f func()) { d.changed.Store(&f) }

// updated is librbd's word that something of the image has changed: its size, its snapshots, its features.
func (d *Device) updated() {
	if d.closing.Load() {
		return
	}
	if f := d.changed.Load(); f != nil {
		(*f)()
		return
	}
	_, _ = d.Refresh() // it is looked at again with the next change
}

// Refresh implements blockdev.Resizable. An image that shrank answers ErrRange beyond its new end.
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
	n, err := d.image.Size()
	if err != nil {
		return false, wrap(err)
	}
	size := int64(n) / int64(d.geo.Logical) * int64(d.geo.Logical)
	if d.size.Swap(size) == size {
		return false, nil
	}
	d.gen.Add(1)
	return true, nil
}

// Grow implements blockdev.Growable.
func (d *Device) Grow(size int64) error {
	if err := d.use(); err != nil {
		return err
	}
	defer d.running.Done()
	d.refreshMu.Lock()
	defer d.refreshMu.Unlock()
	now, err := d.image.Size()
	switch {
	case err != nil:
		return wrap(err)
	case d.geo.ReadOnly:
		return blockdev.ErrReadOnly
	case size < int64(now) || size%int64(d.geo.Logical) != 0:
		return fmt.Errorf("%w: image %s has %d bytes and can grow to a larger number of whole blocks, not to %d", blockdev.ErrRange, d.name, now, size)
	}
	d.ungrown = int64(now)
	if size > int64(now) {
		if err := d.image.Resize(uint64(size)); err != nil {
			return wrap(err)
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
	if err := d.image.Resize(uint64(d.ungrown)); err != nil {
		return wrap(err)
	}
	d.ungrown = 0
	_, err := d.refreshLocked()
	return err
}
