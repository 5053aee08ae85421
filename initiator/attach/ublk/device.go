package ublk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/initiator/attach/bdev"
	"github.com/sluice-storage/sluice/mem"
)

// Volume is what a device shows: *block.Volume.
type Volume interface {
	Submit(*blockdev.Request)
	Geometry() blockdev.Geometry
	Memory() *mem.Pool
}

// Options configure a Device.
type Options struct {
	ReadOnly bool
	Queues   int // hardware queues; 0 for one a processor, at most MaxQueues
}

// Device is a block device of the kernel's. Its methods may be called by any goroutine.
type Device struct {
	v       Volume
	id      uint32
	encoded bool
	char    *os.File
	queues  []*queue
	wg      sync.WaitGroup
	gone    chan struct{} // closed when every queue has ended

	mu      sync.Mutex
	err     error // of the queues
	stopped bool
}

// Start makes a device that shows v, which must outlive it. What fails leaves no device behind.
func Start(ctx context.Context, v Volume, o Options) (_ *Device, err error) {
	c, err := openControl()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	n := o.Queues
	if n <= 0 {
		n = runtime.NumCPU()
	}
	in := info{queues: uint16(min(n, MaxQueues)), depth: depth, maxIO: maxIO, dev: 1<<32 - 1, flags: flagNeedGetData, tag: ownTag(os.Getpid())}
	in.put(c.page)
	if err := c.do("add", cmdAdd, in.dev, infoSize, 0); err != nil {
		return nil, err
	}
	in.parse(c.page)
	d := &Device{v: v, id: in.dev, encoded: c.encoded, gone: make(chan struct{})}
	started := false
	defer func() {
		if err != nil {
			err = errors.Join(err, d.undo(c, started))
		}
	}()
	if in.flags&flagNeedGetData == 0 {
		return nil, errors.New("ublk: the driver does not know NEED_GET_DATA")
	}
	g := v.Geometry()
	putParams(c.page, &g, o.ReadOnly)
	if err := c.do("set parameters of", cmdSetParams, d.id, paramsSize, 0); err != nil {
		return nil, err
	}
	if d.char, err = os.OpenFile(fmt.Sprintf("/dev/ublkc%d", d.id), os.O_RDWR, 0); err != nil {
		return nil, err
	}
	for i := range int(in.queues) {
		q, err := newQueue(d, i, int(in.depth))
		if err != nil {
			return nil, err
		}
		d.queues = append(d.queues, q)
	}
	started = true
	for _, q := range d.queues {
		d.wg.Go(func() {
			if err := q.run(); err != nil {
				d.mu.Lock()
				d.err = errors.Join(d.err, err)
				d.mu.Unlock()
			}
		})
	}
	go func() { d.wg.Wait(); close(d.gone) }()
	for _, q := range d.queues {
		if err := <-q.began; err != nil {
			return nil, err
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	// It reads the partition table, by our queues, before it returns.
	if err := c.do("start", cmdStart, d.id, 0, uint64(os.Getpid())); err != nil {
		return nil, err
	}
	return d, nil
}

// undo takes back what Start has done: before the queues run there is nothing that the driver could end.
func (d *Device) undo(c *control, started bool) error {
	var errs []error
	if started {
		errs = append(errs, c.do("stop", cmdStop, d.id, 0, 0))
		<-d.gone
	}
	return errors.Join(append(errs, d.free(), c.do("delete", cmdDel, d.id, 0, 0))...)
}

func (d *Device) free() error {
	var errs []error
	for _, q := range d.queues {
		errs = append(errs, q.free())
	}
	d.queues = nil
	if d.char != nil {
		errs = append(errs, d.char.Close())
	}
	return errors.Join(errs...)
}

// Index is the N of /dev/ublkbN.
func (d *Device) Index() int { return int(d.id) }

// Path is the block device.
func (d *Device) Path() string { return fmt.Sprintf("/dev/ublkb%d", d.id) }

// Gone is closed when the device has ended, by Stop or by the driver.
func (d *Device) Gone() <-chan struct{} { return d.gone }

// ErrSize says that the driver cannot give a device another size.
var ErrSize = errors.New("ublk: this kernel's driver cannot give a device another size (Linux 6.16 can); detach and attach again")

// Resize tells the kernel another size, in bytes.
func (d *Device) Resize(size int64) (err error) {
	c, err := openControl()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	if !c.resizes {
		return ErrSize
	}
	return c.do("resize", cmdUpdateSize, d.id, 0, uint64(size)>>9)
}

// ErrBusy says that the device is open: a file system on it is mounted, for one.
var ErrBusy = errors.New("ublk: the device is in use")

// ErrHeld says that what the kernel holds of the device cannot be written; the device stays.
var ErrHeld = errors.New("ublk: the device stays")

// Stop takes the device away; ErrBusy if it is in use, unless forced: then what uses it gets errors. What the block layer has not
// written to the volume by then is lost: an unmount or fsync comes before.
func (d *Device) Stop(force bool) (err error) {
	d.mu.Lock()
	stopped := d.stopped
	d.mu.Unlock()
	if stopped {
		return nil
	}
	held, err := d.idle()
	if err != nil && !force {
		return err
	}
	if held != nil { // until it is dead, so that nothing is mounted on what goes
		defer held.Close()
	}
	d.mu.Lock()
	d.stopped = true
	d.mu.Unlock()
	c, err := openControl()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	select {
	case <-d.gone: // the driver has stopped it
	default:
		if err := c.do("stop", cmdStop, d.id, 0, 0); err != nil {
			return err
		}
	}
	<-d.gone
	d.mu.Lock()
	qerr := d.err
	d.mu.Unlock()
	ferr := d.free()
	if held != nil {
		held.Close() // the driver deletes when nothing has it open
	}
	return errors.Join(qerr, ferr, c.remove(d.id))
}

// idle claims the block device. The file is nil where the device is gone.
func (d *Device) idle() (*os.File, error) {
	select {
	case <-d.gone:
		return nil, nil
	default:
	}
	f, err := bdev.Claim(d.Path(), claimLimit)
	switch {
	case errors.Is(err, bdev.ErrBusy):
		return nil, fmt.Errorf("%w: %s", ErrBusy, d.Path())
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENXIO): // gone meanwhile
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrHeld, err)
	}
	return f, nil
}
