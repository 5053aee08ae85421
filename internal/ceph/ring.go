package ceph

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/group"
)

// What a ring's request asks for; the numbers are the shim's.
const (
	opRead uint8 = iota + 1
	opWrite
	opFlush
	opDiscard
	opZero
	opZeroThick
)

// ringOp and ringShared are in C memory, and have the layout of cr_ring_op and cr_ring (shim.h).
type ringOp struct {
	offset, length uint64
	result         int64
	iovs           uint32
	slot           uint16
	op, _          uint8
	_              uint64
	iov            [Spans]unix.Iovec
}

type ringShared struct {
	tail, armed uint32
	done        [Depth]uint32
	ops         [Depth]ringOp
}

// RingHandler is the user of a Ring.
type RingHandler[T any] interface {
	// Ended is given a request that has ended, with what librbd answered: the bytes of a read, or a negative errno. It must not block. True says
	// that it has filled s again, which is started once more.
	Ended(s *Slot[T], result int64) (again bool)
	// EndedAll is told behind the last of a batch.
	EndedAll()
	// RoomLocked is told that slots have become free, and may take some. The lock is held.
	RoomLocked()
}

// Slot is a request of a ring. It is its taker's until QueueLocked, and again in Ended.
type Slot[T any] struct {
	V  T
	op *ringOp
}

// Ring has the requests to one image that are under way. A batch of them is started by one call of C, by whatever goroutine; what has ended is read
// from memory without one, in batches, by one goroutine that sleeps in Go's poller. Nothing is allocated for a request. Methods whose
// names end in Locked want its lock.
type Ring[T any] struct {
	h      RingHandler[T]
	raw    rawRing
	shared *ringShared
	event  *os.File
	slots  [Depth]Slot[T]

	sync.Mutex
	free     []uint16
	pending  []uint16 // to be started
	starting []uint16 // being started; the two change places
	entering bool     // a goroutine starts
	ending   int      // batches that are being ended
	closed   bool
	idle     chan struct{} // Close waits

	head     uint32
	again    []uint16 // of a batch
	stopping atomic.Bool
	running  group.Group

	calls, ended, wakes atomic.Uint64
}

// RingStats count what a ring has done.
type RingStats struct {
	Requests uint64 // that have ended
	Calls    uint64 // that started them
	Wakes    uint64 // of the goroutine that ends them
	UnderWay int    // now
}

// OpenRing makes a ring for an image, which is closed behind it.
func OpenRing[T any](i *Image, h RingHandler[T]) (*Ring[T], error) {
	raw, shared, event, err := openRawRing(i)
	if err != nil {
		return nil, err
	}
	g := &Ring[T]{h: h, raw: raw, shared: shared, event: event}
	g.free, g.pending, g.starting, g.again = make([]uint16, 0, Depth), make([]uint16, 0, Depth), make([]uint16, 0, Depth), make([]uint16, 0, ringBatch)
	for n := range g.slots {
		g.slots[n].op = &shared.ops[n]
		g.free = append(g.free, uint16(Depth-1-n))
	}
	conn, err := event.SyscallConn()
	if err != nil {
		raw.close()
		_ = event.Close() // the first error says it
		return nil, err
	}
	g.running.Go(func() { g.reap(conn) })
	return g, nil
}

// ringBatch bounds how many requests end together: those behind have their slots back, and begin, meanwhile.
const ringBatch = 64

// reap ends what has ended. The eventfd is never read: the poller tells each new signal, whatever the count.
func (g *Ring[T]) reap(conn syscall.RawConn) {
	_ = conn.Read(func(uintptr) bool { // its error is the end
		g.wakes.Add(1)
		for {
			g.endAll()
			atomic.StoreUint32(&g.shared.armed, 1)
			if atomic.LoadUint32(&g.shared.tail) == g.head {
				break // from here on a completion signals
			}
			atomic.StoreUint32(&g.shared.armed, 0)
		}
		return g.stopping.Load()
	})
}

func (g *Ring[T]) endAll() {
	for {
		tail := atomic.LoadUint32(&g.shared.tail)
		if tail == g.head {
			return
		}
		n := min(tail-g.head, ringBatch)
		g.Lock()
		g.ending++
		g.Unlock()
		var done [ringBatch]uint16
		out := done[:0]
		g.again = g.again[:0]
		for range n {
			slot := uint16(g.shared.done[g.head%Depth])
			g.head++
			s := &g.slots[slot]
			if g.h.Ended(s, s.op.result) {
				g.again = append(g.again, slot)
				continue
			}
			var none T
			s.V = none
			out = append(out, slot)
		}
		g.ended.Add(uint64(len(out)))
		g.h.EndedAll()
		g.Lock()
		g.free = append(g.free, out...)
		g.pending = append(g.pending, g.again...)
		g.h.RoomLocked()
		g.ending--
		g.enterAndUnlock()
	}
}

// TakeLocked returns a slot to fill and to give to QueueLocked, or nil where none is free or the ring is closed.
func (g *Ring[T]) TakeLocked() *Slot[T] {
	n := len(g.free)
	if n == 0 || g.closed {
		return nil
	}
	s := &g.slots[g.free[n-1]]
	g.free = g.free[:n-1]
	return s
}

// QueueLocked has the slot's request started with the next Enter.
func (g *Ring[T]) QueueLocked(s *Slot[T]) { g.pending = append(g.pending, s.op.slot) }

// DropLocked takes a slot back that was taken and not queued.
func (g *Ring[T]) DropLocked(s *Slot[T]) {
	var none T
	s.V = none
	g.free = append(g.free, s.op.slot)
}

// PendingLocked is how many requests wait for Enter.
func (g *Ring[T]) PendingLocked() int { return len(g.pending) }

// EndingLocked reports whether a batch is being ended, behind which what is queued is started.
func (g *Ring[T]) EndingLocked() bool { return g.ending > 0 }

// ClosedLocked reports that no more is taken.
func (g *Ring[T]) ClosedLocked() bool { return g.closed }

// Enter starts what is queued.
func (g *Ring[T]) Enter() {
	g.Lock()
	g.enterAndUnlock()
}

// enterAndUnlock lets go of the lock during the call. Where another goroutine is in it, that one takes along what is queued.
func (g *Ring[T]) enterAndUnlock() {
	if !g.entering {
		g.entering = true
		for len(g.pending) > 0 {
			g.pending, g.starting = g.starting[:0], g.pending
			g.Unlock()
			g.raw.submit(g.starting)
			g.calls.Add(1)
			g.Lock()
		}
		g.entering = false
	}
	if g.idle != nil && g.restsLocked() {
		close(g.idle)
		g.idle = nil
	}
	g.Unlock()
}

func (g *Ring[T]) restsLocked() bool { return len(g.free) == Depth && g.ending == 0 && !g.entering }

// Stats reads the counters.
func (g *Ring[T]) Stats() RingStats {
	g.Lock()
	defer g.Unlock()
	return RingStats{Requests: g.ended.Load(), Calls: g.calls.Load(), Wakes: g.wakes.Load(), UnderWay: Depth - len(g.free)}
}

// Close waits until all requests have ended, and gives everything back. It is called once; Enter and Stats may still be called, also beside
// it and behind it.
func (g *Ring[T]) Close() error {
	g.Lock()
	g.closed = true
	g.enterAndUnlock()
	g.Lock()
	if !g.restsLocked() {
		idle := make(chan struct{})
		g.idle = idle
		g.Unlock()
		<-idle
		g.Lock()
	}
	g.Unlock()
	g.stopping.Store(true)
	g.raw.signal()
	g.running.Wait()
	g.raw.close()
	return g.event.Close()
}

// Offset is where the request begins.
func (s *Slot[T]) Offset() uint64 { return s.op.offset }

// Vector is the slot's place for pieces of memory.
func (s *Slot[T]) Vector() *[Spans]unix.Iovec { return &s.op.iov }

func (s *Slot[T]) fill(op uint8, offset, length int64, iovs int) {
	s.op.op, s.op.offset, s.op.length, s.op.iovs = op, uint64(offset), uint64(length), uint32(iovs)
}

// Read has n pieces of Vector read at offset. Their memory is not Go's own: librbd has it until the request ends.
func (s *Slot[T]) Read(n int, offset int64) { s.fill(opRead, offset, 0, n) }

// Write has n pieces of Vector written at offset, as Read.
func (s *Slot[T]) Write(n int, offset int64) { s.fill(opWrite, offset, 0, n) }

// Flush has what was written made durable.
func (s *Slot[T]) Flush() { s.fill(opFlush, 0, 0, 0) }

// Discard gives a range back, as far as whole units of librbd's are in it.
func (s *Slot[T]) Discard(offset, length int64) { s.fill(opDiscard, offset, length, 0) }

// Zero makes a range read as zeroes. thick keeps its room, or takes it.
func (s *Slot[T]) Zero(offset, length int64, thick bool) {
	op := opZero
	if thick {
		op = opZeroThick
	}
	s.fill(op, offset, length, 0)
}
