package shm

import (
	"errors"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/fifo"
	"github.com/sluice-storage/sluice/transport"
)

// txMsg is a work request on its way out.
type txMsg struct {
	op      transport.Op
	flags   transport.Flags
	token   uint64
	inv     uint32
	remote  transport.Remote
	fenceAt uint64 // Reads that must be complete before it starts
	mem     sgl    // of a Read, where it goes
	end     uint64 // of its record in the ring
	free    bool   // nothing of it is read any more once the record is in the ring
}

// txResp is an RDMA Read of the peer's that waits for its response, or whose response the peer has not taken.
type txResp struct {
	win *window // nil for zero length
	gen uint32
	mem sgl
	end uint64
}

// invalidation is a local Invalidate that the owner completes: it alone knows that nothing is being placed.
type invalidation struct {
	w       *window
	gen     uint32
	token   uint64
	flags   transport.Flags
	fenceAt uint64
}

// tx is the transmitter: what Post has taken, and our side of the ring.
type tx struct {
	sync.Mutex
	err error // why the connection ended

	sq     fifo.Ring[txMsg] // accepted; of the first cut the records are in the ring
	cut    int
	resp   fifo.Ring[txResp]
	rcut   int
	turn   bool                    // a response is next, if both wait
	cq     fifo.Ring[transport.WC] // completions that the owner has not seen
	inval  fifo.Ring[invalidation] //
	reads  uint64                  // Reads posted so far
	tail   uint64                  // slots that have been put into the ring
	acked  uint64                  // of them, slots that the peer has taken, as far as was looked
	buf    [maxRecordB]byte        // a record that does not lie together in the ring
	rec    record                  //
	parts  [maxSGE]piece           // of rec
	shares shares
}

// transmitLocked is what the owner does for the transmitter in each pass. eng is held.
func (q *QP) transmitLocked(fx *effects) {
	t := &q.tx
	t.Lock()
	defer t.Unlock()
	if !q.life.up() {
		return
	}
	q.pumpLocked(fx)
	if q.invals.Load() > 0 {
		q.invalidationsLocked()
	}
}

// takenLocked looks how much of the ring the peer has taken, and completes what that completes.
func (q *QP) takenLocked(fx *effects) {
	t := &q.tx
	h := q.peer.head.Load()
	if h-t.acked > t.tail-t.acked {
		fx.bad = garbled("the peer says that it has taken %d slots of a ring into which %d were put", h, t.tail)
		return
	}
	t.acked = h
	q.retireLocked(fx)
}

// retireLocked completes requests of which nothing is read any more, in order.
func (q *QP) retireLocked(fx *effects) {
	t := &q.tx
	for t.cut > 0 {
		m := t.sq.At(0)
		if !m.free && t.acked < m.end {
			break
		}
		t.sq.Pop()
		t.cut--
		switch m.op {
		case transport.OpRead: // completes with its response
			continue
		case transport.OpSend, transport.OpSendInv:
			q.sendsDone.Add(1)
		}
		if m.flags&transport.Signaled == 0 {
			q.sqUsed.Add(-1)
			continue
		}
		*t.cq.Push() = transport.WC{Token: m.token, Op: m.op, Len: uint32(m.mem.total)}
		fx.wake = true
	}
	for t.rcut > 0 && t.acked >= t.resp.At(0).end {
		r := t.resp.Pop()
		t.rcut--
		if r.win != nil {
			if r.win.refs--; r.win.refs == 0 && q.invals.Load() > 0 {
				q.pending.Store(true)
			}
		}
	}
}

// pumpLocked puts what waits into the ring, as far as that has room.
func (q *QP) pumpLocked(fx *effects) {
	t := &q.tx
	if !q.life.up() {
		return
	}
	if q.takenLocked(fx); fx.bad != nil {
		return
	}
	if len(t.shares.out) > 0 {
		q.flushLocked(fx)
	}
	was := t.tail
	for q.nextLocked(fx) {
	}
	if t.tail != was {
		q.own.tail.Store(t.tail)
		q.retireLocked(fx) // what lies in the ring with its payload
		fx.bell = q.ringsLocked() || fx.bell
		q.wantMoreLocked(fx)
	}
}

// wantMoreLocked says what a parked owner waits for since what is in the ring now came there. Where the peer has taken that already, and
// may have looked before it was said, the owner wakes.
func (q *QP) wantMoreLocked(fx *effects) {
	if !q.parked.Load() {
		return
	}
	w := q.wantLocked()
	q.own.want.Store(w)
	if a := q.tx.acked; q.peer.head.Load()-a >= w-a {
		fx.wake = true
	}
}

// nextLocked puts the next message into the ring. Responses and work requests take turns, so that neither holds the other up.
func (q *QP) nextLocked(fx *effects) bool {
	t := &q.tx
	var m *txMsg
	if t.cut < t.sq.Len() {
		if m = t.sq.At(t.cut); m.fenceAt > q.readsOK.Load() {
			m = nil
		}
	}
	if t.rcut < t.resp.Len() && (t.turn || m == nil) {
		r := t.resp.At(t.rcut)
		if !q.respondLocked(r, fx) {
			return false
		}
		t.rcut++
		t.turn = false
		return true
	}
	if m == nil || !q.requestLocked(m, fx) {
		return false
	}
	t.cut++
	t.turn = true
	return true
}

func (q *QP) requestLocked(m *txMsg, fx *effects) bool {
	r := &q.tx.rec
	r.flags, r.size, r.stag, r.off = 0, uint32(m.mem.total), m.remote.STag, m.remote.Off
	m.free = m.mem.total <= inlineMax
	switch m.op {
	case transport.OpWrite:
		r.op = opWrite
	case transport.OpRead:
		r.op, m.free = opReadReq, true
	case transport.OpSend, transport.OpSendInv:
		r.op, r.stag, r.off = opSend, 0, 0
		if m.op == transport.OpSendInv {
			r.op, r.stag = opSendInv, m.inv
		}
		if m.flags&transport.Solicited != 0 {
			r.flags = flagSolicited
		}
	}
	ok := q.putLocked(&m.mem, fx)
	m.end = q.tx.tail
	return ok
}

// respondLocked answers a Read. The slab of the window is shown only now: what is not read is not shown.
func (q *QP) respondLocked(p *txResp, fx *effects) bool {
	r := &q.tx.rec
	*r = record{op: opReadResp, size: uint32(p.mem.total)}
	for i := range p.mem.n {
		if p.mem.total <= inlineMax {
			break
		}
		if err := q.tx.shares.show(p.mem.part[i].slab); err != nil {
			fx.err = violation(transport.LayerRDMAP, rdmapLocal, 0, "RFC 5040 section 4.8", "%v", err)
			return false
		}
	}
	ok := q.putLocked(&p.mem, fx)
	p.end = q.tx.tail
	return ok
}

// putLocked puts rec into the ring, with the payload m or where that lies. False means that there is no room, or that the peer has not been
// given a slab that the record names.
func (q *QP) putLocked(m *sgl, fx *effects) bool {
	t := &q.tx
	r := &t.rec
	r.pieces = nil
	body := m.total
	inline := body <= inlineMax
	switch {
	case r.op == opReadReq:
		body, inline = 0, false
	case !inline:
		if len(t.shares.out) > 0 {
			q.flushLocked(fx)
		}
		for i := range m.n {
			n, _ := t.shares.find(m.part[i].slab) // known since it was posted
			if t.shares.list[n].state != shown {
				return false // the socket is full
			}
			t.parts[i] = piece{slab: t.shares.number(n), n: uint32(len(m.part[i].b)), off: uint64(m.part[i].off)}
		}
		r.pieces = t.parts[:m.n]
		body = m.n * pieceLen
	}
	n := slotsFor(body)
	if t.tail+uint64(n)-t.acked > q.own.length() {
		if q.takenLocked(fx); fx.bad != nil || t.tail+uint64(n)-t.acked > q.own.length() {
			return false
		}
	}
	r.slots = uint8(n)
	b, together := q.own.at(t.tail, n)
	if !together {
		b = t.buf[:n*slotSize]
	}
	p := r.put(b)
	if inline {
		m.gather(p)
	}
	if !together {
		q.own.copyIn(t.tail, b)
	}
	t.tail += uint64(n)
	return true
}

// flushLocked tells the peer of slabs, as far as the socket takes that.
func (q *QP) flushLocked(fx *effects) {
	var err error
	was := len(q.tx.shares.out)
	if q.rc.Control(func(fd uintptr) { err = q.tx.shares.flush(fd) }) != nil || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		return // the owner sees the end
	}
	if err != nil {
		fx.err = violation(transport.LayerRDMAP, rdmapLocal, 0, "RFC 5040 section 4.8", "a slab cannot be shared: %v", err)
	}
	if len(q.tx.shares.out) < was {
		fx.bell = q.ringsLocked() || fx.bell
	}
}

// ringsLocked reports whether the peer waits and has not been rung for that. Who is told so rings. eng or tx is held.
func (q *QP) ringsLocked() bool {
	p := q.peer.park.Load()
	r := q.rung.Load()
	return p&1 == 1 && r != p && q.rung.CompareAndSwap(r, p)
}

// wantLocked is up to where the peer must have taken our ring before there is something for the owner to do; all ones for nowhere.
func (q *QP) wantLocked() uint64 {
	t := &q.tx
	if t.cut < t.sq.Len() && q.readsOK.Load() >= t.sq.At(t.cut).fenceAt || t.rcut < t.resp.Len() {
		return t.acked + 1 // the ring is full, or a message on the socket
	}
	want := ^uint64(0)
	for i := range t.cut {
		if m := t.sq.At(i); m.flags&transport.Signaled != 0 && m.op != transport.OpRead {
			want = m.end
			break
		}
	}
	if q.invals.Load() > 0 && t.rcut > 0 {
		want = min(want, t.resp.At(0).end)
	}
	return want
}
