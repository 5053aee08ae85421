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
// open somewhere stays, and is an error; so does one that is another than id says (Device.ID), where id is not empty.
func Remove(o Options, id string) error {
	return within(&o, func(x *ceph.IoCtx) error {
		if id != "" {
			is, err := idOf(x, o.Image)
			if err != nil {
				return err
			}
			if is != id {
				return fmt.Errorf("blockdev/rbd: %s/%s is another image than was served; it stays", o.Pool, o.Image)
			}
		}
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
	size := d.size.Load() // once: it may change meanwhile
	d.locks.Lock(0, size)
	defer d.locks.Unlock(0, size)
	return wrap(d.image.CreateSnapshot(name))
}

// Clone makes an image of that name, in the same pool, that begins with what this one holds now, and shares its objects.
func (d *Device) Clone(name string) error {
	snapshot := "sluice-" + name
	if err := d.Snapshot(snapshot); err != nil {
		return err
	}
	if err := d.use(); err != nil {
		return err
	}
	defer d.running.Done()
	// A clone of the second format keeps what it shares: the snapshot goes out of sight, and goes with its last clone.
	err := d.pool.CloneImage(d.pool, d.source, snapshot, name)
	return wrap(errors.Join(err, d.image.RemoveSnapshot(snapshot)))
}

// ID is what the cluster calls the image for as long as it is there: a name may be given to another one.
func (d *Device) ID() string { return d.info.ID }

// idOf is the ID of the image that has this name now.
func idOf(x *ceph.IoCtx, name string) (_ string, err error) {
	i, err := x.OpenImage(name, "", true)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, i.Close()) }()
	info, err := i.Info()
	return info.ID, err
}
