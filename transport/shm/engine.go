package shm

import (
	"errors"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/transport"
)

// rx is the receive side. All of it is the owner's, who holds eng where the mappings are used.
type rx struct {
	state   reading
	head    uint64 // slots of the peer's ring that have been taken
	told    uint64 // of them, those that the peer has been told of
	raw     [maxRecordB]byte
	rec     record
	from    [maxSGE][]byte // the pieces of rec, in the peer's slabs
	found   found
	one     sgl // where a Send or a Read Response goes
	seen    seen
	in      inbox
	parking bool // our region says that the owner waits
	passes  uint
	over    bool // the socket has ended
	reset   bool // and once before said that the peer did not read all
}

// step runs the engine once.
func (q *QP) step() {
	var fx effects
	q.pass(&fx)
	q.settle(&fx)
}

// pass takes what is in the peer's ring, as far as a pass goes, and puts into ours what waits.
func (q *QP) pass(fx *effects) {
	q.eng.Lock()
	defer q.leave()
	if !q.life.up() {
		return
	}
	// An owner that never parks has to look at the socket as well, for its end, and for what it is full of.
	if q.rx.passes++; q.rx.in.has {
		q.mail(fx)
	} else if q.rx.passes%mailEvery == 0 {
		fx.bad = q.fetchMail(maxControl)
	}
	if fx.bad == nil {
		q.receive(fx)
	}
	if fx.bad == nil && fx.err == nil {
		q.transmitLocked(fx)
	}
}

// defect ends this connection, and no other, for a mistake in the code that reads what its peer says.
func (q *QP) defect(fx *effects) {
	p := recover()
	if _, is := p.(interface{ Addr() uintptr }); is {
		fx.bad = garbled("memory that the peer shares cannot be read: %v", p)
		return
	}
	if p != nil {
		fx.bad = violation(transport.LayerRDMAP, rdmapLocal, 0, "RFC 5040 section 4.8", "a defect in the receiver here: %v\n%s", p, debug.Stack())
	}
}

func (q *QP) receive(fx *effects) {
	defer q.defect(fx)
	// Seals keep a peer from it, but not the machine: a page that was swapped out and cannot be read back, or that has failed, raises SIGBUS.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	x := &q.rx
	if x.state == halted {
		return
	}
	if x.state == starved {
		readings.Move(&x.state, taking)
	}
	// Before the tail is read: nothing comes into the ring behind an end.
	end := ending(q.peer.ended.Load())
	over := x.over || end != living
	tail := q.peer.tail.Load()
	if tail-x.head > q.peer.length() {
		fx.bad = garbled("%d slots are in the ring, it has %d", tail-x.head, q.peer.length())
		return
	}
	copied := 0
	for n := 0; x.head != tail && n < passRecords && copied < passBytes && !q.rxcq.Full(); n++ {
		if ending(q.peer.ended.Load()) == cutOff {
			break
		}
		size, ok, bad := q.take(tail)
		if bad != nil {
			fx.bad = bad
			break
		}
		if !ok {
			break
		}
		x.head += uint64(x.rec.slots)
		if copied += size; size >= ackBytes {
			q.tell(fx)
		}
	}
	q.tell(fx)
	switch {
	case fx.bad != nil:
		q.halt()
	case x.state == halted || end == cutOff || over && x.head == tail:
		q.halt()
		fx.err = q.peer.lastWords()
	case x.state == starved && q.rxcq.Len() == 0:
		// The owner holds nothing that would come back, so waiting would be for ever.
		q.halt()
		fx.err = errNoMemory
	}
}

func (q *QP) halt() {
	if q.rx.state != halted {
		readings.Move(&q.rx.state, halted)
	}
}

// tell says how much of the peer's ring has been taken, and rings where it waits for that.
func (q *QP) tell(fx *effects) {
	x := &q.rx
	if x.told == x.head {
		return
	}
	x.told = x.head
	q.own.head.Store(x.head)
	if q.peer.want.Load() <= x.head {
		fx.bell = q.ringsLocked() || fx.bell
	}
}

// take takes one record. It returns the bytes copied; ok is false for one that stays in the ring.
func (q *QP) take(tail uint64) (size int, ok bool, bad *transport.TerminateError) {
	x := &q.rx
	q.peer.copyOut(x.raw[:slotSize], x.head)
	n := int(x.raw[3])
	if n < 1 || n > maxRecord || uint64(n) > tail-x.head {
		return 0, false, garbled("a record of %d slots, of which %d are there", n, tail-x.head)
	}
	if n > 1 {
		q.peer.copyOut(x.raw[slotSize:n*slotSize], x.head+1)
	}
	r := &x.rec
	if err := r.parse(x.raw[:n*slotSize]); err != nil {
		return 0, false, garbled("%v", err)
	}
	if bad := q.sources(r); bad != nil {
		return 0, false, bad
	}
	switch r.op {
	case opSend, opSendInv:
		ok, bad = q.takeSend(r)
	case opWrite:
		ok, bad = q.takeWrite(r)
	case opReadReq:
		ok, bad = true, q.takeReadRequest(r)
	case opReadResp:
		ok, bad = q.takeResponse(r)
	}
	q.cnt.records.Add(1)
	return int(r.size), ok, bad
}

// sources finds the peer's memory that a record names. A slab that is not known may be on its way: its message was sent before the record
// was put into the ring.
func (q *QP) sources(r *record) *transport.TerminateError {
	x := &q.rx
	for i := range r.pieces {
		b, ok := x.seen.of(&r.pieces[i])
		if !ok {
			if bad := q.fetchMail(maxBehind); bad != nil {
				return bad
			}
			if b, ok = x.seen.of(&r.pieces[i]); !ok {
				p := r.pieces[i]
				return garbled("payload of %d bytes at offset %d of slab %d, of which the peer has shared none or less", p.n, p.off, p.slab)
			}
		}
		x.from[i] = b
	}
	return nil
}

// pull copies the payload of a record to its place. False means that it cannot be trusted: the peer has ended, and may use its memory
// for something else since.
func (q *QP) pull(r *record, to *sgl) bool {
	if len(r.pieces) == 0 {
		to.put(r.inline)
		return true
	}
	for i := range r.pieces {
		to.put(q.rx.from[i])
	}
	q.cnt.copied.Add(uint64(r.size))
	if ending(q.peer.ended.Load()) != living {
		q.halt()
		return false
	}
	return true
}

func (q *QP) takeSend(r *record) (bool, *transport.TerminateError) {
	x := &q.rx
	rb, some, memory := q.front()
	switch {
	case !some:
		return false, violation(transport.LayerDDP, ddpUntagged, ddpNoBuffer, "RFC 5041 section 7.2", "a Send of %d bytes found no receive posted", r.size)
	case !memory:
		readings.Move(&x.state, starved)
		return false, nil
	case int(r.size) > len(rb.part.b):
		return false, violation(transport.LayerDDP, ddpUntagged, ddpTooLong, "RFC 5041 section 7.2",
			"a Send of %d bytes, its receive holds %d", r.size, len(rb.part.b))
	}
	x.one.only(rb.part)
	if !q.pull(r, &x.one) {
		return false, nil
	}
	inv := uint32(0)
	if r.op == opSendInv {
		if bad := q.remoteInvalidate(r.stag); bad != nil {
			return false, bad
		}
		inv = r.stag
	}
	q.rq.Lock()
	q.rq.ring.Pop()
	q.rq.Unlock()
	*q.rxcq.Push() = transport.WC{Token: rb.token, Op: transport.OpRecv, Len: r.size, Inv: inv}
	return true, nil
}

// front is the oldest receive, which stays where it is until it is filled. memory is false where its source has none.
func (q *QP) front() (rb recvBuf, some, memory bool) {
	q.rq.Lock()
	if some = q.rq.ring.Len() > 0; some {
		rb = *q.rq.ring.At(0)
	}
	q.rq.Unlock()
	if !some || rb.part.slab != nil {
		return rb, some, some
	}
	s, ok := q.source(rb.token) // without the lock: who posts receives may hold what the source wants
	if !ok {
		return rb, true, false
	}
	rb.part = part{s.Bytes(), s.Slab, s.Off}
	q.rq.Lock()
	q.rq.ring.At(0).part = rb.part // only the owner takes the front away
	q.rq.Unlock()
	return rb, true, true
}

func (q *QP) takeWrite(r *record) (bool, *transport.TerminateError) {
	x := &q.rx
	if r.size == 0 { // RFC 5040 section 4.3, interop: the STag of a zero-length message is not looked at
		return true, nil
	}
	switch code := q.stags.resolve(&x.found, r.stag, r.off, int(r.size), transport.RemoteWrite); code {
	case resolved:
	case noAccess:
		return false, violation(transport.LayerRDMAP, rdmapProtection, rdmapAccess, "RFC 5040 section 5.1",
			"a Write to STag 0x%08x, which grants no remote write", r.stag)
	default:
		return false, violation(transport.LayerDDP, ddpTagged, [...]uint8{noSTag: ddpTagSTag, outOfBounds: ddpTagBounds, wraps: ddpTagWrap}[code],
			"RFC 5041 section 7.2", "a Write of %d bytes to STag 0x%08x, offset 0x%x: %s", r.size, r.stag, r.off, code)
	}
	return q.pull(r, &x.found.mem), nil
}

// takeReadRequest takes a Read Request into the response queue.
func (q *QP) takeReadRequest(r *record) *transport.TerminateError {
	x := &q.rx
	x.found.win, x.found.mem.n, x.found.mem.total = nil, 0, 0
	if r.size > 0 {
		if code := q.stags.resolve(&x.found, r.stag, r.off, int(r.size), transport.RemoteRead); code != resolved {
			c := [...]uint8{noSTag: rdmapSTag, outOfBounds: rdmapBounds, wraps: rdmapWrap, noAccess: rdmapAccess}[code]
			return violation(transport.LayerRDMAP, rdmapProtection, c, "RFC 5040 section 5.2",
				"a Read of %d bytes from STag 0x%08x, offset 0x%x: %s", r.size, r.stag, r.off, code)
		}
	}
	t := &q.tx
	t.Lock()
	defer t.Unlock()
	if t.resp.Len() >= q.depth.In {
		var fx effects
		q.takenLocked(&fx) // the peer may have taken the oldest response since
		if fx.bad != nil {
			return fx.bad
		}
		if fx.wake {
			q.pending.Store(true)
		}
	}
	if t.resp.Len() >= q.depth.In {
		return violation(transport.LayerDDP, ddpUntagged, ddpNoBuffer, "RFC 6581 section 9.1",
			"more than %d Reads outstanding, the depth agreed", q.depth.In)
	}
	w := x.found.win
	if w != nil && (!w.valid.Load() || w.gen != x.found.gen) {
		return violation(transport.LayerRDMAP, rdmapProtection, rdmapSTag, "RFC 5040 section 5.2",
			"a Read from STag 0x%08x, which was invalidated meanwhile", r.stag)
	}
	p := t.resp.Push()
	p.win, p.gen, p.mem = w, x.found.gen, x.found.mem
	if w != nil {
		w.refs++
	}
	return nil
}

// takeResponse copies what the oldest outstanding Read asked for.
func (q *QP) takeResponse(r *record) (bool, *transport.TerminateError) {
	x := &q.rx
	s := q.stags.oldest()
	if s == nil {
		return false, violation(transport.LayerRDMAP, rdmapOperation, rdmapOpcode, "RFC 5040 section 5.2", "a Read Response and no Read is outstanding")
	}
	if int(r.size) != len(s.part.b) {
		return false, violation(transport.LayerDDP, ddpTagged, ddpTagBounds, "RFC 5040 section 5.2",
			"a Read Response of %d bytes, the oldest Read asked for %d", r.size, len(s.part.b))
	}
	x.one.only(s.part)
	if !q.pull(r, &x.one) {
		return false, nil
	}
	wc := transport.WC{Token: s.token, Op: transport.OpRead, Len: r.size}
	signaled := s.flags&transport.Signaled != 0
	q.stags.Lock()
	q.stags.reads.Pop()
	q.stags.Unlock()
	q.readsUp.Add(-1)
	q.readsOK.Add(1)
	if signaled {
		*q.rxcq.Push() = wc
	} else {
		q.sqUsed.Add(-1)
	}
	return true, nil
}

func (q *QP) remoteInvalidate(stag uint32) *transport.TerminateError {
	q.tx.Lock()
	defer q.tx.Unlock()
	q.stags.Lock()
	w := q.stags.tab.Find(stag)
	q.stags.Unlock()
	if w != nil && w.refs > 0 {
		var fx effects
		q.takenLocked(&fx) // the peer took the response before it sent this, if it keeps the rules
		if fx.bad != nil {
			return fx.bad
		}
		if fx.wake {
			q.pending.Store(true)
		}
	}
	q.stags.Lock()
	defer q.stags.Unlock()
	switch {
	case w == nil:
		return violation(transport.LayerRDMAP, rdmapProtection, rdmapCannotInv, "RFC 5040 section 5.3",
			"a Send invalidates STag 0x%08x, which is not valid here", stag)
	case !w.valid.Load() || w.stag != stag:
		return nil // invalidated here meanwhile, or the QP failed
	case w.refs > 0:
		return violation(transport.LayerRDMAP, rdmapProtection, rdmapCannotInv, "RFC 5040 section 5.3",
			"a Send invalidates STag 0x%08x while the peer's own Read of it is being answered", stag)
	}
	q.stags.kill(w)
	return nil
}

// fetchMail takes what is on the socket, so many messages at most.
func (q *QP) fetchMail(most int) *transport.TerminateError {
	var fx effects
	for range most {
		if err := q.rc.Control(q.recvFn); err != nil || !q.rx.in.has {
			break
		}
		q.mail(&fx)
		if fx.bad != nil || q.rx.over {
			break
		}
	}
	if fx.bell {
		_ = q.rc.Control(q.bellFn) // fails only where the connection has ended
	}
	return fx.bad
}

// mail looks at the message that is in the inbox.
func (q *QP) mail(fx *effects) {
	x := &q.rx
	in := &x.in
	in.has = false
	switch {
	case in.err == unix.ECONNRESET && !x.reset:
		x.reset = true // what it sent is still to be read
		return
	case in.err != 0 || in.n == 0:
		x.over = true
		return
	}
	fds := in.files()
	var c control
	err := c.parse(in.buf[:in.n])
	if err == nil && in.hdr.Flags&unix.MSG_TRUNC != 0 {
		err = errNoHello
	}
	if err != nil {
		closeAll(fds)
	} else {
		err = x.seen.take(&c, fds, int(in.hdr.Flags))
	}
	if err != nil {
		fx.bad = garbled("%v", err)
		var no *UnsealedError
		if errors.As(err, &no) || errors.Is(err, ErrFiles) {
			q.cnt.refused.Add(1)
		}
		return
	}
	if c.kind != msgBell {
		fx.bell = q.ringsLocked() || fx.bell // it may have more to send than the socket takes
	}
}
