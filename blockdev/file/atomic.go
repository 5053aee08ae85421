package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/internal/redo"
	"github.com/sluice-storage/sluice/mem"
)

// atomics is how the device keeps a write whole across a loss of power.
type atomics struct {
	f   *os.File // of the log
	log *redo.Log
	mu  sync.RWMutex // held shared while a slot is in use
	// used says that the log holds data of writes that are over.
	used atomic.Bool
	// least and most bound what pwritev2 takes with RWF_ATOMIC, powers of two; 0 where the medium has no such thing.
	least, most int64
}

// logStore is the log's file.
type logStore struct{ f *os.File }

func (s logStore) ReadAt(b []byte, off int64) (int, error) { return s.f.ReadAt(b, off) }

func (s logStore) WriteDurably(b []byte, off int64) error {
	for len(b) > 0 {
		n, err := unix.Pwritev2(int(s.f.Fd()), [][]byte{b}, off, unix.RWF_DSYNC)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return wrap("write to "+s.f.Name(), err)
		}
		b, off = b[n:], off+int64(n)
	}
	return nil
}

func logPath(path string, o Options) string {
	if o.Log != "" {
		return o.Log
	}
	return path + ".redo"
}

// forget removes the log and the note of a volume of this name that was there before, durably, before a new one is made:
// what they say is nothing to that.
func forget(path string, o Options) error {
	for _, old := range [...]string{logPath(path, o), o.Loss} {
		switch err := os.Remove(old); {
		case old == "" || errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return fmt.Errorf("blockdev/file: of an earlier volume: %w", err)
		}
		if err := syncDir(old); err != nil {
			return err
		}
	}
	return nil
}

// openAtomics recovers what a crash left in the log, and opens it where atomic writes are wanted.
func (d *Device) openAtomics(o Options) error {
	path := logPath(d.path, o)
	want := o.Atomic && !o.ReadOnly
	if d.block && filepath.Dir(path) == filepath.Dir(d.path) {
		if want {
			return fmt.Errorf("blockdev/file: atomic writes to the block device %s need a log that lies elsewhere: what is beside a device is gone with the next boot", d.path)
		}
		return nil
	}
	flags := os.O_RDWR
	switch {
	case want:
		flags |= os.O_CREATE
	case o.ReadOnly:
		flags = os.O_RDONLY // its file system may be, too
	}
	f, err := os.OpenFile(path, flags|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, fs.ErrNotExist) && !want {
		return nil
	}
	if err != nil {
		return fmt.Errorf("blockdev/file: redo log: %w", err)
	}
	d.atomics.f, d.atomics.log = f, redo.New(logStore{f}, d.id)
	if err := d.recover(o.ReadOnly, want); err != nil {
		return err
	}
	if !want {
		d.atomics.f, d.atomics.log = nil, nil
		return f.Close()
	}
	// All of the log's room is taken now: a full file system must not stop a write in the middle.
	size := int64(d.workers) * redo.SlotSize
	if err := f.Truncate(size); err != nil {
		return wrap("size of "+path, err)
	}
	if err := fallocate(int(f.Fd()), 0, 0, size); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return wrap("room for "+path, err)
	}
	if err := f.Sync(); err != nil {
		return wrap("sync "+path, err)
	}
	if err := syncDir(path); err != nil {
		return err
	}
	d.geo.AtomicUnit, d.geo.AtomicMax = d.geo.Logical, redo.Max
	d.probeAtomic()
	return nil
}

// recover writes again what was under way when the last process ended. A log that is not used any more keeps no data.
func (d *Device) recover(readOnly, used bool) error {
	fi, err := d.atomics.f.Stat()
	if err != nil {
		return fmt.Errorf("blockdev/file: redo log: %w", err)
	}
	slots := int(min(fi.Size()/redo.SlotSize, maxWorkers))
	if readOnly {
		pending, err := d.atomics.log.Pending(slots)
		if err == nil && pending {
			return fmt.Errorf("blockdev/file: %s holds a write that a crash interrupted; open %s writable once to finish it", d.atomics.f.Name(), d.path)
		}
		return d.logError(err)
	}
	size := d.size.Load()
	d.atomics.used.Store(fi.Size() > 0)
	found, err := d.atomics.log.Recover(slots, func(off int64, data []byte) error {
		if off < 0 || off > size-int64(len(data)) {
			return fmt.Errorf("%w: the log is not of this device, or the device shrank", blockdev.ErrRange)
		}
		return d.place(data, off)
	})
	if err == nil && (found > 0 || !used) {
		err = d.atomics.scrub(slots)
	}
	return d.logError(err)
}

func (d *Device) logError(err error) error {
	switch name := d.atomics.f.Name(); {
	case err == nil:
		return nil
	case errors.Is(err, redo.ErrForeign):
		return fmt.Errorf("blockdev/file: %s is not the log of %s: %w; put back the device that it is of, or remove the log", name, d.path, err)
	default:
		return fmt.Errorf("blockdev/file: %s: %w", name, err)
	}
}

// place writes outside of any worker, durably. The descriptor may want aligned memory, so a buffer of its own is used.
func (d *Device) place(data []byte, off int64) error {
	w := &worker{d: d}
	buf, err := w.buffer()
	if err != nil {
		return err
	}
	n := copy(buf, data)
	err = w.moveBytes(unix.SYS_PWRITEV2, buf[:n], off, unix.RWF_DSYNC)
	if err != nil {
		// It may have been told of an earlier write's loss, and the next opening is not.
		err = d.unsynced(err, func() error { return w.moveBytes(unix.SYS_PWRITEV2, buf[:n], off, 0) })
	}
	return errors.Join(err, w.bounce.Close())
}

// probeAtomic asks what the medium takes in one. Linux has it for O_DIRECT only.
func (d *Device) probeAtomic() {
	var st unix.Statx_t
	if !d.direct || unix.Statx(d.fd, "", unix.AT_EMPTY_PATH, unix.STATX_WRITE_ATOMIC, &st) != nil || st.Mask&unix.STATX_WRITE_ATOMIC == 0 {
		return
	}
	if lo, hi := int64(st.Atomic_write_unit_min), int64(st.Atomic_write_unit_max); lo > 0 && hi >= lo {
		d.atomics.least, d.atomics.most = lo, min(hi, bounceSize)
	}
}

func (a *atomics) close() error {
	if a.f == nil {
		return nil
	}
	return a.f.Close()
}

// path is the atomic writes' part of Explainer.
func (a *atomics) path() string {
	switch {
	case a.f == nil:
		return ""
	case a.most > 0:
		return fmt.Sprintf(", atomic writes by RWF_ATOMIC (%d to %d bytes) and redo log", a.least, a.most)
	}
	return ", atomic writes by redo log"
}

// inOne reports whether the medium takes n bytes at off with RWF_ATOMIC: a power of two, aligned to itself.
func (a *atomics) inOne(off, n int64) bool {
	return n >= a.least && n <= a.most && n&(n-1) == 0 && off&(n-1) == 0
}

// atomicWrite has the range to itself until the data is in place: the redo log wants that, and a reader who comes in
// between finds out by the epochs and reads again.
func (w *worker) atomicWrite(r *blockdev.Request) error {
	d := w.d
	buf, err := w.buffer()
	if err != nil {
		return err
	}
	d.locks.Lock(r.Offset, r.Length)
	defer d.locks.Unlock(r.Offset, r.Length)
	if err := d.halted(); err != nil {
		return err
	}
	d.compares.started.Add(1)
	err = w.atomicInRange(buf, r)
	if b := d.broken.Load(); b == nil || b.n == 0 {
		d.compares.finished.Add(1) // otherwise each read asks, for the rest of the device's life, whether it may
	}
	return err
}

func (w *worker) atomicInRange(buf []byte, r *blockdev.Request) error {
	d := w.d
	if d.atomics.inOne(r.Offset, r.Length) {
		if done, err := w.atomicInOne(buf, r); done {
			return err
		}
	}
	if err := d.reserve(r.Offset, r.Length); err != nil {
		return err
	}
	d.atomics.mu.RLock()
	defer d.atomics.mu.RUnlock()
	d.atomics.used.Store(true)
	if err := d.atomics.log.Begin(w.slot, buf, r.Offset, r.Data, int(r.Length)); err != nil {
		return errors.Join(err, d.wipe(w.slot)) // nothing has happened to the range
	}
	place := func(flags int) error { return w.move(unix.SYS_PWRITEV2, r.Data, r.Offset, flags) }
	err := place(unix.RWF_DSYNC)
	if err == nil {
		return d.wipe(w.slot)
	}
	// A part of it may be there, so it is finished: now, or from the log when the device is opened again. Until then no
	// write is acknowledged that the log would undo, and no read sees a part.
	err = d.unsynced(err, func() error { return place(0) })
	if again := place(unix.RWF_DSYNC); again != nil {
		return d.breaks(r.Offset, r.Length, fmt.Errorf("%w: an atomic write is half done, so nothing more is written until the volume is opened again and finishes it: %w", blockdev.ErrMedium, err))
	}
	return d.wipe(w.slot)
}

// reserve takes the room of a range: a hole, or a block shared with a clone, that finds none later would leave half of an
// atomic write.
func (d *Device) reserve(off, n int64) error {
	if d.block {
		return nil
	}
	for _, mode := range [...]uint32{unix.FALLOC_FL_UNSHARE_RANGE, 0} {
		err := fallocate(d.fd, mode|unix.FALLOC_FL_KEEP_SIZE, off, n)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINVAL):
			return wrap(fmt.Sprintf("room for an atomic write of %d bytes at %d", n, off), err)
		}
	}
	return nil
}

// atomicInOne is one pwritev2. It is not done where the kernel refuses this very write, for a file whose blocks lie apart.
func (w *worker) atomicInOne(buf []byte, r *blockdev.Request) (done bool, err error) {
	b := buf[:r.Length]
	mem.Gather(b, r.Data, 0)
	w.iov[0].Base = &b[0]
	w.iov[0].SetLen(len(b))
	write := func(flags int) (int64, error) {
		n, err := vectored(unix.SYS_PWRITEV2, w.d.fd, w.iov[:1], r.Offset, unix.RWF_ATOMIC|flags)
		if err != nil {
			err = failed(unix.SYS_PWRITEV2, r.Offset, r.Length, err)
		}
		return n, err
	}
	flags := 0
	if r.FUA {
		flags = unix.RWF_DSYNC
	}
	n, err := write(flags)
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return false, nil
	case err != nil && r.FUA:
		return true, w.d.unsynced(err, func() error { _, err := write(0); return err })
	case err != nil:
		return true, err
	case n != r.Length:
		return true, fmt.Errorf("%w: an atomic write of %d bytes at %d wrote %d", blockdev.ErrMedium, r.Length, r.Offset, n)
	}
	return true, nil
}

// wipe ends a write's time in the log. A slot that cannot be wiped would undo, at the next start, whatever is written to
// its range from now on: the device takes no more writes then.
func (d *Device) wipe(slot int) error {
	err := d.atomics.log.End(slot)
	if err == nil {
		return nil
	}
	if err = d.atomics.log.End(slot); err == nil {
		return nil
	}
	return d.breaks(0, 0, fmt.Errorf("%w: the redo log cannot be wiped, so nothing more is written until the volume is opened again: %w", blockdev.ErrMedium, err))
}

// breaks stops the device; the first reason stays. What n bytes at off hold is kept from readers.
func (d *Device) breaks(off, n int64, err error) error {
	for {
		old := d.broken.Load()
		b := &breakage{err: err, off: off, n: n}
		switch {
		case old == nil:
		case n == 0:
			return err
		case old.n == 0:
			b.err = old.err
		default: // all between the two, for reads there may wait
			b.err, b.off = old.err, min(old.off, off)
			b.n = max(old.off+old.n, off+n) - b.off
		}
		if d.broken.CompareAndSwap(old, b) {
			return err
		}
	}
}

// Scrub implements blockdev.Scrubber.
func (d *Device) Scrub() error {
	if err := d.use(); err != nil {
		return err
	}
	defer d.running.Done()
	if err := d.halted(); err != nil {
		return err
	}
	return d.atomics.scrub(d.workers)
}

// scrub overwrites what the log still has of writes that are over.
func (a *atomics) scrub(slots int) error {
	if a.log == nil || !a.used.Load() {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.log.Scrub(slots); err != nil {
		return fmt.Errorf("blockdev/file: the redo log's old data cannot be overwritten: %w", err)
	}
	a.used.Store(false)
	return nil
}
