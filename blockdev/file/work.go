package file

import (
	"errors"
	"fmt"
	"io"
	"math"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
)

// worker serves one request at a time and may block.
type worker struct {
	d      *Device
	slot   int // of the redo log
	iov    [maxIovec]unix.Iovec
	bounce *mem.Slab // taken at the first need
}

func (d *Device) start() {
	for i := range d.workers {
		w := &worker{d: d, slot: i}
		d.running.Go(w.run)
	}
}

func (w *worker) run() {
	for {
		r := w.d.queue.Get()
		if r == nil {
			break
		}
		switch r {
		case &w.d.flusher.job:
			w.flush()
			continue
		case &w.d.ring.job:
			w.d.ring.asks()
			continue
		}
		r.Finish(w.do(r))
	}
	if w.bounce != nil {
		// Unmapping memory that only this worker knows cannot fail, and the device's callers have gone.
		_ = w.bounce.Close()
	}
}

func (w *worker) do(r *blockdev.Request) error {
	d := w.d
	switch r.Op {
	case blockdev.Read:
		return w.read(r)
	case blockdev.Write:
		if r.Atomic {
			return w.atomicWrite(r)
		}
	case blockdev.CompareWrite:
		return w.compareWrite(r)
	case blockdev.Status:
		return w.status(r)
	}
	d.locks.RLock(r.Offset, r.Length)
	defer d.locks.RUnlock(r.Offset, r.Length)
	if err := d.halted(); err != nil {
		// An atomic write that had the range before broke the device.
		if r.Err != nil { // the ring has tried, and what it was told of may be an earlier write: no later call is told again
			err = errors.Join(err, d.loss.found(r.Err))
		}
		return err
	}
	switch r.Op {
	case blockdev.Write:
		return w.write(r)
	case blockdev.Discard:
		return w.discard(r)
	case blockdev.WriteZeroes:
		return w.writeZeroes(r)
	}
	return blockdev.ErrUnsupported
}

func (w *worker) read(r *blockdev.Request) error {
	d := w.d
	done := d.compares.finished.Load()
	err := w.move(unix.SYS_PREADV2, r.Data, r.Offset, 0)
	if err != nil || d.compares.started.Load() == done {
		return err
	}
	d.locks.RLock(r.Offset, r.Length)
	defer d.locks.RUnlock(r.Offset, r.Length)
	if b := d.broken.Load(); b != nil && r.Offset < b.off+b.n && b.off < r.Offset+r.Length {
		return b.err // a part of an atomic write may be there
	}
	return w.move(unix.SYS_PREADV2, r.Data, r.Offset, 0)
}

func (w *worker) write(r *blockdev.Request) error {
	if !r.FUA {
		return w.move(unix.SYS_PWRITEV2, r.Data, r.Offset, 0)
	}
	err := r.Err // of the ring, which has tried
	if r.Err = nil; err == nil {
		err = w.move(unix.SYS_PWRITEV2, r.Data, r.Offset, unix.RWF_DSYNC)
	}
	if err == nil {
		return nil
	}
	return w.d.unsynced(err, func() error { return w.move(unix.SYS_PWRITEV2, r.Data, r.Offset, 0) })
}

// move reads or writes all of spans at off, in as many calls as it takes.
func (w *worker) move(trap uintptr, spans []mem.Span, off int64, flags int) error {
	if w.d.direct && !w.d.aligned(spans) {
		return w.bounced(trap, spans, off, flags)
	}
	for at := int64(0); ; {
		k, bytes := vector(w.iov[:], spans, at)
		if k == 0 {
			return nil
		}
		if w.d.direct && k == maxIovec {
			// A cut in the middle of a block is fine for memory and not for the medium.
			return w.bounced(trap, spans, off, flags)
		}
		n, err := vectored(trap, w.d.fd, w.iov[:k], off+at, flags)
		if err != nil {
			return failed(trap, off+at, bytes, err)
		}
		if n == 0 {
			return failed(trap, off+at, bytes, io.ErrUnexpectedEOF)
		}
		at += n
	}
}

func failed(trap uintptr, off, n int64, err error) error {
	what := "read"
	if trap == unix.SYS_PWRITEV2 {
		what = "write"
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		// The file was cut short below us.
		return fmt.Errorf("%w: %s of %d bytes at %d: %w", blockdev.ErrMedium, what, n, off, err)
	}
	return wrap(fmt.Sprintf("%s of %d bytes at %d", what, n, off), err)
}

func (d *Device) aligned(spans []mem.Span) bool {
	for i := range spans {
		// Slabs are page-aligned, so the offset in the slab is as good as the address.
		if spans[i].Off%d.memAlign != 0 || spans[i].Len%d.offAlign != 0 {
			return false
		}
	}
	return true
}

func (w *worker) buffer() ([]byte, error) {
	if w.bounce == nil {
		s, err := mem.NewSlab(bounceSize)
		if err != nil {
			return nil, err
		}
		w.bounce = s
	}
	return w.bounce.Bytes(), nil
}

// bounced is move through the worker's own buffer.
func (w *worker) bounced(trap uintptr, spans []mem.Span, off int64, flags int) error {
	buf, err := w.buffer()
	if err != nil {
		return err
	}
	length := mem.Total(spans)
	for at := int64(0); at < length; {
		b := buf[:min(int64(len(buf)), length-at)]
		if trap == unix.SYS_PWRITEV2 {
			mem.Gather(b, spans, at)
		}
		if err := w.moveBytes(trap, b, off+at, flags); err != nil {
			return err
		}
		if trap == unix.SYS_PREADV2 {
			mem.Scatter(spans, at, b)
		}
		at += int64(len(b))
	}
	return nil
}

func (w *worker) moveBytes(trap uintptr, b []byte, off int64, flags int) error {
	for len(b) > 0 {
		w.iov[0].Base = &b[0]
		w.iov[0].SetLen(len(b))
		n, err := vectored(trap, w.d.fd, w.iov[:1], off, flags)
		if err == nil && n == 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return failed(trap, off, int64(len(b)), err)
		}
		b, off = b[n:], off+n
	}
	return nil
}

func (w *worker) compareWrite(r *blockdev.Request) error {
	buf, err := w.buffer()
	if err != nil {
		return err
	}
	d := w.d
	d.locks.Lock(r.Offset, r.Length)
	defer d.locks.Unlock(r.Offset, r.Length)
	if err := d.halted(); err != nil {
		return err
	}
	b := buf[:r.Length]
	if err := w.moveBytes(unix.SYS_PREADV2, b, r.Offset, 0); err != nil {
		return err
	}
	r.Miss = 0
	if i := mem.Differ(b, r.Compare, 0); i >= 0 {
		r.Miss = int64(i)
		return blockdev.ErrMiscompare
	}
	d.compares.started.Add(1)
	defer d.compares.finished.Add(1)
	return w.write(r)
}

// discard gives a range back. On a block device that is BLKDISCARD: punching a hole there writes zeroes where the device
// has no cheaper way to make them, which takes the space of a thin one.
func (w *worker) discard(r *blockdev.Request) error {
	d := w.d
	switch {
	case d.noPunch.Load():
		return blockdev.ErrUnsupported
	case !d.block:
		return w.punch(r)
	}
	switch err := blkDiscard(d.fd, r.Offset, r.Length); {
	case err == nil:
		return nil
	case errors.Is(err, unix.EOPNOTSUPP):
		d.noPunch.Store(true)
		return blockdev.ErrUnsupported
	default:
		return wrap(fmt.Sprintf("discard of %d bytes at %d", r.Length, r.Offset), err)
	}
}

func (w *worker) punch(r *blockdev.Request) error {
	err := fallocate(w.d.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, r.Offset, r.Length)
	if err == nil {
		return nil
	}
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) || w.d.block && errors.Is(err, unix.EINVAL) {
		w.d.noHole.Store(true)
		return blockdev.ErrUnsupported
	}
	return wrap(fmt.Sprintf("discard of %d bytes at %d", r.Length, r.Offset), err)
}

func (w *worker) writeZeroes(r *blockdev.Request) error {
	d := w.d
	err := blockdev.ErrUnsupported
	if r.Unmap && !d.thick && !d.noHole.Load() {
		err = w.punch(r) // also on a block device: zeroes, written by whatever means it has
	}
	if errors.Is(err, blockdev.ErrUnsupported) && !d.noZero.Load() {
		err = fallocate(d.fd, unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, r.Offset, r.Length)
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) {
			d.noZero.Store(true)
			err = blockdev.ErrUnsupported
		} else if err != nil {
			err = wrap(fmt.Sprintf("zeroes of %d bytes at %d", r.Length, r.Offset), err)
		}
	}
	if errors.Is(err, blockdev.ErrUnsupported) {
		err = w.zeroByHand(r)
	}
	if err != nil || !r.FUA {
		return err
	}
	return d.sync()
}

func (w *worker) zeroByHand(r *blockdev.Request) error {
	buf, err := w.buffer()
	if err != nil {
		return err
	}
	clear(buf)
	for at := int64(0); at < r.Length; {
		n := min(int64(len(buf)), r.Length-at)
		if err := w.moveBytes(unix.SYS_PWRITEV2, buf[:n], r.Offset+at, 0); err != nil {
			return err
		}
		at += n
	}
	return nil
}

// flush runs one fdatasync for all requests that wait, until none does.
func (w *worker) flush() {
	f := &w.d.flusher
	for rs := f.take(); rs != nil; rs = f.take() {
		finishAll(rs, w.d.sync())
	}
}

// status walks the holes of the file.
func (w *worker) status(r *blockdev.Request) error {
	r.Extents = r.Extents[:0]
	off, end := r.Offset, r.Offset+r.Length
	if w.d.block {
		r.Extents = appendExtent(r.Extents, off, end, true)
		return nil
	}
	block := int64(w.d.geo.Logical)
	for off < end {
		data, err := unix.Seek(w.d.fd, off, unix.SEEK_DATA)
		switch {
		case errors.Is(err, unix.ENXIO):
			data = math.MaxInt64 // nothing but a hole
		case errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP):
			r.Extents = appendExtent(r.Extents, off, end, true)
			return nil
		case err != nil:
			return wrap("status", err)
		}
		data = min(data-data%block, end)
		if data > off {
			if len(r.Extents) == cap(r.Extents) && !mergeable(r.Extents, false) {
				return nil
			}
			r.Extents = appendExtent(r.Extents, off, data, false)
			off = data
			continue
		}
		hole, err := unix.Seek(w.d.fd, off, unix.SEEK_HOLE)
		if err != nil {
			return wrap("status", err)
		}
		hole = min((hole+block-1)/block*block, end)
		if len(r.Extents) == cap(r.Extents) && !mergeable(r.Extents, true) {
			return nil
		}
		if hole <= off {
			hole = off + block // punched between the two calls
		}
		r.Extents = appendExtent(r.Extents, off, hole, true)
		off = hole
	}
	return nil
}

func mergeable(es []blockdev.Extent, mapped bool) bool {
	return len(es) > 0 && es[len(es)-1].Mapped == mapped
}

// appendExtent never grows beyond the capacity: Status fills what it was given.
func appendExtent(es []blockdev.Extent, off, end int64, mapped bool) []blockdev.Extent {
	if mergeable(es, mapped) {
		es[len(es)-1].Length = end - es[len(es)-1].Offset
		return es
	}
	if len(es) == cap(es) {
		return es
	}
	return append(es, blockdev.Extent{Offset: off, Length: end - off, Mapped: mapped})
}
