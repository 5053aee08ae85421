package shm

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sluice-storage/sluice/internal/ctxwatch"
	"github.com/sluice-storage/sluice/internal/fifo"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// QP is a queue pair through shared memory. See the package comment for who runs what.
type QP struct {
	dev  *Device
	opt  Options
	send int // work requests at most
	recv int

	// Set once by start, before the connection is established. The mappings are used under eng or tx, while the connection is up.
	file    *os.File
	rc      syscall.RawConn
	own     region
	ownSlab *mem.Slab
	peer    region
	depth   transport.Depth

	life  life
	ready chan struct{} // closed by start and by fail

	eng     sync.Mutex // the owner's, while it uses the mappings; who ends the connection tries it
	tx      tx
	stags   stags
	sqUsed  atomic.Int32 // work requests whose completion the owner has not seen
	rqUsed  atomic.Int32
	readsUp atomic.Int32 // Reads outstanding
	readsOK atomic.Uint64
	// sendsDone counts the Sends of the upper protocol that the peer has taken, or that are in the ring with their payload.
	sendsDone atomic.Uint64

	source func(token uint64) (mem.Span, bool) // memory for receives posted without; set before the connection is made
	rq     struct {
		sync.Mutex
		ring fifo.Ring[recvBuf]
	}

	pending atomic.Bool   // something for the owner in tx.cq, or the QP failed
	invals  atomic.Int32  // entries of tx.inval
	parked  atomic.Bool   // the owner is in the runtime's poller, or about to be
	rung    atomic.Uint32 // the peer's parking that was rung for last

	rx     rx
	rxcq   fifo.Ring[transport.WC] // the owner's
	parkFn func(uintptr) bool
	recvFn func(uintptr)
	bellFn func(uintptr)
	watch  ctxwatch.Watch
	spin   spinner
	cnt    counters
}

type recvBuf struct {
	token uint64
	part  part
}

var (
	_ transport.QP           = (*QP)(nil)
	_ transport.LazyReceiver = (*QP)(nil)
	_ transport.SendCounter  = (*QP)(nil)
	_ transport.Trimmer      = (*QP)(nil)
	_ transport.Pather       = (*QP)(nil)
)

var errNoBuf = errors.New("shm: a receive without memory on a queue pair that has no source of it")

func newQP(d *Device, o transport.QPOptions) (*QP, error) {
	if o.Sends == 0 {
		o.Sends = defaultSends
	}
	if o.Recvs == 0 {
		o.Recvs = defaultRecvs
	}
	if o.Sends < 0 || o.Recvs < 0 || o.Sends > maxQueue || o.Recvs > maxQueue {
		return nil, fmt.Errorf("shm: queues of %d sends and %d receives asked for, at most %d are made", o.Sends, o.Recvs, maxQueue)
	}
	q := &QP{dev: d, opt: d.opt, send: o.Sends, recv: o.Recvs, ready: make(chan struct{})}
	q.stags.tab.Init()
	q.rq.ring = fifo.New[recvBuf](o.Recvs)
	q.rxcq = fifo.New[transport.WC](o.Sends + o.Recvs)
	q.tx.shares.dev = d
	q.rx.seen.most = d.opt.maps
	q.tx.sq = fifo.New[txMsg](o.Sends)
	q.tx.cq = fifo.New[transport.WC](o.Sends)
	q.tx.inval = fifo.New[invalidation](o.Sends)
	q.watch = ctxwatch.New(q.kick)
	q.parkFn = q.park
	q.recvFn = func(fd uintptr) { q.rx.in.receive(fd) }
	q.bellFn = writeBell
	return q, nil
}

// link is what the set-up of a connection has made.
type link struct {
	file    *os.File
	own     region
	ownSlab *mem.Slab
	peer    []byte
	depth   transport.Depth
}

// drop gives back what a set-up has made that came to nothing.
func (l *link) drop() {
	if l.file != nil {
		l.file.Close()
	}
	if l.ownSlab != nil {
		_ = l.ownSlab.Close() // unmaps what is mapped
	}
	unmap(l.peer)
}

// start makes the QP a connection over l, which it owns from now on, unless there is an error.
func (q *QP) start(l *link) error {
	rc, err := l.file.SyscallConn()
	if err != nil {
		return err
	}
	q.tx.Lock()
	defer q.tx.Unlock()
	if q.life.dead() {
		return q.tx.err
	}
	if !q.dev.adopt(q) {
		return transport.ErrClosed
	}
	q.file, q.rc, q.own, q.ownSlab, q.peer, q.depth = l.file, rc, l.own, l.ownSlab, newRegion(l.peer), l.depth
	q.stags.Lock()
	q.stags.reads = fifo.NewFixed[sink](q.depth.Out) // the owner points to the front
	q.stags.Unlock()
	q.tx.resp = fifo.NewFixed[txResp](q.depth.In)
	q.rx.rec.pieces = make([]piece, 0, maxSGE)
	q.life.moveLocked(established)
	close(q.ready)
	return nil
}

// NewWindow makes a window.
func (q *QP) NewWindow() (transport.Window, error) {
	q.stags.Lock()
	defer q.stags.Unlock()
	if q.stags.tab.Room() >= maxWindows {
		return nil, fmt.Errorf("shm: more than %d windows of one queue pair", maxWindows)
	}
	q.stags.tab.AddRoom()
	return &window{q: q}, nil
}

// Depth is what request and reply settled.
func (q *QP) Depth() transport.Depth {
	if !q.life.wasUp() {
		return transport.Depth{}
	}
	return q.depth
}

// Path is how the data of the connection goes.
func (q *QP) Path() transport.Path {
	return transport.Path{Provider: Name, Exposure: "to read, the slabs that its requests have named"}
}

// Trim gives back memory that was needed for more work than there is now.
func (q *QP) Trim() {
	q.tx.Lock()
	q.tx.sq.Trim()
	q.tx.cq.Trim()
	q.tx.inval.Trim()
	q.tx.Unlock()
	q.rq.Lock()
	q.rq.ring.Trim()
	q.rq.Unlock()
}

// RecvMemory lets receives be posted without memory: see transport.LazyReceiver.
func (q *QP) RecvMemory(source func(token uint64) (mem.Span, bool)) bool {
	if q.life.wasUp() {
		return false
	}
	q.source = source
	return true
}

// SendsDone is transport.SendCounter.
func (q *QP) SendsDone() uint64 { return q.sendsDone.Load() }

// PostRecv posts receives.
func (q *QP) PostRecv(rs []transport.Recv) (int, error) {
	if n, err, dead := q.postRecv(rs); !dead {
		return n, err
	}
	return 0, q.why()
}

// postRecv posts unless the QP is dead. That is looked at under the lock that flush takes: what it does not see there is
// never returned.
func (q *QP) postRecv(rs []transport.Recv) (n int, err error, dead bool) {
	q.rq.Lock()
	defer q.rq.Unlock()
	if q.life.dead() {
		return 0, nil, true
	}
	for i := range rs {
		if q.rqUsed.Load() >= int32(q.recv) {
			return i, transport.ErrQueueFull, false
		}
		r := recvBuf{token: rs[i].Token}
		if b := rs[i].Buf; b.Slab != nil {
			r.part = part{b.Bytes(), b.Slab, b.Off}
		} else if q.source == nil {
			return i, errNoBuf, false
		}
		q.rqUsed.Add(1)
		*q.rq.ring.Push() = r
	}
	return len(rs), nil, false
}

// why is the reason of the end.
func (q *QP) why() error {
	q.tx.Lock()
	defer q.tx.Unlock()
	return q.tx.err
}

// effects are what is to be done when the locks have been let go of.
type effects struct {
	bell bool                      // the peer waits for what there is now
	wake bool                      // our owner does
	bad  *transport.TerminateError // the peer broke a rule
	err  error                     // or the connection ends for this
}

// settle does it.
func (q *QP) settle(fx *effects) {
	switch {
	case fx.bad != nil:
		q.fail(fx.bad, fx.bad, false)
	case fx.err != nil:
		q.fail(fx.err, nil, false)
	}
	if fx.wake {
		q.notify()
	}
	if fx.bell {
		q.cnt.bells.Add(1)
		_ = q.rc.Control(q.bellFn) // fails only where the connection has ended
	}
}

// notify tells the owner that there is something for it.
func (q *QP) notify() {
	q.pending.Store(true)
	if q.parked.Load() && q.parked.CompareAndSwap(true, false) {
		q.cnt.wakes.Add(1)
		q.kick()
	}
}

// kick makes the runtime's poller let go of a parked owner. os.File, unlike net.Conn, does so without an allocation.
func (q *QP) kick() { _ = q.file.SetReadDeadline(time.Unix(1, 0)) } // fails only on a closed file, which wakes it too
