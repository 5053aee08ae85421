package verbs

import (
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sluice-storage/sluice/internal/ctxwatch"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// QP is a queue pair with one completion queue and one completion channel of its own.
//
// Locks, in the order they may be nested: build (the library's objects), life, sq (posting), rq (posting receives), pollMu
// (the completion queue), winMu (states of windows). Events of the connection manager and of the adapter take life only.
type QP struct {
	dev        *Device
	send, recv int
	slim       bool

	// build is held while objects of the library are made, used by the set-up, and destroyed.
	build      sync.Mutex
	a          *rnic
	dom        *domain
	id, ch, hw handle
	cq         handle
	file       *os.File
	rc         syscall.RawConn
	path       where
	asks       *asking // nil until the peer is asked for the connection
	known      bool    // the peer has heard of the connection, or may have

	life     sync.Mutex
	phase    enum[qpPhase]
	err      error // why it is dead
	cut      bool
	cmEvents chan cmEvent

	objects enum[qpObjects]
	ready   chan struct{} // closed when there is something to wait with, or the end
	dying   chan struct{} // closed when dead
	over    chan struct{} // closed when settled
	depth   transport.Depth

	sq sendQueue
	rq recvQueue

	winMu sync.Mutex
	wins  []*window
	byKey map[uint32]*window // by the part of the key that stays

	pollMu sync.Mutex
	cqLive bool
	armed  bool
	marked bool           // the marker has come back
	comps  []workComp     // of one call
	done   []transport.WC // taken from the adapter and not yet by the owner, from doneAt on
	doneAt int
	polled atomic.Uint64 // completions that the adapter has handed out
	held   atomic.Int32  // of them, completions of requests: their places in the queue are not free
	heldIn atomic.Int32  // of them, receives
	parked atomic.Bool
	waitFn func(uintptr) bool
	watch  ctxwatch.Watch
}

var (
	_ transport.QP      = (*QP)(nil)
	_ transport.Pather  = (*QP)(nil)
	_ transport.Widener = (*QP)(nil)
)

func newQP(d *Device, o transport.QPOptions) (*QP, error) {
	if o.Sends == 0 {
		o.Sends = defaultSends
	}
	if o.Recvs == 0 {
		o.Recvs = defaultRecvs
	}
	if o.Sends < 0 || o.Recvs < 0 || o.Sends > maxQueue || o.Recvs > maxQueue {
		return nil, fmt.Errorf("verbs: queues of %d sends and %d receives asked for, at most %d are made", o.Sends, o.Recvs, maxQueue)
	}
	q := &QP{dev: d, send: o.Sends, recv: o.Recvs, slim: o.Slim, cmEvents: make(chan cmEvent, maxCMPending), ready: make(chan struct{}),
		dying: make(chan struct{}), over: make(chan struct{}), byKey: map[uint32]*window{}}
	q.sq.init(o.Sends)
	q.rq.init(o.Recvs)
	q.waitFn, q.watch = q.waitStep, ctxwatch.New(q.kick)
	return q, nil
}

// adopt begins the use of the library.
func (q *QP) adopt() error {
	q.life.Lock()
	defer q.life.Unlock()
	switch {
	case q.dead():
		return q.err
	case q.phase.is() == adopted:
		return errUsedQP
	case !q.dev.adopt(q):
		return transport.ErrClosed
	}
	q.phase.moveLocked(qpPhaseMoves, adopted)
	return nil
}

func (q *QP) used() bool { return q.phase.is() == adopted }

// hard reports whether the queue pair has objects of an adapter.
func (q *QP) hard() bool { return q.made() && !q.settled() }

// why is the reason of the end.
func (q *QP) why() error {
	q.life.Lock()
	defer q.life.Unlock()
	return q.err
}

// Depth is what the connection's set-up settled.
func (q *QP) Depth() transport.Depth {
	if !q.live() {
		return transport.Depth{}
	}
	return q.depth
}

// Widen gives a connection with memory regions of its own those of all memory.
func (q *QP) Widen() error {
	if q.dead() { // its end has the lock for a while
		return q.why()
	}
	q.build.Lock()
	defer q.build.Unlock()
	if q.dead() {
		return q.why()
	}
	q.slim = false
	if q.dom == nil {
		return nil
	}
	return q.dev.mem.widen(q.dom)
}

// Path tells how the connection goes and what the peer may reach of our memory.
func (q *QP) Path() transport.Path {
	p := transport.Path{Provider: "verbs"}
	if !q.made() {
		return p
	}
	p.Device, p.Port, p.GID = q.a.attr.Name, q.path.Port, netip.AddrFrom16(q.path.GID).String()
	q.winMu.Lock()
	defer q.winMu.Unlock()
	switch {
	case len(q.wins) > 0 && !q.a.windows:
		p.Exposure = exposeSlabs
	case q.a.sinks:
		p.Exposure = exposeSinks
	case len(q.wins) > 0:
		p.Exposure = exposeWindows
	default:
		p.Exposure = exposeNothing
	}
	return p
}

// makeLocked makes the objects of the adapter that dev names; build is held, and the id is bound to it.
func (q *QP) makeLocked(w where) error {
	a, err := q.dev.adapterOf(w.Dev)
	if err != nil {
		return err
	}
	tab := q.dev.tab
	wrap := func(what string, err error) error {
		return fmt.Errorf("verbs: %s: %s: %w", a.attr.Name, what, err)
	}
	if most := a.attr.MaxQPWR; most > 0 && (q.send+marker > most || q.recv > most) {
		return fmt.Errorf("verbs: %s: queues of %d sends and %d receives, the adapter has %d", a.attr.Name, q.send, q.recv, most)
	}
	q.a, q.path = a, w
	if q.dom, err = q.dev.mem.domainFor(a, q.slim); err != nil {
		return err
	}
	if err := q.makeWindowsLocked(); err != nil {
		return err
	}
	var fd int
	if q.ch, fd, err = tab.CreateChannel(w.Dev); err != nil {
		return wrap("create a completion channel", err)
	}
	if q.cq, _, err = tab.CreateCQ(w.Dev, q.send+marker+q.recv, q.ch); err != nil {
		return wrap("create a completion queue", err)
	}
	if q.file, err = pollable(fd, a.attr.Name); err != nil {
		return wrap("completion channel", err)
	}
	if q.rc, err = q.file.SyscallConn(); err != nil {
		return wrap("completion channel", err)
	}
	want := qpCaps{Sends: q.send + marker, Recvs: q.recv, SendSGE: least(maxSGE, a.attr.MaxSGE), RecvSGE: 1}
	if err := q.makeHW(want); err != nil {
		return wrap("create a queue pair", err)
	}
	q.comps = make([]workComp, pollBatch)
	q.pollMu.Lock()
	q.cqLive = true
	q.pollMu.Unlock()
	// Receives are posted before the peer can send: their number is what its credits count.
	q.rq.Lock()
	defer q.rq.Unlock()
	q.rq.piece = a.piece
	if err := q.postPendingLocked(); err != nil {
		return wrap("post receives", err)
	}
	q.objects.moveLocked(qpObjectMoves, made)
	close(q.ready)
	return nil
}

// makeHW makes the queue pair itself and enters it where the adapter's events look.
func (q *QP) makeHW(want qpCaps) error {
	q.a.asyncMu.Lock()
	defer q.a.asyncMu.Unlock()
	if q.a.gone.Load() {
		return &LinkError{Device: q.a.attr.Name, Reason: "the RDMA device is gone"}
	}
	hw, _, _, err := q.dev.tab.CreateQP(q.id, q.dom.pd, q.cq, want)
	if err == nil {
		q.hw = hw
		q.a.qps[hw] = q
	}
	return err
}

// PostRecv posts receives; those posted before the connection has an adapter are kept for it.
func (q *QP) PostRecv(rs []transport.Recv) (int, error) {
	r := &q.rq
	r.Lock()
	defer r.Unlock()
	if q.dead() {
		return 0, q.why()
	}
	head, tail := r.head.Load(), r.tail.Load()
	n, err := 0, error(nil)
	for ; n < len(rs); n++ {
		if int(tail-head)+int(q.heldIn.Load())+n >= q.recv {
			err = transport.ErrQueueFull
			break
		}
		if rs[n].Buf.Slab == nil {
			err = errNoBuf
			break
		}
		r.tab[(tail+uint32(n))&r.mask] = rqEntry{token: rs[n].Token, buf: rs[n].Buf}
	}
	if n == 0 {
		return 0, err
	}
	if !q.made() {
		r.tail.Store(tail + uint32(n))
		return n, err
	}
	k, perr := q.ringRecvLocked(tail, n)
	if perr != nil {
		err = perr
	}
	return k, err
}

// postPendingLocked hands the adapter what was posted before there was one; rq is held.
func (q *QP) postPendingLocked() error {
	r := &q.rq
	head, tail := r.head.Load(), r.tail.Load()
	r.tail.Store(head)
	k, err := q.ringRecvLocked(head, int(tail-head))
	r.tail.Store(tail) // what was not taken comes back at the end all the same
	if err == nil && k != int(tail-head) {
		err = fmt.Errorf("%d of %d taken", k, tail-head)
	}
	r.kept = err != nil
	return err
}

// ringRecvLocked posts n entries from seq on, in batches; rq is held.
func (q *QP) ringRecvLocked(seq uint32, n int) (done int, err error) {
	r := &q.rq
	known := q.dom.local.Load()
	for done < n {
		r.wrs, r.sges = r.wrs[:0], r.sges[:0]
		for i := done; i < n && len(r.wrs) < postBatch && err == nil; i++ {
			at := seq + uint32(i)
			if wr, rerr := q.prepareRecv(at, known); rerr != nil {
				err, n = rerr, i
			} else {
				r.wrs = append(r.wrs, wr)
			}
		}
		if len(r.wrs) == 0 {
			break
		}
		// Completions may come before the call returns; who takes them looks at tail first.
		r.tail.Store(seq + uint32(done+len(r.wrs)))
		k, perr := q.dev.tab.PostRecv(q.hw, r.wrs, r.sges)
		done += k
		if k < len(r.wrs) {
			r.tail.Store(seq + uint32(done))
			if perr == nil {
				perr = transport.ErrQueueFull
			}
			return done, q.postErr(perr)
		}
	}
	return done, err
}

func (q *QP) prepareRecv(at uint32, known *regions) (recvWR, error) {
	r := &q.rq
	wr, e := recvWR{ID: recvID | uint64(at)}, &r.tab[at&r.mask]
	if e.buf.Len > 0 || r.piece {
		reg, err := q.dev.mem.local(q.dom, known, e.buf)
		if err != nil {
			return wr, err
		}
		wr.SGEs = 1
		r.sges = append(r.sges, sge{Addr: reg.addr + uint64(e.buf.Off), Length: uint32(e.buf.Len), LKey: reg.lkey})
	}
	return wr, nil
}

func (q *QP) postErr(err error) error {
	if q.dead() {
		return q.why()
	}
	return fmt.Errorf("verbs: %s: post: %w", q.a.attr.Name, err)
}

// recvQueue are the receives posted, oldest first.
type recvQueue struct {
	sync.Mutex
	tab        []rqEntry
	mask       uint32
	head, tail atomic.Uint32
	kept       bool // some were never the adapter's
	piece      bool // the adapter takes none without a piece of memory, be it empty
	wrs        []recvWR
	sges       []sge
}

type rqEntry struct {
	token uint64
	buf   mem.Span
}

func (r *recvQueue) init(n int) {
	size := pow2(n)
	r.tab, r.mask = make([]rqEntry, size), uint32(size-1)
}

func pow2(n int) int {
	p := 1
	for p < n {
		p *= 2
	}
	return p
}

// kick makes the runtime's poller let go of a parked owner. os.File, unlike net.Conn, does so without an allocation.
func (q *QP) kick() {
	if q.made() {
		_ = q.file.SetReadDeadline(time.Unix(1, 0)) // fails only on a closed file, which wakes it too
	}
}

// notify wakes the owner if it is parked.
func (q *QP) notify() {
	if q.parked.Load() && q.parked.CompareAndSwap(true, false) {
		q.kick()
	}
}
