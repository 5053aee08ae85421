package file

import (
	"errors"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
)

// Submit implements blockdev.Device.
func (d *Device) Submit(r *blockdev.Request) {
	r.Err = nil // a worker may be told by it what the ring came to
	g := d.Geometry()
	if err := r.Check(&g); err != nil {
		r.Finish(err)
		return
	}
	if r.Op != blockdev.Read {
		if err := d.halted(); err != nil {
			r.Finish(err)
			return
		}
	}
	switch r.Op {
	case blockdev.Read:
		if r.Length == 0 || !d.noInline.Load() && len(r.Data) <= inlineSpans && d.readCached(r) {
			r.Finish(nil)
			return
		}
		if d.ring.submit(r) {
			return
		}
	case blockdev.Flush:
		if d.geo.ReadOnly {
			r.Finish(nil)
			return
		}
		if !d.flusher.add(r) {
			return // the one under way will take it along
		}
		r = &d.flusher.job
	case blockdev.CompareWrite:
		if r.Length > maxCompareWrite {
			r.Finish(blockdev.ErrRange)
			return
		}
		fallthrough
	default:
		if r.Length == 0 {
			r.Finish(nil)
			return
		}
		if r.Deferrer != nil && d.brief(r) && r.Deferrer.Defer(d, r) || d.ring.submit(r) {
			return
		}
	}
	if !d.queue.Put(r) {
		if r == &d.flusher.job {
			d.flusher.abandon(blockdev.ErrClosed)
			return
		}
		r.Finish(blockdev.ErrClosed)
	}
}

// readCached reads all of r if the page cache has it. What it read of a half-cached range the worker reads again.
func (d *Device) readCached(r *blockdev.Request) bool {
	if d.closing.Load() {
		return false // the number of the descriptor may be another file's by now
	}
	var iov [inlineSpans]unix.Iovec
	k, _ := vector(iov[:], r.Data, 0)
	done := d.compares.finished.Load()
	n, err := vectored(unix.SYS_PREADV2, d.fd, iov[:k], r.Offset, unix.RWF_NOWAIT)
	if err != nil {
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) {
			d.noInline.Store(true)
		}
		return false
	}
	return n == r.Length && d.compares.started.Load() == done
}

// brief reports a write that goes to the page cache and no further: it blocks only while the kernel has too much of it.
func (d *Device) brief(r *blockdev.Request) bool {
	return r.Op == blockdev.Write && !d.direct && !r.FUA && !r.Atomic && len(r.Data) <= inlineSpans
}

// Perform implements blockdev.Performer.
func (d *Device) Perform(r *blockdev.Request) {
	var iov [inlineSpans]unix.Iovec
	k, _ := vector(iov[:], r.Data, 0)
	d.locks.RLock(r.Offset, r.Length)
	if d.halted() != nil || d.closing.Load() {
		d.locks.RUnlock(r.Offset, r.Length)
		d.requeue(r)
		return
	}
	n, err := vectored(unix.SYS_PWRITEV2, d.fd, iov[:k], r.Offset, 0)
	d.locks.RUnlock(r.Offset, r.Length)
	if err == nil && n == r.Length {
		r.Finish(nil)
		return
	}
	d.requeue(r)
}

// requeue has a worker write all of r again, the rest of a short write with it, and find the words for what is wrong.
func (d *Device) requeue(r *blockdev.Request) {
	if !d.queue.Put(r) {
		r.Finish(blockdev.ErrClosed)
	}
}

// flusher joins flushes: those that arrive while one fdatasync runs wait for the next, together.
type flusher struct {
	mu      sync.Mutex
	waiting *blockdev.Request
	queued  bool
	job     blockdev.Request // stands in the queue for all of them
}

// add reports whether job has to be queued.
func (f *flusher) add(r *blockdev.Request) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	r.Next, f.waiting = f.waiting, r
	queue := !f.queued
	f.queued = true
	f.job.Op = blockdev.Flush
	return queue
}

// take removes all that wait; with none left the job is over.
func (f *flusher) take() *blockdev.Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	rs := f.waiting
	f.waiting = nil
	f.queued = rs != nil
	return rs
}

func (f *flusher) abandon(err error) {
	for rs := f.take(); rs != nil; rs = f.take() {
		finishAll(rs, err)
	}
}

func finishAll(rs *blockdev.Request, err error) {
	for rs != nil {
		next := rs.Next
		rs.Next = nil
		rs.Finish(err)
		rs = next
	}
}
