package uring

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/group"
)

// ErrUnavailable is what the error of Open is where io_uring cannot be had. Its text says why, for a person.
var ErrUnavailable = errors.New("io_uring is not to be had")

func unavailable(errno unix.Errno) error {
	why := "the kernel refuses it"
	switch errno {
	case unix.ENOSYS:
		why = "the kernel has none, or a container's seccomp profile hides it"
	case unix.EPERM, unix.EACCES:
		why = "it is forbidden (sysctl kernel.io_uring_disabled, SystemCallFilter= of the unit, a container's seccomp profile or a security module)"
	case unix.ENOMEM:
		why = "there is no memory for a ring"
	case unix.EMFILE, unix.ENFILE:
		why = "there are too many open files"
	}
	return fmt.Errorf("%w: %s: %w", ErrUnavailable, why, errno)
}

// Try makes a ring and gives it back: an error that is ErrUnavailable says why there is no io_uring here.
func Try() error {
	r, err := openRing(1)
	if err != nil {
		return err
	}
	return r.close()
}

// Handler is the user of a Queue.
type Handler[T any] interface {
	// Ended is given operations that have ended, as a list; it must not block, and calls Free with them once it needs none of them
	// any more. What it starts meanwhile leaves with Free. Any goroutine, several at a time.
	Ended(first *Op[T])
	// RoomLocked is told that operations have become free, and may take some. The lock is held.
	RoomLocked()
}

// Options describe a Queue.
type Options[T any] struct {
	Handler Handler[T]
	// Depth is how many operations may be under way, 1 to MaxDepth.
	Depth int
	// enter is the system call. Tests have one that fails.
	enter func(fd int, n uint32) unix.Errno
	// Tamper, for tests, sees each completion before the handler does. It may change op.Res; where it reports false the
	// completion is withheld until Deliver.
	Tamper func(op *Op[T]) bool
}

// Stats count what a queue has done.
type Stats struct {
	Operations uint64 // that have ended
	Enters     uint64 // system calls that submitted
	Wakes      uint64 // of the reaper
	UnderWay   int    // now
}

// Queue is a ring, and the operations that are under way in it. Methods whose names end in Locked want its lock.
type Queue[T any] struct {
	o    Options[T]
	ring *ring // until Close

	sync.Mutex
	ops        []*Op[T] // by slot
	free       *Op[T]
	out        int    // operations that are not free
	tail       uint32 // behind the entries that are written
	pending    uint32 // entries that the kernel has not taken
	entering   bool   // a goroutine is in enter
	handling   int    // batches of completions that are being handled,
	collecting int    // and those of them whose Free is still to come
	down       error  // the kernel takes nothing any more
	closed     bool
	idle       chan struct{} // Close waits

	reapMu sync.Mutex
	head   uint32 // behind the completions that were seen

	ended, enters, wakes atomic.Uint64
	stopping             atomic.Bool
	running              group.Group
}

// Open makes a queue. An error that is ErrUnavailable says that there is no io_uring here.
func Open[T any](o Options[T]) (*Queue[T], error) {
	if o.Depth < 1 || o.Depth > MaxDepth {
		return nil, fmt.Errorf("uring: a depth of %d; 1 to %d are possible", o.Depth, MaxDepth)
	}
	if o.enter == nil {
		o.enter = enter
	}
	entries := uint32(1)
	for int(entries) < o.Depth {
		entries *= 2
	}
	r, err := openRing(entries)
	if err != nil {
		return nil, err
	}
	q := &Queue[T]{o: o, ring: r}
	conn, err := r.event.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, r.close())
	}
	q.running.Go(func() {
		// The eventfd is never read: the poller tells each new signal, whatever the count.
		_ = conn.Read(func(uintptr) bool { // its error is the end
			q.wakes.Add(1)
			q.reap(true)
			return q.stopping.Load()
		})
	})
	return q, nil
}

// TakeLocked returns an operation to fill and to give to QueueLocked or DropLocked, or nil where Depth are under way or the queue
// takes none any more (DownLocked).
func (q *Queue[T]) TakeLocked() *Op[T] {
	if q.down != nil || q.closed {
		return nil
	}
	if q.free == nil {
		q.moreLocked()
	}
	o := q.free
	if o == nil {
		return nil
	}
	q.free, o.next = o.next, nil
	opLife.Must(&o.state, opTaken)
	q.out++
	return o
}

func (q *Queue[T]) moreLocked() {
	block := make([]Op[T], min(opsStep, q.o.Depth-len(q.ops))) // they lie together
	for i := range block {
		o := &block[i]
		o.slot = uint32(len(q.ops))
		q.ops = append(q.ops, o)
		o.next, q.free = q.free, o
	}
}

// DownLocked reports that operations are not taken any more: the kernel refuses all, or the queue is closed.
func (q *Queue[T]) DownLocked() bool { return q.down != nil || q.closed }

// Down is why the kernel refuses all operations, nil where it does not.
func (q *Queue[T]) Down() error {
	q.Lock()
	defer q.Unlock()
	return q.down
}

// QueueLocked writes the entry of an operation, which leaves with Enter. From then on it is the kernel's, until Ended.
func (q *Queue[T]) QueueLocked(o *Op[T]) {
	opLife.Must(&o.state, opUnderWay)
	o.entry.userData = uint64(o.slot)
	q.ring.put(q.tail, &o.entry) // there is room: as many entries as operations
	q.tail++
	q.pending++
	q.ring.publish(q.tail)
}

// DropLocked takes an operation back that was taken and not queued.
func (q *Queue[T]) DropLocked(o *Op[T]) { q.freeLocked(o) }

// PendingLocked is how many entries wait for Enter.
func (q *Queue[T]) PendingLocked() int { return int(q.pending) }

// CollectingLocked reports whether a handler has operations that ended, and so calls Free soon: what is queued leaves with that.
func (q *Queue[T]) CollectingLocked() bool { return q.collecting > 0 }

// Enter has the kernel take what is queued.
func (q *Queue[T]) Enter() {
	q.Lock()
	q.enterAndUnlock()
}

// enterAndUnlock also ends what the kernel will not take.
func (q *Queue[T]) enterAndUnlock() {
	refused := q.enterLocked()
	q.restLocked()
	q.Unlock()
	if refused != nil {
		q.handle(refused)
	}
}

// enterLocked lets go of the lock during the system call. Where another goroutine is in it, that one takes along what is queued.
// It returns operations that the kernel will not take; they are being handled.
func (q *Queue[T]) enterLocked() (refused *Op[T]) {
	if q.entering {
		return nil
	}
	q.entering = true
	for q.pending > 0 {
		n, before := q.pending, q.ring.taken()
		q.Unlock()
		errno := q.o.enter(q.ring.fd, n)
		q.enters.Add(1)
		q.Lock()
		took := q.ring.taken() - before // which stands, whatever it answered
		q.pending -= took
		if took > 0 {
			continue
		}
		if errno != 0 && errno != unix.EAGAIN && errno != unix.EBUSY && errno != unix.ENOMEM && errno != unix.EINTR {
			q.down = fmt.Errorf("%w any more: io_uring_enter: %w", ErrUnavailable, errno)
		} else if q.out > int(q.pending) {
			break // it lacks memory, which operations that end give back: then Free comes here again
		}
		refused = q.backLocked()
	}
	q.entering = false
	return refused
}

// backLocked takes back the entries that the kernel has not taken. It looks at entries in enter alone, and no goroutine is there.
func (q *Queue[T]) backLocked() (first *Op[T]) {
	for ; q.pending > 0; q.pending-- {
		q.tail--
		o := q.ops[q.ring.sqes[q.tail&q.ring.sqMask].userData]
		opLife.Must(&o.state, opEnded)
		o.Res = -int32(unix.EAGAIN)
		o.next, first = first, o
	}
	q.ring.publish(q.tail)
	q.handling++
	q.collecting++
	return first
}

// Reap handles completions that are there. It waits for nothing.
func (q *Queue[T]) Reap() { q.reap(false) }

// reap handles completions until there are none. With sure set it looks even where another goroutine is looking just now.
func (q *Queue[T]) reap(sure bool) {
	for {
		if sure {
			q.reapMu.Lock()
		} else if !q.reapMu.TryLock() {
			return
		}
		first, more := q.lookLocked()
		q.reapMu.Unlock()
		if first != nil {
			q.handle(first)
		}
		if !more {
			return
		}
	}
}

// lookLocked takes a batch of completions. It wants reapMu.
func (q *Queue[T]) lookLocked() (first *Op[T], more bool) {
	if q.ring == nil {
		return nil, false
	}
	tail := q.ring.ready()
	if tail == q.head {
		return nil, false
	}
	q.Lock()
	defer q.Unlock()
	last := &first
	for n := 0; q.head != tail && n < batch; n++ {
		c := q.ring.completion(q.head)
		q.head++
		o := q.ops[c.userData]
		if o.Res = c.res; q.o.Tamper != nil && !q.o.Tamper(o) {
			continue
		}
		opLife.Must(&o.state, opEnded) // or memory that is in use again has been moved
		*last, o.next = o, nil
		last = &o.next
	}
	q.ring.seen(q.head)
	if first != nil {
		q.handling++
		q.collecting++
	}
	return first, true
}

// Deliver ends an operation whose completion Tamper has withheld, with its Res.
func (q *Queue[T]) Deliver(o *Op[T]) {
	q.Lock()
	opLife.Must(&o.state, opEnded)
	o.next = nil
	q.handling++
	q.collecting++
	q.Unlock()
	q.handle(o)
}

// handle gives operations that are counted as being handled to the handler.
func (q *Queue[T]) handle(first *Op[T]) {
	q.o.Handler.Ended(first)
	q.Lock()
	q.handling--
	q.restLocked()
	q.Unlock()
}

// Free takes back operations that Ended was given, lets the handler use them again, and has the kernel take what is queued.
func (q *Queue[T]) Free(first *Op[T]) {
	q.Lock()
	n := 0
	for o := first; o != nil; n++ {
		next := o.next
		q.freeLocked(o)
		o = next
	}
	q.ended.Add(uint64(n))
	q.o.Handler.RoomLocked()
	q.collecting--
	q.enterAndUnlock()
}

func (q *Queue[T]) freeLocked(o *Op[T]) {
	opLife.Must(&o.state, opFree)
	var none T
	o.V = none
	o.next, q.free = q.free, o
	q.out--
}

// restLocked tells Close that nothing is under way.
func (q *Queue[T]) restLocked() {
	if q.idle != nil && q.restsLocked() {
		close(q.idle)
		q.idle = nil
	}
}

func (q *Queue[T]) restsLocked() bool { return q.out == 0 && q.handling == 0 && !q.entering }

// Stats reads the counters.
func (q *Queue[T]) Stats() Stats {
	q.Lock()
	defer q.Unlock()
	return Stats{Operations: q.ended.Load(), Enters: q.enters.Load(), Wakes: q.wakes.Load(), UnderWay: q.out}
}

// Close submits what is queued, waits until all operations have ended and been handled, and gives everything back. It is called
// once; Enter, Reap and Stats may still be called, also beside it and behind it.
func (q *Queue[T]) Close() error {
	q.Lock()
	q.closed = true
	q.enterAndUnlock()
	q.Lock()
	if !q.restsLocked() {
		idle := make(chan struct{})
		q.idle = idle
		q.Unlock()
		<-idle
		q.Lock()
	}
	q.Unlock()
	q.stopping.Store(true)
	err := q.ring.hush() // the reaper ends
	q.running.Wait()
	q.reapMu.Lock()
	defer q.reapMu.Unlock()
	err = errors.Join(err, q.ring.close())
	q.ring = nil
	return err
}
