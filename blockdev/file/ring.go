package file

import (
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/uring"
)

// ringer has the kernel do by io_uring(7) what waits for the medium and needs no thread of ours meanwhile, so that the depth of
// the disk's queue is the initiators' and not the number of workers. That is
//
//   - each read that the page cache has not, or that goes past it (O_DIRECT);
//   - each write that goes past it, with RWF_DSYNC for FUA.
//
// Everything else stays where it was. A write into the page cache is its submitter's (Performer) or a worker's: ext4 punts each of
// them to a kernel's worker. So it is with fsync and fallocate, which io_uring always punts: their waiting thread would be the
// kernel's in place of ours. Compare-and-write and atomic writes lock, compare and log.
//
// The kernel lets go of an operation, and with it of the file, a moment after its completion: on a thread that runs it, or a work queue where
// that thread has ended. Close unlocks the file itself, and Open tries for a moment.
//
// A worker also finishes what did not go as it should: requests that came back short, refused or interrupted; a read that may have
// seen a compare-and-write half done; and what FUA's error means for earlier writes, which takes further calls (unsynced).
type ringer struct {
	d   *Device
	q   *uring.Queue[ringWork]
	why error // there is no queue

	job blockdev.Request // stands for all that is queued, where an owner of a connection submits it

	// Guarded by q's lock: requests that wait because the queue is at its depth, and whether job is in the workers' queue.
	head, tail *blockdev.Request
	asked      bool

	gave atomic.Uint64 // requests that a worker had to finish
}

// ringWork is what an operation remembers.
type ringWork struct {
	r    *blockdev.Request
	done uint64 // finished compare-and-writes before a read began
}

// open makes the ring, where there is io_uring.
func (g *ringer) open(d *Device, o Options) {
	g.d = d
	if o.NoRing {
		return
	}
	opt := uring.Options[ringWork]{Handler: g, Depth: ringDepth}
	if f := tamper; f != nil {
		opt.Tamper = func(op *uring.Op[ringWork]) bool { return f(g, op) }
	}
	g.q, g.why = uring.Open(opt)
}

// tamper sees each completion before it counts. It is nil but in tests.
var tamper func(*ringer, *uring.Op[ringWork]) bool

// path is the ring's part of Explainer.
func (g *ringer) path() string {
	if g.q == nil {
		if g.why != nil {
			return "the rest by worker (" + g.why.Error() + ")"
		}
		return "the rest by worker"
	}
	if err := g.q.Down(); err != nil {
		return "the rest by worker (" + err.Error() + ")"
	}
	if g.d.direct {
		return "reads and writes by io_uring"
	}
	return "other reads by io_uring"
}

// Queue implements blockdev.QueueReporter.
func (d *Device) Queue() (q blockdev.Queue, some bool) {
	g := &d.ring
	if g.q == nil {
		return blockdev.Queue{Why: g.why}, true
	}
	s, why := g.q.Stats(), g.q.Down()
	return blockdev.Queue{Kernel: why == nil, Why: why, Requests: s.Operations, Calls: s.Enters, Again: g.gave.Load(), UnderWay: s.UnderWay}, true
}

// takes reports a request that can go by the ring as it is.
func (g *ringer) takes(r *blockdev.Request) bool {
	d := g.d
	switch {
	case g.q == nil, len(r.Data) > uring.Spans, d.halted() != nil:
		return false
	case r.Op == blockdev.Read:
	case r.Op == blockdev.Write && d.direct && !r.Atomic:
	default:
		return false
	}
	return !d.direct || d.aligned(r.Data)
}

// submit gives a request to the ring. False says that a worker has to do it.
func (g *ringer) submit(r *blockdev.Request) bool {
	if !g.takes(r) {
		return false
	}
	d := g.d
	if r.Op == blockdev.Write {
		// Until it has ended; a compare-and-write or an atomic write may wait for that.
		if !d.locks.TryRLock(r.Offset, r.Length) {
			return false
		}
		if d.halted() != nil {
			d.locks.RUnlock(r.Offset, r.Length)
			return false
		}
	}
	deferrer := r.Deferrer // the request may have ended when it is needed
	q := g.q
	q.Lock()
	if !g.startLocked(r) {
		if q.DownLocked() {
			q.Unlock()
			g.unlock(r)
			return false
		}
		g.waitLocked(r)
	}
	pending, collecting := q.PendingLocked(), q.CollectingLocked()
	q.Unlock()
	switch {
	case pending == 0 || collecting:
	case pending < ringBatch && deferrer != nil && deferrer.Defer(g, &g.job):
	case d.direct:
		q.Enter()
	default:
		g.askWorker()
	}
	return true
}

// askWorker has a worker submit what is queued: a read by way of the page cache begins to read ahead, for which the file system may have
// to look at the medium.
func (g *ringer) askWorker() {
	g.q.Lock()
	defer g.q.Unlock()
	if !g.asked {
		g.asked = g.d.queue.Put(&g.job) // the queue is open as long as the ring is
	}
}

// asks is a worker's.
func (g *ringer) asks() {
	g.q.Lock()
	g.asked = false
	g.q.Unlock()
	g.Perform(&g.job)
}

// Perform implements blockdev.Performer: it submits what is queued, and ends what has ended meanwhile.
func (g *ringer) Perform(*blockdev.Request) {
	g.q.Enter()
	g.q.Reap()
}

// startLocked queues a request, unless the queue is at its depth.
func (g *ringer) startLocked(r *blockdev.Request) bool {
	op := g.q.TakeLocked()
	if op == nil {
		return false
	}
	op.V = ringWork{r: r}
	n, _ := vector(op.IOV[:], r.Data, 0)
	switch {
	case r.Op == blockdev.Read:
		op.V.done = g.d.compares.finished.Load()
		op.Read(g.d.fd, n, r.Offset, 0)
	case r.FUA:
		op.Write(g.d.fd, n, r.Offset, unix.RWF_DSYNC)
	default:
		op.Write(g.d.fd, n, r.Offset, 0)
	}
	g.q.QueueLocked(op)
	return true
}

func (g *ringer) waitLocked(r *blockdev.Request) {
	r.Next = nil
	if g.tail == nil {
		g.head = r
	} else {
		g.tail.Next = r
	}
	g.tail = r
}

// RoomLocked implements uring.Handler: requests that waited begin, in order. Where the kernel takes none any more the workers have
// them.
func (g *ringer) RoomLocked() {
	for g.head != nil {
		r := g.head
		next := r.Next
		down := g.q.DownLocked()
		if !down && !g.startLocked(r) {
			return
		}
		if g.head = next; next == nil {
			g.tail = nil
		}
		if down {
			g.unlock(r)
			g.give(r)
		}
	}
}

// Ended implements uring.Handler.
func (g *ringer) Ended(first *uring.Op[ringWork]) {
	var e blockdev.Ending
	for op := first; op != nil; op = op.Next() {
		g.end(&e, op)
	}
	g.q.Free(first)
	e.Flush()
}

// unlock ends what submit has locked.
func (g *ringer) unlock(r *blockdev.Request) {
	if r.Op == blockdev.Write {
		g.d.locks.RUnlock(r.Offset, r.Length)
	}
}

// end finishes a request, or gives it to a worker.
func (g *ringer) end(e *blockdev.Ending, op *uring.Op[ringWork]) {
	d, r := g.d, op.V.r
	g.unlock(r)
	switch err := op.Errno(); {
	case err == 0 && int64(op.Res) == r.Length && (r.Op == blockdev.Write || d.compares.started.Load() == op.V.done):
		e.Finish(r, nil)
	case err == 0, refused(err), err == unix.ECANCELED, err == unix.EINTR && !r.FUA:
		// Nothing was done of it, or a part: all of it is done again. ECANCELED is of a thread that ended.
		g.give(r)
	case r.Op == blockdev.Write && r.FUA:
		r.Err = failed(unix.SYS_PWRITEV2, r.Offset, r.Length, err) // for the worker
		g.give(r)
	case r.Op == blockdev.Write:
		e.Finish(r, failed(unix.SYS_PWRITEV2, r.Offset, r.Length, err))
	default:
		e.Finish(r, failed(unix.SYS_PREADV2, r.Offset, r.Length, err))
	}
}

// give has a worker finish a request, on which the ring has no hold any more. The workers' queue is open as long as the ring is.
func (g *ringer) give(r *blockdev.Request) {
	g.gave.Add(1)
	g.d.requeue(r)
}

func (g *ringer) close() error {
	if g.q == nil {
		return nil
	}
	return g.q.Close()
}
