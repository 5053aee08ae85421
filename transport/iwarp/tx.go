package iwarp

import (
	"encoding/binary"
	"errors"
	"fmt"
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
	ours    bool   // a frame of the engine's: it takes no slot of the upper protocol's and has no completion
	mem     sgl
	req     readReq
}

// txResp is an RDMA Read of the peer's that waits for its response.
type txResp struct {
	req readReq
	win *window // nil for zero length
	gen uint32
	off int // into the window
}

// cursor is the message being cut into FPDUs.
type cursor struct {
	active bool
	resp   *txResp // or msg
	msg    *txMsg
	mem    *sgl
	left   int
	done   int
	msn    uint32
}

// mark is the end of a message in the stream.
type mark struct {
	end  uint64
	resp bool
}

// tx is the transmitter. One goroutine transmits for all: it lets go of the lock during the system call, others queue
// behind it meanwhile, and their requests leave with its next batch.
type tx struct {
	sync.Mutex
	q       *QP
	state   sending
	lost    error // of the socket, from draining on
	waiters int   // of awaitStepLocked
	stepped sync.Cond
	err     error
	term    []byte // Terminate FPDU to send at the end

	sq    fifo.Ring[txMsg] // accepted, not yet all with the kernel
	own   int              // frames of the engine's in sq
	cut   int              // messages of sq cut or being cut
	resp  fifo.Ring[txResp]
	rcut  int
	turn  bool // a response is next, if both wait
	cur   cursor
	mem   sgl // of the response being cut
	marks fifo.Ring[mark]

	msnSend, msnRead uint32
	reads            uint64 // Reads posted so far
	markers          bool
	big              bool
	mss              int
	sinceMSS         int
	built            uint64 // stream offset behind the last FPDU built
	sent             uint64

	out    batch
	sendFn func(uintptr)
	mssFn  func(uintptr)
	n      int
	sysErr error
}

func (t *tx) init(n negotiated) {
	t.stepped.L = &t.Mutex
	t.markers, t.big = n.markers, n.big
	t.resp = fifo.NewFixed[txResp](n.depth.In) // the cursor points to its entries
	t.marks = fifo.New[mark](t.sq.Max() + t.resp.Max() + 1)
	t.out.init(t.markers)
	t.msnSend, t.msnRead = 1, 1
	t.mss = n.mss
	t.mssFn = func(fd uintptr) { t.mss = sendMSS(int(fd), t.mss) }
	t.sendFn = func(fd uintptr) { t.n, t.sysErr = t.out.send(int(fd), !t.big) }
}

// pumpLocked transmits until nothing is left or the socket is full.
func (t *tx) pumpLocked(later bool) {
	if t.state != quiet || t.q.life.is() != established {
		return
	}
	if later {
		if t.out.left() || t.hasWorkLocked() {
			t.blockLocked()
		}
		return
	}
	sendings.Move(&t.state, transmitting)
	for t.stepLocked() {
		t.tellLocked()
	}
	if t.state == transmitting {
		sendings.Move(&t.state, quiet)
	}
	t.tellLocked()
	if t.q.life.dead() {
		t.settleLocked()
	}
}

// awaitStepLocked waits until the goroutine that transmits has come back from its system call. A spin in place of the wait took a tenth
// of the time of an initiator that writes much.
func (t *tx) awaitStepLocked() {
	t.waiters++
	t.stepped.Wait()
	t.waiters--
}

func (t *tx) tellLocked() {
	if t.waiters > 0 {
		t.stepped.Broadcast()
	}
}

// nextLocked is the send queue's next slot. Where the queue moves to get room, the message being cut moves with it.
func (t *tx) nextLocked() *txMsg {
	had := t.sq.Room()
	m := t.sq.Next()
	if t.sq.Room() != had {
		t.repointLocked()
	}
	return m
}

// ownLocked queues a frame of the engine's own: zero bytes long, for the peer's engine alone.
func (t *tx) ownLocked(op transport.Op) *txMsg {
	m := t.nextLocked()
	_ = m.mem.set(nil) // no memory is never too many pieces
	m.op, m.flags, m.token, m.inv, m.fenceAt, m.ours = op, 0, 0, 0, 0, true
	m.remote = transport.Remote{STag: 1} // interop: hardware refuses STag 0
	t.sq.Push()
	t.own++
	return m
}

func (t *tx) repointLocked() {
	if t.cur.active && t.cur.msg != nil {
		t.cur.msg = t.sq.At(t.cut - 1)
		t.cur.mem = &t.cur.msg.mem
	}
}

func (t *tx) hasWorkLocked() bool { return t.cur.active || t.cut < t.sq.Len() || t.rcut < t.resp.Len() }

func (t *tx) blockLocked() {
	sendings.Move(&t.state, waiting)
	t.q.cnt.flushes.Add(1)
	t.q.wakeFlusher()
}

// stepLocked sends one batch. It lets go of the lock meanwhile.
func (t *tx) stepLocked() bool {
	if !t.out.left() {
		if !t.hasWorkLocked() {
			t.out.giveBack()
			return false
		}
		t.out.reset()
		t.buildLocked()
		if !t.out.left() {
			t.out.giveBack()
			return false
		}
	}
	t.Unlock()
	if err := t.q.rc.Control(t.sendFn); err != nil {
		t.sysErr = err
	}
	t.Lock()
	q := t.q
	q.cnt.writes.Add(1)
	if t.n > 0 {
		q.cnt.bytesOut.Add(uint64(t.n))
		t.sent += uint64(t.n)
		t.out.advance(t.n)
	}
	if q.life.dead() {
		return false
	}
	t.retireLocked()
	switch {
	case t.sysErr == nil && t.n > 0 && !t.out.short:
		return true
	case t.sysErr == nil || errors.Is(t.sysErr, unix.EAGAIN):
		t.blockLocked()
		return false
	case errors.Is(t.sysErr, unix.EINTR):
		return true
	}
	// The peer may have said why before it went: the owner reads what has arrived, and then ends the connection (RFC 5040
	// section 5.4).
	t.lost = lost(t.sysErr)
	q.life.moveLocked(draining)
	q.notify()
	return false
}

// failSendingLocked is fail for the goroutine that transmits, which settles what it refers to on its way out.
func (q *QP) failSendingLocked(err error) {
	if q.life.dead() {
		return
	}
	q.endLocked(err, ended)
	q.wakeFlusher()
	q.notify()
}

// retireLocked completes messages whose last byte the kernel has taken.
func (t *tx) retireLocked() {
	q := t.q
	t.out.dropRefs(t.out.off)
	for t.marks.Len() > 0 && t.marks.At(0).end <= t.sent {
		if t.marks.Pop().resp {
			t.resp.Pop()
			t.rcut--
			continue
		}
		m := t.sq.Pop()
		t.cut--
		if (m.op == transport.OpSend || m.op == transport.OpSendInv) && !m.ours {
			q.sendsDone.Add(1)
		}
		switch {
		case m.ours:
			t.own--
		case m.op == transport.OpRead: // completes with its response
		case m.flags&transport.Signaled != 0:
			q.complete(transport.WC{Token: m.token, Op: m.op, Len: uint32(m.mem.total)})
		default:
			q.sqUsed.Add(-1)
		}
	}
}

// nextMessageLocked makes the next message the current one: responses and work requests in turns, so that neither starves
// the other. A fenced request holds up only those behind it.
func (t *tx) nextMessageLocked() bool {
	wr := t.cut < t.sq.Len() && t.sq.At(t.cut).fenceAt <= t.q.readsOK.Load()
	rs := t.rcut < t.resp.Len()
	if !wr && !rs {
		return false
	}
	c := &t.cur
	if rs && (t.turn || !wr) {
		t.turn = false
		r := t.resp.At(t.rcut)
		if r.win != nil {
			q := t.q
			q.stags.Lock()
			ok := r.win.valid.Load() && r.win.gen == r.gen
			if ok {
				t.mem.window(&r.win.mem, r.off, int(r.req.Size))
			}
			q.stags.Unlock()
			if !ok {
				return t.staleReadLocked(r)
			}
		} else {
			t.mem.one(nil)
		}
		t.rcut++
		*c = cursor{active: true, resp: r, mem: &t.mem, left: int(r.req.Size)}
		return true
	}
	t.turn = true
	m := t.sq.At(t.cut)
	t.cut++
	*c = cursor{active: true, msg: m, mem: &m.mem, left: m.mem.total}
	switch m.op {
	case transport.OpSend, transport.OpSendInv:
		c.msn = t.msnSend
		t.msnSend++
	case transport.OpRead:
		c.msn = t.msnRead
		t.msnRead++
		c.left = readReqLen
	}
	return true
}

// staleReadLocked ends the connection: the peer's Read was queued, and the STag it takes from has died before the response.
func (t *tx) staleReadLocked(r *txResp) bool {
	e := violation(transport.LayerRDMAP, rdmapProtection, rdmapSTag, "RFC 5040 section 5.2",
		"a Read of %d bytes was still to be answered when its STag 0x%08x was invalidated", r.req.Size, r.req.SrcSTag)
	t.q.cnt.terms.Add(1)
	t.term = terminateFPDU(e, nil, t.q.crc)
	t.q.failSendingLocked(e)
	return false
}

// buildLocked fills the batch.
func (t *tx) buildLocked() {
	t.out.take()
	if !t.big && t.sinceMSS >= mssRecheckBytes {
		t.sinceMSS = 0
		_ = t.q.rc.Control(t.mssFn) // fails only when the QP has
	}
	for t.out.room() {
		if !t.cur.active && !t.nextMessageLocked() {
			return
		}
		full := t.cutFPDULocked()
		// RFC 5044 section 5.1: an FPDU shorter than a segment ends the system call, whose MSG_EOR keeps the next one
		// from being appended to its segment.
		if t.q.opt.NoBatch || !t.big && !full {
			return
		}
	}
}

// cutFPDULocked appends the next FPDU of the current message to the batch. It reports whether that fills a segment.
func (t *tx) cutFPDULocked() (full bool) {
	c, o := &t.cur, &t.out
	tagged := c.resp != nil || c.msg.op == transport.OpWrite
	h := untaggedLen
	if tagged {
		h = taggedLen
	}
	n := min(c.left, maxPayload(t.mss, h, t.big, t.markers))
	ctrl := uint16(ctrlV1)
	if n == c.left {
		ctrl |= ctrlLast
	}
	var hdr [untaggedLen + readReqLen]byte
	hl := h
	switch {
	case c.resp != nil:
		putTagged(hdr[:], n, ctrl|ctrlTagged|opReadResp, c.resp.req.SinkSTag, c.resp.req.SinkTO+uint64(c.done))
	case c.msg.op == transport.OpWrite:
		putTagged(hdr[:], n, ctrl|ctrlTagged|opWrite, c.msg.remote.STag, c.msg.remote.Off+uint64(c.done))
	case c.msg.op == transport.OpRead:
		putUntagged(hdr[:], readReqLen, ctrl|opReadReq, 0, qnRead, c.msn, 0)
		c.msg.req.put(hdr[untaggedLen:])
		hl += readReqLen
	default:
		op, inv := uint16(opSend), uint32(0)
		if c.msg.op == transport.OpSendInv {
			op, inv = opSendInv, c.msg.inv
		}
		if c.msg.flags&transport.Solicited != 0 {
			op += opSendSE - opSend
		}
		putUntagged(hdr[:], n, ctrl|op, inv, qnSend, c.msn, uint32(c.done))
	}
	payload := n
	if hl > h {
		payload = 0
	}
	pad := fpduPad(h - 2 + n)
	total := h + n + pad + crcLen
	if t.markers {
		total = o.addMarked(hdr[:hl], c.mem, payload, pad, t.q.crc, t.built)
	} else {
		o.add(hdr[:hl], c.mem, payload, pad, t.q.crc, t.q)
	}
	o.end(total)
	if c.resp != nil && c.resp.win != nil && payload > 0 {
		o.ref(c.resp.win)
	}
	t.built += uint64(total)
	t.sinceMSS += total
	t.q.cnt.fpdusOut.Add(1)
	c.done += n
	c.left -= n
	if c.left == 0 {
		*t.marks.Push() = mark{end: t.built, resp: c.resp != nil}
		c.active = false
	}
	return total == t.mss
}

// maxPayload is the payload of a full FPDU whose header, length field included, takes h bytes.
func maxPayload(mss, h int, big, markers bool) int {
	if big {
		return bigPayload
	}
	if markers {
		// RFC 5044 section 5.1: the worst case of markers in a segment.
		ulpdu := mss - (6 + 4*((mss+511)/512) + mss%4)
		return ulpdu - (h - 2)
	}
	return mss&^3 - h - crcLen
}

// settleLocked lets go of all memory: it keeps a copy of what is left of an FPDU half sent, and the Terminate behind it.
func (t *tx) settleLocked() {
	var tail []byte
	if t.state != held {
		tail = t.out.rest()
		switch n := len(t.term) - crcLen; {
		case n <= 0:
		case t.markers:
			t.out.take()
			t.out.reset()
			t.out.addMarked(t.term[:n], nil, 0, 0, t.q.crc, t.sent+uint64(len(tail)))
			tail = append(tail, t.out.arena[:t.out.used]...)
		default:
			tail = append(tail, t.term...)
		}
	}
	t.term = tail
	t.out.dropRefs(t.out.total)
	t.out.reset()
	t.out.giveBack()
	t.cur.active = false
	sendings.Move(&t.state, settled)
	t.q.wakeFlusher()
	t.q.notify()
}

func lost(err error) error {
	return fmt.Errorf("%w: %w", transport.ErrClosed, err)
}

func leCRC(b []byte, crc uint32) { binary.LittleEndian.PutUint32(b, crc) }
