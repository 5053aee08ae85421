package gotgt

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/gostor/gotgt/pkg/api"
	"github.com/gostor/gotgt/pkg/scsi"
	_ "github.com/gostor/gotgt/pkg/scsi/backingstore" // registers "file" and "null"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/internal/rangelock"
	"github.com/sluice-storage/sluice/blockdev/internal/workqueue"
	"github.com/sluice-storage/sluice/mem"
)

// Options describe a device on a backing store.
type Options struct {
	Logical  int // 512 by default
	ReadOnly bool
	// Size in bytes for stores that cannot tell theirs; 0 asks the store.
	Size int64
}

// Device serves a gotgt backing store. Reads and writes go through a bounded number of goroutines, since the store's
// calls block, and a read is copied once, since the store allocates its result.
type Device struct {
	bs    api.BackingStore
	lu    *api.SCSILu
	geo   blockdev.Geometry
	locks rangelock.Table

	queue   workqueue.Queue
	running sync.WaitGroup
}

var (
	_ blockdev.Device    = (*Device)(nil)
	_ blockdev.Capable   = (*Device)(nil)
	_ blockdev.Explainer = (*Device)(nil)
)

// Open opens path in gotgt's own form, "store:path" as in "file:/var/lib/disk.img".
func Open(path string, o Options) (*Device, error) {
	store, rest, ok := strings.Cut(path, ":")
	if !ok || store == "" {
		return nil, fmt.Errorf("blockdev/gotgt: %q is not of the form store:path", path)
	}
	bs, err := scsi.NewBackingStore(store)
	if err != nil {
		return nil, fmt.Errorf("blockdev/gotgt: %w", err)
	}
	return Wrap(bs, rest, o)
}

// Wrap opens path in bs and serves it. The store is closed with the device.
func Wrap(bs api.BackingStore, path string, o Options) (*Device, error) {
	if o.Logical == 0 {
		o.Logical = 512
	}
	shift := uint(9)
	if o.Logical == 4096 {
		shift = 12
	} else if o.Logical != 512 {
		return nil, fmt.Errorf("blockdev/gotgt: blocks of %d bytes; 512 and 4096 are possible", o.Logical)
	}
	lu := &api.SCSILu{BlockShift: shift, Path: path, Storage: bs}
	if err := bs.Open(lu, path); err != nil {
		return nil, fmt.Errorf("blockdev/gotgt: open %s: %w", path, err)
	}
	size := o.Size
	if size == 0 {
		size = int64(bs.Size(lu))
	}
	size -= size % int64(o.Logical)
	if size <= 0 {
		return nil, errors.Join(fmt.Errorf("blockdev/gotgt: %s has no size; name one", path), bs.Close(lu))
	}
	lu.Size = uint64(size)
	d := &Device{bs: bs, lu: lu, geo: blockdev.Geometry{
		Size: size, Logical: o.Logical, Physical: o.Logical, DiscardUnit: o.Logical, MaxDiscard: 1 << 30, DiscardZeroes: true, ReadOnly: o.ReadOnly,
	}}
	d.locks.Shift = 20
	d.queue.Init()
	for range workers {
		d.running.Go(d.work)
	}
	return d, nil
}

// Geometry implements blockdev.Device.
func (d *Device) Geometry() blockdev.Geometry { return d.geo }

// Can implements blockdev.Capable. A store knows nothing of holes.
func (d *Device) Can(op blockdev.Op) bool {
	return op >= blockdev.Read && op <= blockdev.CompareWrite
}

// Path implements blockdev.Explainer.
func (d *Device) Path() string { return fmt.Sprintf("gotgt backing store, %d workers", workers) }

// Submit implements blockdev.Device.
func (d *Device) Submit(r *blockdev.Request) {
	err := r.Check(&d.geo)
	switch {
	case err != nil:
	case !d.Can(r.Op):
		err = blockdev.ErrUnsupported
	case r.Op == blockdev.CompareWrite && r.Length > maxCompareWrite:
		err = blockdev.ErrRange
	case r.Op == blockdev.Flush && d.geo.ReadOnly:
	case r.Op != blockdev.Flush && r.Length == 0:
	default:
		if d.queue.Put(r) {
			return
		}
		err = blockdev.ErrClosed
	}
	r.Finish(err)
}

func (d *Device) work() {
	for r := d.queue.Get(); r != nil; r = d.queue.Get() {
		r.Finish(d.guard(r))
	}
}

// guard turns a panic of the store into an error: stores are foreign code, and one request is all it may cost.
func (d *Device) guard(r *blockdev.Request) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: the backing store panicked: %v", blockdev.ErrMedium, p)
		}
	}()
	return d.do(r)
}

func (d *Device) do(r *blockdev.Request) error {
	switch r.Op {
	case blockdev.Flush:
		return d.sync(0, d.geo.Size)
	case blockdev.CompareWrite:
		d.locks.Lock(r.Offset, r.Length)
		defer d.locks.Unlock(r.Offset, r.Length)
		b, err := d.read(r.Offset, r.Length)
		if err != nil {
			return err
		}
		r.Miss = 0
		if i := mem.Differ(b, r.Compare, 0); i >= 0 {
			r.Miss = int64(i)
			return blockdev.ErrMiscompare
		}
		return d.write(r)
	}
	d.locks.RLock(r.Offset, r.Length)
	defer d.locks.RUnlock(r.Offset, r.Length)
	switch r.Op {
	case blockdev.Read:
		for at := int64(0); at < r.Length; {
			b, err := d.read(r.Offset+at, min(pieceSize, r.Length-at))
			if err != nil {
				return err
			}
			at += int64(mem.Scatter(r.Data, at, b))
		}
		return nil
	case blockdev.Discard:
		err := d.bs.Unmap([]api.UnmapBlockDescriptor{{Offset: uint64(r.Offset), TL: uint32(r.Length)}})
		return wrap("discard", err)
	}
	return d.write(r)
}

func (d *Device) read(off, n int64) ([]byte, error) {
	b, err := d.bs.Read(off, n)
	if err != nil {
		return nil, wrap("read", err)
	}
	if int64(len(b)) != n {
		return nil, fmt.Errorf("%w: the backing store gave %d bytes for %d at %d", blockdev.ErrMedium, len(b), n, off)
	}
	return b, nil
}

// write is Write, WriteZeroes and the second half of CompareWrite.
func (d *Device) write(r *blockdev.Request) error {
	b := make([]byte, min(pieceSize, r.Length))
	for at := int64(0); at < r.Length; at += int64(len(b)) {
		b = b[:min(int64(len(b)), r.Length-at)]
		if r.Op != blockdev.WriteZeroes {
			mem.Gather(b, r.Data, at)
		}
		if err := d.bs.Write(b, r.Offset+at); err != nil {
			return wrap("write", err)
		}
	}
	if r.FUA {
		return d.sync(r.Offset, r.Length)
	}
	return nil
}

func (d *Device) sync(off, n int64) error { return wrap("sync", d.bs.DataSync(off, n)) }

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: gotgt backing store: %s: %w", blockdev.ErrMedium, what, err)
}

// Close implements blockdev.Device.
func (d *Device) Close() error {
	d.queue.Close()
	d.running.Wait()
	if err := d.bs.Close(d.lu); err != nil {
		return fmt.Errorf("blockdev/gotgt: %w", err)
	}
	return nil
}
