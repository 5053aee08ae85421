package transporttest

import (
	"fmt"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

type frameKind uint8

const (
	frameSend frameKind = iota
	frameWrite
	frameReadReq
	frameReadResp
	frameTerminate
	frameFin
)

// frame is what a link carries: a segment of a message, or the end.
type frame struct {
	kind  frameKind
	data  []byte
	last  bool
	stag  uint32 // Write, ReadReq: the target; Send: what it invalidates, if inv
	inv   bool
	off   uint64 // Write, ReadReq
	size  int    // ReadReq
	total int    // Write: of the whole message
	err   error  // Terminate, Fin
}

// pumpLocked moves work onto the link while it has room. What makes room or work calls it, so that none waits.
func (q *qp) pumpLocked() {
	p := q.peer
	for q.err == nil && p != nil && p.err == nil && p.inboxBytes < linkBytes && len(p.inbox) < linkFrames {
		if !q.stepLocked() {
			return
		}
		wake(p.wake)
	}
	if q.peer == nil { // Binds and Invalidates need no peer
		for q.err == nil && len(q.sendq) > 0 && q.stepLocked() {
			continue
		}
	}
}

// stepLocked puts one frame of the next message on the link and reports whether there was one. Responses and work
// requests take turns by whole messages: tagged messages are not interleaved, and neither waits for the other.
func (q *qp) stepLocked() bool {
	canWork := len(q.sendq) > 0 && (q.sendq[0].Flags&transport.Fence == 0 || len(q.reads) == 0)
	canResp := len(q.resps) > 0 && !q.holdReads
	switch {
	case canResp && q.resps[0].sent > 0:
		q.respondLocked()
	case canWork && q.sendq[0].sent > 0:
		q.workLocked()
	case canResp && (!canWork || !q.lastResp):
		q.lastResp = true
		q.respondLocked()
	case canWork:
		q.lastResp = false
		q.workLocked()
	default:
		return false
	}
	return true
}

func (q *qp) toPeerLocked(f frame) {
	p := q.peer
	p.inbox = append(p.inbox, f)
	p.inboxBytes += len(f.data)
}

func (q *qp) respondLocked() {
	r := q.resps[0]
	n := min(segment, r.total-r.sent)
	if n > 0 && r.from.b != nil && r.from.b.dead {
		// The upper protocol ended the STag under a Read in progress: the memory is not ours to send any more.
		q.terminateLocked(rdmap(1, 0, "RFC 5040 section 7.2", "a Read was in progress when its STag was invalidated"))
		return
	}
	f := frame{kind: frameReadResp, data: make([]byte, n)}
	if n > 0 {
		mem.Gather(f.data, r.from.local, int64(r.from.at+r.sent))
	}
	r.sent += n
	f.last = r.sent == r.total
	if f.last {
		q.resps = q.resps[1:]
	}
	q.toPeerLocked(f)
}

func (q *qp) workLocked() {
	w := q.sendq[0]
	done := true
	switch w.Op {
	case transport.OpSend, transport.OpSendInv, transport.OpWrite:
		n := min(segment, w.total-w.sent)
		f := frame{kind: frameSend, data: make([]byte, n), stag: w.Inv, inv: w.Op == transport.OpSendInv}
		if w.Op == transport.OpWrite {
			f = frame{kind: frameWrite, data: f.data, stag: w.Remote.STag, off: w.Remote.Off + uint64(w.sent), total: w.total}
		}
		mem.Gather(f.data, w.local, int64(w.sent))
		w.sent += n
		f.last = w.sent == w.total
		done = f.last
		q.toPeerLocked(f)
	case transport.OpRead:
		q.toPeerLocked(frame{kind: frameReadReq, stag: w.Remote.STag, off: w.Remote.Off, size: w.total})
		q.reads = append(q.reads, w)
		q.sendq = q.sendq[1:]
		return
	case transport.OpInvalidate:
		q.killLocked(w.bind)
	}
	if done {
		q.sendq = q.sendq[1:]
		q.completeLocked(w)
	}
}

func (q *qp) completeLocked(w *work) {
	if q.dev.like != nil {
		w.done = true
		q.inOrderLocked()
		return
	}
	if w.Flags&transport.Signaled == 0 {
		q.nsend--
		return
	}
	q.cq = append(q.cq, transport.WC{Token: w.Token, Op: w.Op, Len: uint32(w.total)})
	wake(q.wake)
}

// engineLocked takes what is on the link, as the owner's Poll and Wait do.
func (q *qp) engineLocked() {
	for len(q.inbox) > 0 && q.err == nil {
		if q.notReadyLocked() {
			break
		}
		f := q.inbox[0]
		q.inbox[0] = frame{}
		q.inbox = q.inbox[1:]
		q.inboxBytes -= len(f.data)
		switch f.kind {
		case frameSend:
			q.takeSendLocked(&f)
		case frameWrite:
			q.takeWriteLocked(&f)
		case frameReadReq:
			q.takeReadLocked(&f)
		case frameReadResp:
			q.takeResponseLocked(&f)
		case frameTerminate:
			q.failLocked(fmt.Errorf("%w: %w", transport.ErrClosed, f.err))
		case frameFin:
			q.failLocked(f.err)
		}
	}
	q.pumpLocked()
	if q.peer != nil {
		q.peer.pumpLocked()
	}
}

// notReadyLocked reports whether an adapter holds a Send, and what came behind it, back until a receive is posted. The end
// of a connection does not wait.
func (q *qp) notReadyLocked() bool {
	if q.dev.like == nil || q.inbox[0].kind != frameSend || len(q.recvs) > 0 {
		return false
	}
	for _, f := range q.inbox {
		if f.kind == frameFin {
			q.failLocked(f.err)
		}
	}
	return true
}

func (q *qp) takeSendLocked(f *frame) {
	if len(q.recvs) == 0 {
		q.terminateLocked(ddp(2, 2, "RFC 5041 section 5.2", "a Send arrived and no receive was posted for it"))
		return
	}
	r := q.recvs[0]
	if q.placed+len(f.data) > r.Buf.Len {
		q.terminateLocked(ddp(2, 5, "RFC 5041 section 5.2", fmt.Sprintf("a Send is longer than its receive of %d bytes", r.Buf.Len)))
		return
	}
	mem.Scatter([]mem.Span{r.Buf}, int64(q.placed), f.data)
	q.placed += len(f.data)
	if !f.last {
		return
	}
	wc := transport.WC{Token: r.Token, Op: transport.OpRecv, Len: uint32(q.placed)}
	if f.inv {
		b := q.bound[f.stag]
		if b == nil || q.dev.like != nil && q.dev.like.WholeSlab {
			q.terminateLocked(rdmap(2, 9, "RFC 5040 section 5.3", fmt.Sprintf("a Send invalidates STag 0x%08x, which is not valid here", f.stag)))
			return
		}
		q.killLocked(b) // before the completion can be seen
		wc.Inv = f.stag
	}
	q.recvs, q.placed = q.recvs[1:], 0
	q.cq = append(q.cq, wc)
}

func (q *qp) takeWriteLocked(f *frame) {
	if f.total == 0 {
		return // RFC 5041 section 5.1: nothing is placed, so no STag is looked at
	}
	p, b, no := q.reach(f.stag, f.off, len(f.data), transport.RemoteWrite)
	switch no {
	case refuseSTag:
		q.terminateLocked(ddp(1, 0, "RFC 5041 section 5.1", fmt.Sprintf("an RDMA Write names STag 0x%08x, which is not valid here", f.stag)))
	case refuseBounds:
		q.terminateLocked(ddp(1, 1, "RFC 5041 section 5.1", fmt.Sprintf("an RDMA Write of %d bytes leaves its window of %d", len(f.data), b.size)))
	case refuseRight:
		q.terminateLocked(rdmap(1, 2, "RFC 5040 section 7.2", "an RDMA Write names a window without that right"))
	default:
		mem.Scatter(p.local, int64(p.at), f.data)
	}
}

func (q *qp) takeReadLocked(f *frame) {
	if len(q.resps) >= q.depth.In {
		q.terminateLocked(ddp(2, 2, "RFC 5040 section 5.2", "more RDMA Reads than the depth both sides agreed on"))
		return
	}
	if f.size == 0 {
		q.resps = append(q.resps, &response{})
		return
	}
	p, b, no := q.reach(f.stag, f.off, f.size, transport.RemoteRead)
	switch no {
	case refuseSTag:
		q.terminateLocked(rdmap(1, 0, "RFC 5040 section 7.2", fmt.Sprintf("an RDMA Read names STag 0x%08x, which is not valid here", f.stag)))
	case refuseBounds:
		q.terminateLocked(rdmap(1, 1, "RFC 5040 section 7.2", fmt.Sprintf("an RDMA Read of %d bytes leaves its window of %d", f.size, b.size)))
	case refuseRight:
		q.terminateLocked(rdmap(1, 2, "RFC 5040 section 7.2", "an RDMA Read names a window without that right"))
	default:
		q.resps = append(q.resps, &response{from: p, total: f.size})
	}
}

func (q *qp) takeResponseLocked(f *frame) {
	w := q.reads[0]
	mem.Scatter(w.local, int64(w.sent), f.data)
	w.sent += len(f.data)
	if f.last {
		q.reads = q.reads[1:]
		q.nread--
		q.completeLocked(w)
	}
}

// holds reports whether n bytes from off lie within the window, whatever the peer put in off.
func (b *binding) holds(off uint64, n int) bool {
	return off >= b.base && off-b.base <= uint64(b.size) && uint64(n) <= uint64(b.size)-(off-b.base)
}

func ddp(typ, code uint8, clause, detail string) *transport.TerminateError {
	return &transport.TerminateError{Layer: transport.LayerDDP, Type: typ, Code: code, Clause: clause, Detail: detail}
}

func rdmap(typ, code uint8, clause, detail string) *transport.TerminateError {
	return &transport.TerminateError{Layer: transport.LayerRDMAP, Type: typ, Code: code, Clause: clause, Detail: detail}
}
