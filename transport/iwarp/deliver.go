package iwarp

import (
	"fmt"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

var errPeerClosed = fmt.Errorf("%w by the peer", transport.ErrClosed)

// header checks the segment whose header, with all of a Read Request or Terminate, is b, and finds the place for its
// payload. Nothing has an effect before the whole FPDU is there: finish does that.
func (q *QP) header(b []byte) *transport.TerminateError {
	x := &q.rx
	h := &x.h
	x.win, x.read = nil, nil
	if h.ctrl&ctrlDDPMask != ctrlDDPv1 {
		typ, code := uint8(ddpUntagged), uint8(ddpUntVersion)
		if h.tagged {
			typ, code = ddpTagged, ddpTagVersion
		}
		return violation(transport.LayerDDP, typ, code, "RFC 5041 section 7.2", "DDP version %d, ours is 1", h.ctrl>>8&3)
	}
	if h.ctrl&ctrlRDMask != ctrlRDv1 {
		return violation(transport.LayerRDMAP, rdmapOperation, rdmapVersion, "RFC 5040 section 4.1",
			"RDMAP version %d, ours is 1", h.ctrl>>6&3)
	}
	if h.tagged {
		switch h.op {
		case opWrite:
			return q.placeWrite()
		case opReadResp:
			return q.placeReadResp()
		}
		return q.badOpcode()
	}
	var qn uint32
	switch h.op {
	case opSend, opSendInv, opSendSE, opSendSEInv:
		qn = qnSend
	case opReadReq:
		qn = qnRead
	case opTerminate:
		qn = qnTerminate
	default:
		return q.badOpcode()
	}
	if h.qn > qnTerminate {
		return violation(transport.LayerDDP, ddpUntagged, ddpQN, "RFC 5041 section 7.2", "queue number %d, there are 0 to 2", h.qn)
	}
	if h.qn != qn {
		return violation(transport.LayerRDMAP, rdmapOperation, rdmapOpcode, "RFC 5040 section 4.2",
			"opcode %d on queue %d, its queue is %d", h.op, h.qn, qn)
	}
	switch qn {
	case qnRead:
		return q.checkReadReq(b)
	case qnTerminate:
		x.discard = true // what does not fit a Terminate is of no interest
		return nil
	}
	return q.placeSend()
}

func (q *QP) badOpcode() *transport.TerminateError {
	h := &q.rx.h
	return violation(transport.LayerRDMAP, rdmapOperation, rdmapOpcode, "RFC 5040 section 4.1",
		"opcode %d in a message with the tagged bit %t", h.op, h.tagged)
}

func (q *QP) placeWrite() *transport.TerminateError {
	x := &q.rx
	h := &x.h
	if x.left == 0 { // RFC 5040 section 4.3, interop: the STag of a zero-length message is not looked at
		return nil
	}
	f, code := q.resolve(h.stag, h.to, x.left, transport.RemoteWrite)
	switch code {
	case resolved:
	case noAccess:
		return violation(transport.LayerRDMAP, rdmapProtection, rdmapAccess, "RFC 5040 section 5.1",
			"a Write to STag 0x%08x, which grants no remote write", h.stag)
	default:
		return violation(transport.LayerDDP, ddpTagged, [...]uint8{noSTag: ddpTagSTag, outOfBounds: ddpTagBounds, wraps: ddpTagWrap}[code],
			"RFC 5041 section 7.2", "a Write of %d bytes to STag 0x%08x, offset 0x%x: %s", x.left, h.stag, h.to, code)
	}
	x.win, x.winGen, x.sinkLen = f.win, f.gen, f.total
	if !h.last {
		x.fullLen = x.left
	}
	return nil
}

// resolution is the outcome of looking up an STag.
type resolution int

const (
	resolved resolution = iota
	noSTag
	outOfBounds
	wraps
	noAccess
)

func (r resolution) String() string {
	return [...]string{"ok", "no such STag", "outside of what was bound", "the offset wraps", "access not granted"}[r]
}

// found is a window as it was under the lock: another goroutine may invalidate it and bind it again the moment after.
type found struct {
	win   *window
	gen   uint32
	off   int // of the offset asked for
	total int // bytes bound
}

// resolve finds the window and points rx.sink at the bytes when they are to be written.
func (q *QP) resolve(stag uint32, to uint64, n int, need transport.Access) (found, resolution) {
	q.stags.Lock()
	defer q.stags.Unlock()
	w := q.stags.tab.Find(stag)
	switch {
	case w == nil || stag == 0:
		return found{}, noSTag
	case to+uint64(n) < to:
		return found{}, wraps
	case to < w.base || to-w.base > uint64(w.mem.total) || uint64(w.mem.total)-(to-w.base) < uint64(n):
		return found{}, outOfBounds
	case w.access&need == 0:
		return found{}, noAccess
	}
	f := found{win: w, gen: w.gen, off: int(to - w.base), total: w.mem.total}
	if need == transport.RemoteWrite {
		q.rx.sink.window(&w.mem, f.off, n)
	}
	return f, resolved
}

// oldestRead is the outstanding Read that a response is for, nil where there is none. The ring is a fixed one: entries
// do not move, and only the owner takes the front away.
func (q *QP) oldestRead() *readSink {
	q.stags.Lock()
	defer q.stags.Unlock()
	if q.stags.reads.Len() == 0 {
		return nil
	}
	return q.stags.reads.At(0)
}

// placeReadResp matches a segment with the oldest outstanding Read in STag, offset, length and order.
func (q *QP) placeReadResp() *transport.TerminateError {
	x := &q.rx
	h := &x.h
	r := q.oldestRead()
	if r == nil {
		return violation(transport.LayerRDMAP, rdmapOperation, rdmapOpcode, "RFC 5040 section 5.2", "a Read Response and no Read is outstanding")
	}
	rest := len(r.buf) - r.got
	switch {
	case h.stag != r.stag && len(r.buf) > 0:
		return violation(transport.LayerDDP, ddpTagged, ddpTagSTag, "RFC 5040 section 5.2",
			"a Read Response names STag 0x%08x, the oldest Read's is 0x%08x", h.stag, r.stag)
	case len(r.buf) > 0 && h.to != r.base+uint64(r.got), x.left > rest:
		return violation(transport.LayerDDP, ddpTagged, ddpTagBounds, "RFC 5040 section 5.2",
			"a Read Response of %d bytes at offset 0x%x, expected are at most %d at 0x%x", x.left, h.to, rest, r.base+uint64(r.got))
	case h.last != (x.left == rest):
		return violation(transport.LayerDDP, ddpTagged, ddpTagBounds, "RFC 5040 section 5.2",
			"a Read Response whose last segment (%t) does not agree with the %d bytes outstanding", h.last, rest)
	}
	x.read = r
	x.sink.one(r.buf[r.got : r.got+x.left])
	x.rest.one(r.buf[r.got+x.left:])
	x.sinkLen = len(r.buf)
	return nil
}

func (q *QP) placeSend() *transport.TerminateError {
	x := &q.rx
	h := &x.h
	if h.msn != x.msnSend {
		return violation(transport.LayerDDP, ddpUntagged, ddpMSN, "RFC 5041 section 5.3",
			"message %d on queue 0, expected is %d", h.msn, x.msnSend)
	}
	if x.rtrSend && x.left == 0 && h.op == opSend && h.last && h.mo == 0 {
		return nil // finish swallows it
	}
	if !x.cur.active {
		if !q.takeRecv() {
			return violation(transport.LayerDDP, ddpUntagged, ddpNoBuffer, "RFC 5041 section 7.2", "message %d found no receive posted", h.msn)
		}
		x.cur.active, x.cur.got = true, 0
	}
	if int(h.mo) != x.cur.got {
		return violation(transport.LayerDDP, ddpUntagged, ddpMO, "RFC 5041 section 7.2",
			"message offset %d, expected is %d", h.mo, x.cur.got)
	}
	if x.left > len(x.cur.buf)-x.cur.got {
		return violation(transport.LayerDDP, ddpUntagged, ddpTooLong, "RFC 5041 section 7.2",
			"a message of more than %d bytes, which its receive buffer holds", len(x.cur.buf))
	}
	x.sink.one(x.cur.buf[x.cur.got : x.cur.got+x.left])
	x.sinkLen = len(x.cur.buf)
	return nil
}

// takeRecv makes the oldest receive the current one.
func (q *QP) takeRecv() bool {
	q.rq.Lock()
	defer q.rq.Unlock()
	if q.rq.ring.Len() == 0 {
		return false
	}
	q.rx.cur.recvBuf = *q.rq.ring.Pop()
	return true
}

var errNoMemory = fmt.Errorf("%w: no memory for a message that has arrived", transport.ErrClosed)

// RecvMemory lets receives be posted without memory: see transport.LazyReceiver.
func (q *QP) RecvMemory(source func(token uint64) (mem.Span, bool)) bool {
	if q.opt.NoLazyRecv || q.life.wasUp() {
		return false
	}
	q.source = source
	return true
}

// receivable makes sure that the receive of the message that the header in rx.h begins, if it begins one, has memory.
func (q *QP) receivable() bool {
	x := &q.rx
	h := &x.h
	if q.source == nil || h.tagged || x.cur.active {
		return true
	}
	switch h.op {
	case opSend, opSendInv, opSendSE, opSendSEInv:
	default:
		return true
	}
	lazy, token := q.lazyRecv()
	if !lazy {
		return true
	}
	// Without the lock: the goroutine that posts receives may hold what the source wants. Only the owner takes the front away.
	s, ok := q.source(token)
	if !ok {
		return false
	}
	q.rq.Lock()
	defer q.rq.Unlock()
	q.rq.ring.At(0).buf = s.Bytes()
	return true
}

// lazyRecv reports whether the oldest receive has no memory yet.
func (q *QP) lazyRecv() (lazy bool, token uint64) {
	q.rq.Lock()
	defer q.rq.Unlock()
	if q.rq.ring.Len() == 0 {
		return false, 0
	}
	r := q.rq.ring.At(0)
	return r.buf == nil, r.token
}

// checkReadReq looks at a Read Request; finish queues the response.
func (q *QP) checkReadReq(b []byte) *transport.TerminateError {
	x := &q.rx
	h := &x.h
	if h.msn != x.msnRead {
		return violation(transport.LayerDDP, ddpUntagged, ddpMSN, "RFC 5041 section 5.3",
			"message %d on queue 1, expected is %d", h.msn, x.msnRead)
	}
	if h.mo != 0 {
		return violation(transport.LayerDDP, ddpUntagged, ddpMO, "RFC 5040 section 4.4", "a Read Request at message offset %d", h.mo)
	}
	if len(b) != untaggedLen+readReqLen || !h.last {
		return violation(transport.LayerDDP, ddpUntagged, ddpTooLong, "RFC 5040 section 4.4",
			"a Read Request of %d bytes, its header takes %d and there is no payload", h.ulpdu-(untaggedLen-2), readReqLen)
	}
	return nil
}

// finish gives the whole, checked FPDU its effect.
func (q *QP) finish() *transport.TerminateError {
	x := &q.rx
	h := &x.h
	switch h.op {
	case opWrite:
		return nil
	case opReadResp:
		q.finishRead()
		return nil
	case opReadReq:
		x.msnRead++
		return q.queueResponse()
	case opTerminate:
		x.close()
		q.cnt.terms.Add(1)
		t := parseTerminate(x.raw[untaggedLen:x.rawLen])
		q.fail(t, nil, nil)
		return nil
	}
	if !x.cur.active { // the ready-to-receive Send
		x.rtrSend = false
		x.msnSend++
		return nil
	}
	x.rtrSend = false
	x.cur.got += h.ulpdu - (untaggedLen - 2)
	if !h.last {
		return nil
	}
	x.msnSend++
	if x.sendLen = 0; x.cur.got <= inlineMax {
		x.sendLen = fpduLen(h.ulpdu)
	}
	inv := uint32(0)
	if h.op == opSendInv || h.op == opSendSEInv {
		if t := q.remoteInvalidate(h.stag); t != nil {
			return t
		}
		inv = h.stag
	}
	x.cur.active = false
	*q.rxcq.Push() = transport.WC{Token: x.cur.token, Op: transport.OpRecv, Len: uint32(x.cur.got), Inv: inv}
	return nil
}

func (q *QP) remoteInvalidate(stag uint32) *transport.TerminateError {
	q.tx.Lock()
	defer q.tx.Unlock()
	q.stags.Lock()
	defer q.stags.Unlock()
	w := q.stags.tab.Find(stag)
	if w == nil {
		return violation(transport.LayerRDMAP, rdmapProtection, rdmapCannotInv, "RFC 5040 section 5.3",
			"a Send invalidates STag 0x%08x, which is not valid here", stag)
	}
	for w.txRefs > 0 && q.tx.state == transmitting {
		// The peer has the whole response already, and the system call that sent it is about to return.
		q.stags.Unlock()
		q.tx.awaitStepLocked()
		q.stags.Lock()
	}
	if !w.valid.Load() || w.stag != stag {
		return nil // invalidated here meanwhile, or the QP failed
	}
	if w.txRefs > 0 {
		return violation(transport.LayerRDMAP, rdmapProtection, rdmapCannotInv, "RFC 5040 section 5.3",
			"a Send invalidates STag 0x%08x while the peer's own Read of it is being answered", stag)
	}
	q.stags.kill(w)
	return nil
}

func (q *QP) finishRead() {
	x := &q.rx
	r := x.read
	r.got += x.h.ulpdu - (taggedLen - 2)
	if !x.h.last {
		return
	}
	wc := transport.WC{Token: r.token, Op: transport.OpRead, Len: uint32(len(r.buf))}
	signaled, internal := r.flags&transport.Signaled != 0, r.internal
	q.popRead(r)
	q.readsUp.Add(-1)
	q.readsOK.Add(1)
	if q.invals.Load() > 0 {
		q.pending.Store(true) // one of them may have been fenced
	}
	switch {
	case internal:
	case signaled:
		*q.rxcq.Push() = wc
	default:
		q.sqUsed.Add(-1)
	}
	q.tx.Lock()
	defer q.tx.Unlock()
	if q.tx.cut < q.tx.sq.Len() { // a fence may have opened
		q.pump()
	}
}

func (q *QP) popRead(r *readSink) {
	q.stags.Lock()
	defer q.stags.Unlock()
	if len(r.buf) >= q.opt.CopyThreshold {
		q.stags.largeReads.Add(-1)
	}
	r.buf = nil
	q.stags.reads.Pop()
}

// queueResponse takes a Read Request into the response queue.
func (q *QP) queueResponse() *transport.TerminateError {
	x := &q.rx
	var req readReq
	req.parse(x.raw[untaggedLen:])
	r := txResp{req: req}
	if req.Size > 0 {
		f, code := q.resolve(req.SrcSTag, req.SrcTO, int(req.Size), transport.RemoteRead)
		if code != resolved {
			c := [...]uint8{noSTag: rdmapSTag, outOfBounds: rdmapBounds, wraps: rdmapWrap, noAccess: rdmapAccess}[code]
			return violation(transport.LayerRDMAP, rdmapProtection, c, "RFC 5040 section 5.2",
				"a Read of %d bytes from STag 0x%08x, offset 0x%x: %s", req.Size, req.SrcSTag, req.SrcTO, code)
		}
		r.win, r.gen, r.off = f.win, f.gen, f.off
	}
	t := &q.tx
	t.Lock()
	defer t.Unlock()
	for t.resp.Len() >= int(q.depthIn.Load()) && t.state == transmitting && !q.life.dead() {
		// The peer may have the oldest response before the system call that sent it has returned.
		t.awaitStepLocked()
	}
	if t.resp.Len() >= int(q.depthIn.Load()) {
		q.cnt.refused.Add(1)
		return violation(transport.LayerDDP, ddpUntagged, ddpNoBuffer, "RFC 6581 section 9.1",
			"more than %d Reads outstanding, the depth agreed", q.depthIn.Load())
	}
	*t.resp.Push() = r
	q.pump()
	return nil
}
