package rbd

import (
	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/ceph"
	"github.com/sluice-storage/sluice/mem"
)

// work is what the ring remembers of a request.
type work struct {
	r     *blockdev.Request
	wake  chan<- int64 // of a worker that waits, in place of r
	done  uint64       // finished compare-and-writes before a read began
	flush bool         // r's write is done, and the flush behind it is under way
}

// Submit implements blockdev.Device.
func (d *Device) Submit(r *blockdev.Request) {
	g := d.Geometry()
	if err := r.Check(&g); err != nil {
		r.Finish(err)
		return
	}
	if d.closing.Load() {
		r.Finish(blockdev.ErrClosed)
		return
	}
	// For good: when the entry that shuts this client out has expired the cluster takes its writes again, and the image is another's.
	if d.fenced.Load() {
		r.Finish(blockdev.ErrFenced)
		return
	}
	switch r.Op {
	case blockdev.Flush:
		if d.geo.ReadOnly {
			r.Finish(nil)
			return
		}
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
	}
	if !d.start(r) && !d.queue.Put(r) {
		r.Finish(blockdev.ErrClosed)
	}
}

// start gives a request to the ring. False says that a worker has to do it.
func (d *Device) start(r *blockdev.Request) bool {
	switch r.Op {
	case blockdev.Read, blockdev.Write:
		if len(r.Data) > ceph.Spans {
			return false
		}
	case blockdev.Flush, blockdev.Discard:
	case blockdev.WriteZeroes:
		if r.Length > maxDiscard {
			return false
		}
	default:
		return false
	}
	if changes(r.Op) && !d.locks.TryRLock(r.Offset, r.Length) {
		return false // a compare-and-write has the range
	}
	deferrer := r.Deferrer // the request may have ended when it is needed
	g := d.ring
	g.Lock()
	if g.ClosedLocked() {
		g.Unlock()
		d.unlock(r)
		return false
	}
	if !d.startLocked(r) {
		d.wait.putLocked(r)
	}
	pending, ending := g.PendingLocked(), g.EndingLocked()
	g.Unlock()
	if pending == 0 || ending {
		return true
	}
	if pending < ringBatch && deferrer != nil && deferrer.Defer(d, &d.job) {
		return true
	}
	g.Enter()
	return true
}

// Perform implements blockdev.Performer: it starts what is queued.
func (d *Device) Perform(*blockdev.Request) { d.ring.Enter() }

// changes reports an operation that a compare-and-write excludes.
func changes(op blockdev.Op) bool {
	return op == blockdev.Write || op == blockdev.Discard || op == blockdev.WriteZeroes
}

// unlock ends what start has locked.
func (d *Device) unlock(r *blockdev.Request) {
	if changes(r.Op) {
		d.locks.RUnlock(r.Offset, r.Length)
	}
}

func (w *waiting) putLocked(r *blockdev.Request) {
	r.Next = nil
	if w.tail == nil {
		w.head = r
	} else {
		w.tail.Next = r
	}
	w.tail = r
}

// startLocked queues a request, unless the ring is full. One that waits may not be overtaken by a later one for ever, so none is while
// some wait.
func (d *Device) startLocked(r *blockdev.Request) bool {
	if d.wait.head != nil && d.wait.head != r {
		return false
	}
	s := d.ring.TakeLocked()
	if s == nil {
		return false
	}
	s.V = work{r: r}
	d.fill(s, r)
	d.ring.QueueLocked(s)
	return true
}

// fill describes a request to librbd.
func (d *Device) fill(s *ceph.Slot[work], r *blockdev.Request) {
	switch r.Op {
	case blockdev.Read, blockdev.Write:
		n := vector(s, r.Data)
		if r.Op == blockdev.Read {
			s.V.done = d.compares.finished.Load()
			s.Read(n, r.Offset)
		} else {
			s.Write(n, r.Offset)
		}
	case blockdev.Flush:
		s.Flush()
	case blockdev.Discard:
		s.Discard(r.Offset, r.Length)
	case blockdev.WriteZeroes:
		s.Zero(r.Offset, r.Length, !r.Unmap)
	}
}

// vector has the slot's pieces of memory name those of spans.
func vector(s *ceph.Slot[work], spans []mem.Span) (n int) {
	iov := s.Vector()
	for i := range spans {
		b := spans[i].Bytes()
		if len(b) == 0 {
			continue
		}
		setIovec(&iov[n], b)
		n++
	}
	return n
}

func setIovec(v *unix.Iovec, b []byte) {
	v.Base = &b[0]
	v.SetLen(len(b))
}

// handler is the ring's user.
type handler Device

// Ended implements ceph.RingHandler.
func (h *handler) Ended(s *ceph.Slot[work], result int64) (again bool) {
	d := (*Device)(h)
	w := &s.V
	if w.wake != nil {
		w.wake <- result // it has room
		return false
	}
	r := w.r
	if result >= 0 && d.cache && !w.flush && r.FUA && (r.Op == blockdev.Write || r.Op == blockdev.WriteZeroes) {
		w.flush = true
		s.Flush()
		return true
	}
	d.unlock(r)
	switch {
	case result == -int64(unix.ESHUTDOWN):
		d.fenced.Store(true)
		d.ending.Finish(r, failed(r, result))
	case result < 0:
		d.ending.Finish(r, failed(r, result))
	case r.Op == blockdev.Read && (result != r.Length || d.compares.started.Load() != w.done):
		// A short read is of an image that shrank; the other may have seen a compare-and-write half done. A worker reads again.
		if !d.queue.Put(r) {
			d.ending.Finish(r, blockdev.ErrClosed)
		}
	default:
		d.ending.Finish(r, nil)
	}
	return false
}

// EndedAll implements ceph.RingHandler.
func (h *handler) EndedAll() { (*Device)(h).ending.Flush() }

// RoomLocked implements ceph.RingHandler: requests that waited begin, in order.
func (h *handler) RoomLocked() {
	d := (*Device)(h)
	for r := d.wait.head; r != nil; r = d.wait.head {
		next := r.Next
		if !d.startLocked(r) {
			return
		}
		if d.wait.head = next; next == nil {
			d.wait.tail = nil
		}
	}
}
