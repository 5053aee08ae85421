package iwarp

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

// QP is a queue pair over one TCP connection. See the package comment for who runs what.
type QP struct {
	dev  *Device
	opt  Options
	send int // work requests at most
	recv int

	// Set once by start, before the connection is established.
	file    *os.File
	rc      syscall.RawConn
	crc     bool
	depth   transport.Depth
	depthIn atomic.Int32

	life  life
	ready chan struct{} // closed by start and by fail

	tx      tx
	stags   stags
	sqUsed  atomic.Int32 // work requests whose completion the owner has not seen
	rqUsed  atomic.Int32
	readsUp atomic.Int32 // Reads outstanding
	// sendsDone counts the Sends of the upper protocol whose bytes the kernel has taken.
	sendsDone atomic.Uint64
	readsOK   atomic.Uint64 // Reads completed so far, for Fence

	source func(token uint64) (mem.Span, bool) // memory for receives posted without; set before the connection is made
	rq     struct {
		sync.Mutex
		ring fifo.Ring[recvBuf]
	}
	cq struct {
		sync.Mutex
		ring  fifo.Ring[transport.WC] // completions of the transmitter and of Post
		inval fifo.Ring[invalidation]
	}
	invals  atomic.Int32 // entries of cq.inval
	pending atomic.Bool  // something for the owner in cq, or the QP failed
	cut     atomic.Bool  // see transport.Reason
	parked  atomic.Bool
	wake    chan struct{} // to the flusher

	rx     rx
	rxcq   fifo.Ring[transport.WC] // the owner's
	waitFn func(uintptr) bool
	pollFn func(uintptr)
	watch  ctxwatch.Watch
	cnt    counters
}

type recvBuf struct {
	token uint64
	buf   []byte
}

// invalidation is a local Invalidate that the owner completes: it alone knows that nothing is being placed.
type invalidation struct {
	w       *window
	gen     uint32
	token   uint64
	flags   transport.Flags
	fenceAt uint64
}

var (
	_ transport.QP           = (*QP)(nil)
	_ transport.LazyReceiver = (*QP)(nil)
	_ transport.Trimmer      = (*QP)(nil)
)

var errNoBuf = errors.New("iwarp: a receive without memory on a queue pair that has no source of it")

// Trim gives back memory that was needed for more work than there is now. Any goroutine may call it; a connection that
// has gone idle is the time.
func (q *QP) Trim() {
	q.tx.Lock()
	if q.tx.state != transmitting {
		q.tx.sq.Trim()
		q.tx.repointLocked()
		q.tx.marks.Trim()
	}
	q.tx.Unlock()
	q.rq.Lock()
	q.rq.ring.Trim()
	q.rq.Unlock()
	q.cq.Lock()
	q.cq.ring.Trim()
	q.cq.inval.Trim()
	q.cq.Unlock()
}

var errNotConnected = errors.New("iwarp: the queue pair is not connected")

func newQP(d *Device, o transport.QPOptions) (*QP, error) {
	if o.Sends == 0 {
		o.Sends = defaultSends
	}
	if o.Recvs == 0 {
		o.Recvs = defaultRecvs
	}
	if o.Sends < 0 || o.Recvs < 0 || o.Sends > maxQueue || o.Recvs > maxQueue {
		return nil, fmt.Errorf("iwarp: queues of %d sends and %d receives asked for, at most %d are made", o.Sends, o.Recvs, maxQueue)
	}
	q := &QP{dev: d, opt: d.opt, send: o.Sends, recv: o.Recvs, ready: make(chan struct{}), wake: make(chan struct{}, 1)}
	q.stags.tab.Init()
	q.rq.ring = fifo.New[recvBuf](o.Recvs)
	q.cq.ring = fifo.New[transport.WC](o.Sends)
	q.cq.inval = fifo.New[invalidation](o.Sends)
	q.rxcq = fifo.New[transport.WC](o.Sends + o.Recvs)
	q.tx.q = q
	q.tx.sq = fifo.New[txMsg](o.Sends + maxOwn)
	q.watch = ctxwatch.New(q.kick)
	q.waitFn, q.pollFn = q.waitStep, func(fd uintptr) { q.engine(fd) }
	return q, nil
}

// start makes the QP a connection over file, which it owns from now on.
func (q *QP) start(file *os.File, n negotiated) error {
	rc, err := file.SyscallConn()
	if err != nil {
		return err
	}
	q.file, q.rc = file, rc
	q.crc, q.depth = n.crc, n.depth
	q.depthIn.Store(int32(n.depth.In))
	q.stags.reads = fifo.NewFixed[readSink](n.depth.Out + 1) // the owner points to the front
	q.tx.init(n)
	q.rx.init(q, n)
	q.tx.Lock()
	defer q.tx.Unlock()
	if q.life.dead() {
		return q.tx.err
	}
	if !q.dev.adopt(q) {
		return transport.ErrClosed
	}
	q.life.moveLocked(established)
	if !n.responder {
		sendings.Move(&q.tx.state, quiet)
	}
	close(q.ready)
	go q.flusher()
	return nil
}

// NewWindow makes a window.
func (q *QP) NewWindow() (transport.Window, error) {
	q.stags.Lock()
	defer q.stags.Unlock()
	if q.stags.tab.Room() >= maxQueue {
		return nil, fmt.Errorf("iwarp: more than %d windows of one queue pair", maxQueue)
	}
	q.stags.tab.AddRoom()
	return &window{q: q}, nil
}

// Depth is what the MPA frames settled.
func (q *QP) Depth() transport.Depth {
	if !q.life.wasUp() {
		return transport.Depth{}
	}
	return q.depth
}

// Path is how the packets of the connection go.
func (q *QP) Path() transport.Path {
	return transport.Path{Provider: "iwarp", Exposure: "the bytes of each I/O, while it lasts"}
}

// CRC reports whether FPDUs carry a checksum, once connected.
func (q *QP) CRC() bool { return q.life.wasUp() && q.crc }

// Stats are the QP's counters so far.
func (q *QP) Stats() Stats { return q.cnt.load() }

// PostRecv posts receives.
func (q *QP) PostRecv(rs []transport.Recv) (int, error) {
	if n, err, dead := q.postRecv(rs); !dead {
		return n, err
	}
	return 0, q.deadErr()
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
		if rs[i].Buf.Slab != nil {
			r.buf = rs[i].Buf.Bytes()
		} else if q.source == nil {
			return i, errNoBuf, false
		}
		q.rqUsed.Add(1)
		*q.rq.ring.Push() = r
	}
	return len(rs), nil, false
}

// SendsDone is transport.SendCounter.
func (q *QP) SendsDone() uint64 { return q.sendsDone.Load() }

// complete queues a completion for the owner from any goroutine and wakes it.
func (q *QP) complete(wc transport.WC) {
	q.cq.Lock()
	*q.cq.ring.Push() = wc
	q.cq.Unlock()
	q.notify()
}

func (q *QP) notify() {
	q.pending.Store(true)
	if q.parked.Load() && q.parked.CompareAndSwap(true, false) {
		q.cnt.wakes.Add(1)
		q.kick()
	}
}

// kick makes the runtime's poller let go of a parked owner. os.File, unlike net.Conn, does so without an allocation.
func (q *QP) kick() { _ = q.file.SetReadDeadline(time.Unix(1, 0)) } // fails only on a closed file, which wakes it too

func (q *QP) deadErr() error {
	q.tx.Lock()
	defer q.tx.Unlock()
	return q.tx.err
}

// Close ends the connection.
func (q *QP) Close(r transport.Reason) error {
	var t *transport.TerminateError
	if r.Cut && !q.life.dead() {
		q.cut.Store(true)
	}
	switch {
	case r.Err == nil:
		q.fail(transport.ErrClosed, nil, nil)
	case errors.As(r.Err, &t) && !t.Remote:
		q.fail(t, t, nil)
	default:
		t = violation(transport.LayerRDMAP, rdmapOperation, rdmapUnspecified, "RFC 5040 section 4.8", "%v", r.Err)
		q.fail(t, t, nil)
	}
	return nil
}

// fail ends the QP for the reason err; the first one counts. A Terminate t, if there is one, names the segment whose
// header is hdr.
func (q *QP) fail(err error, t *transport.TerminateError, hdr []byte) {
	q.tx.Lock()
	defer q.tx.Unlock()
	if q.life.dead() {
		return
	}
	if t != nil {
		q.cnt.terms.Add(1)
		q.tx.term = terminateFPDU(t, hdr, q.crc)
	}
	if !q.life.up() {
		q.endLocked(err, abandoned)
		sendings.Move(&q.tx.state, settled)
		close(q.ready)
		q.pending.Store(true)
		return
	}
	q.endLocked(err, ended)
	_ = q.file.SetWriteDeadline(time.Unix(1, 0)) // lets the flusher go; under tx, so that it comes before its own
	if q.tx.state != transmitting {
		q.tx.settleLocked()
	}
	q.wakeFlusher()
	q.notify()
}

// endLocked is the one way into a phase in which the connection is dead, for the reason err; every STag dies with it.
func (q *QP) endLocked(err error, to phase) {
	q.tx.err = err
	q.life.moveLocked(to)
	q.stags.Lock()
	defer q.stags.Unlock()
	q.stags.killAll()
}

func (q *QP) wakeFlusher() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}
