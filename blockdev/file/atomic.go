package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/internal/redo"
)

// atomics is how the device keeps a write whole across a loss of power.
type atomics struct {
	f   *os.File // of the log
	log *redo.Log
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

// forgetLog removes the log of a volume of this name that was there before, durably, before a new one is made: what it
// says is nothing to that.
func forgetLog(path string, o Options) error {
	switch err := os.Remove(logPath(path, o)); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("blockdev/file: an old redo log: %w", err)
	}
	return syncDir(logPath(path, o))
}

// openAtomics recovers what a crash left in the log, and opens it where atomic writes are wanted.
func (d *Device) openAtomics(o Options) error {
	path := logPath(d.path, o)
	want := o.Atomic && !o.ReadOnly
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
	d.atomics.f, d.atomics.log = f, redo.New(logStore{f})
	if err := d.recover(o.ReadOnly); err != nil {
		return err
	}
	if !want {
		err := f.Close()
		d.atomics = atomics{}
		return err
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

// recover writes again what was under way when the last process ended.
func (d *Device) recover(readOnly bool) error {
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
		return err
	}
	size := d.size.Load()
	_, err = d.atomics.log.Recover(slots, func(off int64, data []byte) error {
		if off < 0 || off > size-int64(len(data)) {
			return fmt.Errorf("%w: the log is not of this device, or the device shrank", blockdev.ErrRange)
		}
		return d.place(data, off)
	})
	if err != nil {
		return fmt.Errorf("blockdev/file: %s: %w", d.atomics.f.Name(), err)
	}
	return nil
}

// place writes outside of any worker, durably. The descriptor may want aligned memory, so a buffer of its own is used.
func (d *Device) place(data []byte, off int64) error {
	w := &worker{d: d}
	buf, err := w.buffer()
	if err != nil {
		return err
	}
	n := copy(buf, data)
	return errors.Join(w.moveBytes(unix.SYS_PWRITEV2, buf[:n], off, unix.RWF_DSYNC), w.bounce.Close())
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
	if b := d.broken.Load(); b != nil {
		return *b
	}
	d.compares.started.Add(1)
	defer d.compares.finished.Add(1)
	if d.atomics.inOne(r.Offset, r.Length) {
		if done, err := w.atomicInOne(buf, r); done {
			return err
		}
	}
	if err := d.reserve(r.Offset, r.Length); err != nil {
		return err
	}
	err = d.atomics.log.Begin(w.slot, buf, r.Offset, r.Data, int(r.Length))
	if err == nil {
		err = w.move(unix.SYS_PWRITEV2, r.Data, r.Offset, unix.RWF_DSYNC)
	}
	return errors.Join(err, d.wipe(w.slot))
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
	blockdev.Gather(b, r.Data, 0)
	w.iov[0].Base = &b[0]
	w.iov[0].SetLen(len(b))
	n, err := vectored(unix.SYS_PWRITEV2, w.d.fd, w.iov[:1], r.Offset, unix.RWF_ATOMIC|w.d.durable(r))
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return false, nil
	case err != nil:
		return true, failed(unix.SYS_PWRITEV2, r.Offset, r.Length, err)
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
	err = fmt.Errorf("%w: the redo log cannot be wiped, so nothing more is written until the volume is opened again: %w", blockdev.ErrMedium, err)
	d.broken.Store(&err)
	return err
}
