package rbd

import (
	"errors"
	"fmt"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/ceph"
)

// within calls f with a client of its own.
func within(o *Options, f func(*ceph.IoCtx) error) error {
	if err := o.fill(); err != nil {
		return err
	}
	if err := ceph.AvailableRBD(); err != nil {
		return err
	}
	c, err := ceph.Connect(o.options())
	if err != nil {
		return fmt.Errorf("blockdev/rbd: %w", wrap(err))
	}
	defer c.Shutdown()
	x, err := c.Pool(o.Pool, o.Namespace)
	if err == nil {
		err = f(x)
		x.Close()
	}
	if err != nil {
		return fmt.Errorf("blockdev/rbd: %w", wrap(err))
	}
	return nil
}

// Create makes an image of size bytes, with the features and the objects that the cluster's configuration says. One that is there is
// left alone, and is an error (syscall.EEXIST).
func Create(o Options, size int64) error {
	return within(&o, func(x *ceph.IoCtx) error { return x.CreateImage(o.Image, ceph.ImageSpec{Size: uint64(size)}) })
}

// Remove removes an image and all that it holds, or, where Options.Snapshot is set, that snapshot of it. An image that has snapshots or is
// open somewhere stays, and is an error.
func Remove(o Options) error {
	return within(&o, func(x *ceph.IoCtx) error {
		if o.Snapshot == "" {
			return x.RemoveImage(o.Image)
		}
		i, err := x.OpenImage(o.Image, "", false)
		if err != nil {
			return err
		}
		return errors.Join(i.RemoveSnapshot(o.Snapshot), i.Close())
	})
}

// Snapshot makes a snapshot of what the image holds now: every write that completed is in it.
func (d *Device) Snapshot(name string) error {
	if err := d.use(); err != nil {
		return err
	}
	defer d.running.Done()
	if d.geo.ReadOnly {
		return blockdev.ErrReadOnly
	}
	// No compare-and-write is half done in it.
	d.locks.Lock(0, d.size.Load())
	defer d.locks.Unlock(0, d.size.Load())
	return wrap(d.image.CreateSnapshot(name))
}

// Clone makes an image of that name, in the same pool, that begins with what this one holds now, and shares its objects.
func (d *Device) Clone(name string) error {
	snapshot := "sluice-" + name
	if err := d.Snapshot(snapshot); err != nil {
		return err
	}
	// A clone of the second format keeps what it shares: the snapshot goes out of sight, and goes with its last clone.
	err := d.pool.CloneImage(d.pool, d.source, snapshot, name)
	return wrap(errors.Join(err, d.image.RemoveSnapshot(snapshot)))
}
