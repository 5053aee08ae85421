// Package file is a block device on a file or on another block device.
//
// A read that the page cache can answer is served inside Submit, by preadv2 with RWF_NOWAIT. Other reads, and writes that go past the
// page cache, are the kernel's by io_uring (ring.go), and where that is not to be had a bounded pool of workers'. These do whatever
// else may wait for the medium. A write is one pwritev2, with RWF_DSYNC for FUA; a flush is one fdatasync for all flushes that are
// waiting. A hole in the file is an unmapped block.
package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/internal/rangelock"
	"github.com/sluice-storage/sluice/blockdev/internal/workqueue"
)

// Options describe how to open. The zero value opens an existing file through the page cache, with 512-byte blocks.
type Options struct {
	// Size in bytes makes a missing file, sparse, and grows a shorter one. A longer one is refused: shrinking loses
	// data. 0 takes the file as it is.
	Size     int64
	Logical  int // 512 by default; a block device's own if that is larger
	Physical int // 4096 by default
	ReadOnly bool
	Direct   bool // O_DIRECT
	Workers  int  // 8 by default
	NoInline bool // no read is tried in the page cache first
	// NoRing has workers do what io_uring would do where it is to be had.
	NoRing bool
	// Thick takes all of a file's room when it is opened, and never gives any back.
	Thick bool
	// Atomic offers Request.Atomic: by RWF_ATOMIC where the medium takes the write in one, else by a redo log.
	Atomic bool
	// Log is the path of that log, a file's path and ".redo" by default; for a block device it has to be said, because what
	// lies beside one is gone with the next boot. What it holds of a crash is written to the device when that is opened,
	// whatever Atomic says.
	Log string
	// Loss is the path of a note that is made where the medium loses acknowledged writes, so that the next opening knows of
	// it: not on that medium, if possible. Without it a loss is forgotten when the device is closed.
	Loss string
	// Notes is a directory for the note of a loss, and for the log of a block device, under names that the medium gives: they are found
	// whatever it is called then. Loss and Log are not said with it.
	Notes string
	// Earlier is the path, but for its ending, at which earlier versions had these for a medium that is called as this one is. All that lie
	// in its directory are looked at, and what is of this medium moves to Notes.
	Earlier string
}

// Device is the engine.
type Device struct {
	f        *os.File
	fd       int
	path     string
	id       string            // see identity
	geo      blockdev.Geometry // all but Size and Generation
	size     atomic.Int64
	gen      atomic.Uint64
	block    bool // the backing is a block device
	thick    bool
	created  bool  // by Open
	grown    int64 // by Open, from this many bytes; -1 where it did not
	direct   bool
	memAlign int
	offAlign int
	workers  int

	noInline  atomic.Bool // RWF_NOWAIT is not to be had
	noPunch   atomic.Bool // Discard is not to be had
	noHole    atomic.Bool // nor zeroes by FALLOC_FL_PUNCH_HOLE
	noZero    atomic.Bool
	noClone   atomic.Bool
	broken    atomic.Pointer[breakage]
	loss      loss
	behind    atomic.Pointer[settling]
	left      bool // Close has left a run of Settle behind, which keeps the lock
	atomics   atomics
	seq       uint64 // order of locking of two devices
	compares  compareEpochs
	locks     rangelock.Table
	queue     workqueue.Queue
	ring      ringer
	flusher   flusher
	running   sync.WaitGroup // workers, and calls that use the descriptor
	useMu     sync.Mutex
	closing   atomic.Bool // guarded by useMu where that decides
	refreshMu sync.Mutex
	ungrown   int64 // the file's length before the last Grow, guarded by refreshMu
}

// breakage is why nothing may be written any more, and where a part of an atomic write may be on the medium.
type breakage struct {
	err    error
	off, n int64
}

// halted is why nothing may be written, nil where it may. Who holds the lock of a range asks once more.
func (d *Device) halted() error {
	if b := d.broken.Load(); b != nil {
		return b.err
	}
	return nil
}

// compareEpochs lets reads, which take no lock, find out that a compare-and-write or an atomic write may have been seen
// half done.
type compareEpochs struct{ started, finished atomic.Uint64 }

var (
	_ blockdev.Device    = (*Device)(nil)
	_ blockdev.Capable   = (*Device)(nil)
	_ blockdev.Resizable = (*Device)(nil)
	_ blockdev.Explainer = (*Device)(nil)

	_ blockdev.RangeCopier   = (*Device)(nil)
	_ blockdev.SpaceReporter = (*Device)(nil)
	_ blockdev.Growable      = (*Device)(nil)
	_ blockdev.LossReporter  = (*Device)(nil)
	_ blockdev.Scrubber      = (*Device)(nil)
	_ blockdev.Identified    = (*Device)(nil)
	_ blockdev.Settler       = (*Device)(nil)
	_ blockdev.QueueReporter = (*Device)(nil)
)

// Open opens path and locks it against every other process that would serve it; blockdev.ErrBusy says that one does.
func Open(path string, o Options) (*Device, error) {
	d := &Device{path: path, workers: o.Workers, grown: -1}
	if d.workers == 0 {
		d.workers = defaultWorkers
	}
	if d.workers < 0 || d.workers > maxWorkers {
		return nil, fmt.Errorf("blockdev/file: %d workers; 1 to %d are possible", d.workers, maxWorkers)
	}
	if o.Logical == 0 {
		o.Logical = 512
	}
	if o.Physical == 0 {
		o.Physical = max(o.Logical, 4096)
	}
	if o.Logical != 512 && o.Logical != 4096 || o.Physical < o.Logical || o.Physical&(o.Physical-1) != 0 {
		return nil, fmt.Errorf("blockdev/file: blocks of %d and %d bytes; logical blocks have 512 or 4096, physical ones a power of two times that", o.Logical, o.Physical)
	}
	if o.Size < 0 || o.Size%int64(o.Logical) != 0 {
		return nil, fmt.Errorf("blockdev/file: size of %d bytes is not in blocks of %d", o.Size, o.Logical)
	}
	if err := d.open(path, o); err != nil {
		return nil, err
	}
	err := d.findNotes(&o)
	if err == nil {
		err = d.prepare(o)
	}
	if err == nil {
		err = d.openAtomics(o)
	}
	if err != nil {
		return nil, errors.Join(err, d.unmake(), d.atomics.close(), d.f.Close())
	}
	d.seq = devices.Add(1)
	d.locks.Shift = stripeShift
	d.queue.Init()
	d.ring.open(d, o)
	d.start()
	return d, nil
}

func (d *Device) open(path string, o Options) error {
	flags := unix.O_CLOEXEC | os.O_RDWR
	if o.ReadOnly {
		flags = unix.O_CLOEXEC | os.O_RDONLY
	}
	if o.Direct {
		flags |= unix.O_DIRECT
	}
	st, err := os.Stat(path)
	switch {
	case err == nil && st.Mode()&os.ModeDevice != 0 && st.Mode()&os.ModeCharDevice == 0:
		d.block = true
		if !o.ReadOnly {
			flags |= os.O_EXCL // not while it is mounted
		}
	case err == nil && !st.Mode().IsRegular():
		return fmt.Errorf("blockdev/file: %s is neither a file nor a block device", path)
	case errors.Is(err, os.ErrNotExist) && o.Size > 0 && !o.ReadOnly:
		flags |= os.O_CREATE | os.O_EXCL
		d.created = true
		if err := forget(path, o); err != nil {
			return err
		}
	}
	var f *os.File
	err = claim(unix.EBUSY, func() (err error) {
		f, err = os.OpenFile(path, flags, 0o600)
		return err
	})
	if err != nil {
		switch {
		case errors.Is(err, unix.EBUSY):
			return fmt.Errorf("%w: %w", blockdev.ErrBusy, err)
		case o.Direct && errors.Is(err, unix.EINVAL):
			return fmt.Errorf("blockdev/file: the file system of %s has no O_DIRECT: %w", path, blockdev.ErrUnsupported)
		}
		return fmt.Errorf("blockdev/file: %w", err)
	}
	d.f, d.fd = f, int(f.Fd())
	how := unix.LOCK_EX
	if o.ReadOnly {
		how = unix.LOCK_SH
	}
	if err := claim(unix.EWOULDBLOCK, func() error { return unix.Flock(d.fd, how|unix.LOCK_NB) }); err != nil {
		err = errors.Join(err, f.Close())
		if errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("%w: %s is locked by another process that serves it", blockdev.ErrBusy, path)
		}
		return fmt.Errorf("blockdev/file: lock %s: %w", path, err)
	}
	if err := d.fit(o); err != nil {
		return errors.Join(err, d.unmake(), f.Close())
	}
	return nil
}

// claim tries for a moment what a device that was closed, or whose process has ended, may still keep from us (ring.go).
func claim(busy unix.Errno, try func() error) error {
	for limit := time.Now().Add(claimTime); ; time.Sleep(claimTime / 50) {
		if err := try(); !errors.Is(err, busy) || time.Now().After(limit) {
			return err
		}
	}
}

// unmake takes back what an opening that failed did to the file.
func (d *Device) unmake() error {
	switch {
	case d.created:
		return os.Remove(d.path)
	case d.grown >= 0:
		return d.cutBack(d.grown)
	}
	return nil
}

// fit brings the file to its size. A new file and its name are on the medium before the first request: a volume that
// acknowledges writes and is gone after a power cut would be the worst of both.
func (d *Device) fit(o Options) error {
	size, err := d.measure(o.Logical)
	if err != nil {
		return err
	}
	if o.Size > 0 && size > o.Size {
		return fmt.Errorf("blockdev/file: %s has %d bytes, more than the %d asked for; shrinking it would lose data", d.path, size, o.Size)
	}
	if o.Size > size {
		if d.block || o.ReadOnly {
			return fmt.Errorf("blockdev/file: %s has %d bytes, %d are asked for and it cannot grow", d.path, size, o.Size)
		}
		if err := d.extend(o.Size, o.Thick); err != nil {
			return err
		}
	}
	if !d.created {
		return nil
	}
	return syncDir(d.path)
}

// syncDir makes the name of a file durable.
func syncDir(path string) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("blockdev/file: %w", err)
	}
	if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
		return wrap("sync the directory of "+path, err)
	}
	return nil
}

// measure is the size of the medium in whole blocks.
func (d *Device) measure(logical int) (int64, error) {
	var size int64
	var err error
	if d.block {
		// The only descriptor of this open file description that has a position, and nothing else uses it.
		size, err = unix.Seek(d.fd, 0, unix.SEEK_END)
	} else {
		var st unix.Stat_t
		err = unix.Fstat(d.fd, &st)
		size = st.Size
	}
	if err != nil {
		return 0, wrap("size of "+d.path, err)
	}
	return size - size%int64(logical), nil
}

func (d *Device) prepare(o Options) error {
	if d.block {
		if n, err := unix.IoctlGetInt(d.fd, unix.BLKSSZGET); err == nil && n > o.Logical {
			o.Logical = n
			o.Physical = max(o.Physical, n)
		}
	}
	d.loss.open(o.Loss, d.id)
	size, err := d.measure(o.Logical)
	if err != nil {
		return err
	}
	if size == 0 {
		return fmt.Errorf("blockdev/file: %s is empty; give a size to make it", d.path)
	}
	if d.thick = o.Thick && !d.block && !o.ReadOnly; d.thick {
		if err := d.fill(size); err != nil {
			return err
		}
	}
	d.size.Store(size)
	d.memAlign, d.offAlign = 1, 1
	if d.direct = o.Direct; d.direct {
		d.memAlign, d.offAlign = alignment(d.fd)
		if o.Logical%d.offAlign != 0 {
			return fmt.Errorf("blockdev/file: O_DIRECT on %s needs blocks of %d bytes, the volume has %d", d.path, d.offAlign, o.Logical)
		}
	}
	d.noInline.Store(o.NoInline || o.Direct)
	d.geo = blockdev.Geometry{Logical: o.Logical, Physical: o.Physical, ReadOnly: o.ReadOnly, MaxDiscard: maxDiscard, Thin: !d.block && !o.Thick}
	if d.block {
		var st unix.Stat_t
		if unix.Fstat(d.fd, &st) == nil {
			d.geo.Rotational = rotational(st.Rdev)
		}
	}
	d.geo.OptimalIO = 128 << 10
	if o.ReadOnly || d.thick {
		d.noPunch.Store(true)
		return nil
	}
	return d.probeDiscard()
}

// Geometry implements blockdev.Device.
func (d *Device) Geometry() blockdev.Geometry {
	g := d.geo
	g.Size, g.Generation = d.size.Load(), d.gen.Load()
	return g
}

// Can implements blockdev.Capable.
func (d *Device) Can(op blockdev.Op) bool {
	if op == blockdev.Discard {
		return d.geo.DiscardUnit > 0
	}
	return op >= blockdev.Read && op <= blockdev.Status
}

// Path implements blockdev.Explainer.
func (d *Device) Path() string {
	kind, mode, reads := "file", "buffered", "preadv2 RWF_NOWAIT inline, "
	if d.block {
		kind = "block device"
	}
	if d.direct {
		mode = "O_DIRECT"
	}
	if d.noInline.Load() {
		reads = ""
	}
	return fmt.Sprintf("%s, %s, %s%s, %d workers%s%s", kind, mode, reads, d.ring.path(), d.workers, d.atomics.path(), d.trouble())
}

// trouble is what an operator has to know of the state of the medium.
func (d *Device) trouble() string {
	switch {
	case d.halted() != nil:
		return ", takes no writes until it is opened again: an atomic write is half done"
	case d.loss.now() != nil:
		return ", lost acknowledged writes: every flush fails until it is opened again"
	}
	return ""
}

// use keeps the descriptor open until d.running.Done is called; not where the device is closing.
func (d *Device) use() error {
	d.useMu.Lock()
	defer d.useMu.Unlock()
	if d.closing.Load() {
		return blockdev.ErrClosed
	}
	d.running.Add(1)
	return nil
}

// Close implements blockdev.Device. What was not flushed was never promised; it is flushed all the same, while the medium
// gets on, because a writeback that fails after the descriptor is closed has nothing left to tell of it.
func (d *Device) Close() error {
	d.useMu.Lock()
	d.closing.Store(true)
	d.useMu.Unlock()
	err := d.ring.close() // first: what it has may end at a worker
	d.queue.Close()
	d.running.Wait()
	if !d.geo.ReadOnly {
		err = errors.Join(err, d.settle(context.Background(), true), d.loss.last())
		if d.halted() == nil {
			err = errors.Join(err, d.atomics.scrub(d.workers))
		}
	}
	if !d.left {
		// Not only with the last reference to the file, which may be an operation's of the ring.
		err = errors.Join(err, unix.Flock(d.fd, unix.LOCK_UN))
	}
	if err = errors.Join(err, d.atomics.close(), d.f.Close()); err != nil {
		return fmt.Errorf("blockdev/file: %w", err)
	}
	return nil
}
