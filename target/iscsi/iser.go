package iscsi

import (
	"context"
	"errors"
	"net"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/devicework"
	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/internal/owner"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// iserDatamover is the iSER datamover (RFC 7145 as Linux speaks it): control PDUs travel in Sends behind a 28-byte header, Data-In
// is RDMA Write, R2T and its Data-Out are one RDMA Read, and the response invalidates what the initiator advertised.
//
//  1. The owner (internal/owner, iser_owner.go) polls the queue pair: receives become PDUs, other completions end moves
//     (iser_rx.go).
//  2. Any goroutine queues work requests (iser_tx.go); one at a time posts them. A response is posted together with the
//     Writes before it wherever the device server says that they are its last.
//  3. A receive is posted again before the PDU in it is handled, so that no response invites a request that finds none.
type iserDatamover struct {
	c    *conn
	dev  transport.Device
	qp   transport.QP
	caps transport.Caps
	inv  bool // both sides take Send with Invalidate

	depth     transport.Depth
	overtaken devicework.Apart

	// Guarded by c.mu.
	owner     owner.Engine[devicework.Work]
	lazy      bool // receives get their memory when a message comes; set before the connection is
	full      bool
	recvs     []recvSlot
	freeRecv  []int
	oneRecv   [1]transport.Recv // a slice of it escapes, one of its own would be allocated each time
	recvMem   []*mem.Buf
	recvFree  []mem.Span // of recvMem, where lazy: no message is in it
	posted    int
	wanted    int // receives to keep posted
	loginRecv *mem.Buf
	sends     []sendSlot
	freeSend  []int
	sendMem   []*mem.Buf
	outSends  int
	readQ     []*task
	late      late
	closing   bool // close when all Sends have completed
}

type recvSlot struct{ span mem.Span }

// sendSlot is the memory of one control PDU, and the move that ends with it.
type sendSlot struct {
	span    mem.Span
	one     [1]mem.Span // WR.Local
	big     *mem.Buf    // instead of span, for login and text
	move    *task
	control bool
}

// Work request tokens: the kind in the high byte, an index below.
const (
	tokRecv uint64 = iota + 1
	tokSend
	tokWrite
	tokRead
)

func token(kind uint64, i int) uint64 { return kind<<56 | uint64(uint32(i)) }

// ConnAccepter is what Options.Device implements to serve MPA and iSCSI on one port: it answers the MPA Request of a
// connection that was accepted and whose first bytes have been read.
type ConnAccepter interface {
	Request(ctx context.Context, c *net.TCPConn, peeked []byte) (transport.Request, error)
}

func newISERDatamover(c *conn, d transport.Device) *iserDatamover {
	c.iser = true
	x := &iserDatamover{c: c, dev: d, caps: d.Caps()}
	x.owner.Init(x, &c.mu, nil)
	return x
}

// handOver gives a connection that began with an MPA Request, of which peeked has been read, to the software RNIC.
func (x *tcpDatamover) handOver(peeked []byte) {
	c := x.c
	x.giveBuf()
	acc, ok := c.srv.opt.Device.(ConnAccepter)
	tc, isTCP := x.nc.(*net.TCPConn)
	if !ok || !isTCP {
		c.plog.Warn("an RDMA connection on a port that has no RNIC", zap.Stringer("remote", c.remote))
		x.close(nil)
		c.finish(errRefused)
		return
	}
	r, err := acc.Request(c.ctx, tc, peeked)
	if err != nil {
		c.plog.Warn("RDMA connection failed before its login", zap.Stringer("remote", c.remote), zap.Error(err))
		x.close(nil)
		c.finish(err)
		return
	}
	l := newISERDatamover(c, c.srv.opt.Device)
	c.mu.Lock()
	c.datamover = l
	c.mu.Unlock()
	l.run(r)
}

// run is the owner.
func (x *iserDatamover) run(r transport.Request) {
	err := x.accept(r)
	if err == nil {
		err = x.own()
	} else {
		x.c.srv.roomFor(err)
		x.c.plog.Warn("RDMA connection not accepted", zap.Stringer("remote", x.c.remote), zap.Error(err))
	}
	x.c.mu.Lock()
	x.c.corked = false
	if x.c.killErr == nil {
		x.c.killErr = err
	}
	err = x.c.killErr
	x.c.mu.Unlock()
	x.drain(err)
	x.c.finish(err)
}

// accept posts the one login receive and answers the connection request. Nothing larger is taken before the peer has
// proved who it is (RFC 7145 section 5.1.2).
func (x *iserDatamover) accept(r transport.Request) error {
	c := x.c
	peer := r.Peer()
	x.inv = x.caps.RemoteInv && iscsi.CMSendInv(peer.Private, x.caps.PaddedPrivate)
	q := c.srv.opt.Limits.Queue
	sends := 4*q + 64
	if x.caps.InOrder {
		c.mu.Lock()
		c.behind = sends
		c.mu.Unlock()
	}
	qp, err := x.dev.NewQP(transport.QPOptions{Sends: sends, Recvs: q + unexpectedPDUs + 8, Slim: true})
	if err != nil {
		return errors.Join(err, r.Reject(nil))
	}
	buf, err := c.waitMem(loginISER)
	if err != nil {
		_ = qp.Close(transport.Reason{})
		x.setQP(qp)
		return errors.Join(err, r.Reject(nil))
	}
	x.loginRecv = buf
	if l, ok := qp.(transport.LazyReceiver); ok {
		x.lazy = l.RecvMemory(x.recvMemory)
	}
	x.setQP(qp)
	if _, err := qp.PostRecv([]transport.Recv{{Token: token(tokRecv, 0), Buf: buf.Span()}}); err != nil {
		return errors.Join(err, r.Reject(nil))
	}
	c.mu.Lock()
	x.posted = 1
	c.mu.Unlock()
	// This target serves no Reads: it advertises no memory at all.
	p := transport.ConnParams{Private: iscsi.CMPrivate(x.inv), ReadsIn: 0, ReadsOut: min(readsPerQP, x.caps.MaxReads)}
	if peer.Named {
		p.ReadsOut = min(p.ReadsOut, peer.ReadsIn)
		// An initiator that wants to read gets the one that Linux asks for; it never uses it.
		p.ReadsIn = min(1, peer.ReadsOut)
	}
	if err := r.Accept(c.ctx, qp, p); err != nil {
		return err
	}
	x.depth = qp.Depth()
	return nil
}

// setQP publishes the queue pair, unless the connection was killed meanwhile.
func (x *iserDatamover) setQP(qp transport.QP) {
	x.c.mu.Lock()
	x.qp, x.owner.QP = qp, qp
	killed := x.c.killErr != nil
	x.c.mu.Unlock()
	if killed {
		_ = qp.Close(transport.Reason{})
	}
}

func (x *iserDatamover) close(err error) {
	x.c.mu.Lock()
	qp := x.qp
	x.c.mu.Unlock()
	if qp == nil {
		return
	}
	_ = qp.Close(closeReason(err))
}

// closeReason is what the peer is told of an end.
func closeReason(err error) transport.Reason {
	var pe *iscsi.ProtocolError
	if !errors.As(err, &pe) {
		err = nil // an orderly end needs no Terminate
	}
	return transport.Reason{Err: err}
}

func (x *iserDatamover) closeAfterFlushLocked() {
	x.closing = true
	x.maybeCloseLocked()
}

func (x *iserDatamover) maybeCloseLocked() {
	if x.closing && x.owner.EmptyLocked() && x.outSends == 0 && len(x.late.pdus) == 0 {
		x.closing = false
		qp := x.qp
		go func() { _ = qp.Close(transport.Reason{}) }()
	}
}

func (x *iserDatamover) maxSend() int {
	switch {
	case !x.full:
		return iscsi.DefaultRecvData
	case x.c.discovery:
		// The login buffer serves the whole discovery session (open-iscsi posts it again for each answer).
		return iscsi.DefaultRecvData
	}
	// Linux and libiscsi post 128 bytes behind the headers whatever they negotiated.
	return min(x.c.params.MaxSend, iscsi.SafeISERData)
}

func (x *iserDatamover) widen() error {
	x.c.mu.Lock()
	qp, discovery := x.qp, x.c.discovery
	x.c.mu.Unlock()
	if w, ok := qp.(transport.Widener); ok && !discovery {
		return w.Widen()
	}
	return nil
}

// fullFeatureLocked posts the receives of full-feature phase before the response that opens it.
func (x *iserDatamover) fullFeatureLocked() error {
	if !x.c.discovery { // where it is, there is one request at a time, in the login's receive
		if x.lazy {
			// The first of it is there for good: a message can always be taken and answered.
			if err := x.moreRecvMemLocked(); err != nil {
				return err
			}
		}
		if err := x.postMoreLocked(x.c.floorLocked() + unexpectedPDUs - x.posted); err != nil {
			return err
		}
	}
	x.full = true // not while it waits for memory: what comes then is of the login
	return nil
}

// windowLocked answers with the window that posted receives allow (RFC 7145 section 8.1.1).
func (x *iserDatamover) windowLocked(n int) int {
	if x.c.discovery {
		return 1
	}
	if x.posted < n+unexpectedPDUs {
		if err := x.postMoreLocked(n + unexpectedPDUs - x.posted); err != nil {
			n = max(1, x.posted-unexpectedPDUs)
		}
	}
	x.wanted = n + unexpectedPDUs
	return n
}

// recvEach is one receive of full-feature phase.
const recvEach = recvHeadISER + recvSegmentISER

// recvMemory gives a receive its memory when its message comes. The QP calls it on the owner.
func (x *iserDatamover) recvMemory(tok uint64) (mem.Span, bool) {
	x.c.mu.Lock()
	defer x.c.mu.Unlock()
	i := int(uint32(tok))
	if i == 0 || len(x.recvFree) == 0 && x.moreRecvMemLocked() != nil {
		return mem.Span{}, false
	}
	n := len(x.recvFree) - 1
	s := x.recvFree[n]
	x.recvFree = x.recvFree[:n]
	x.recvs[i-1].span = s
	return s, true
}

// moreRecvMemLocked gets memory for three receives, or for fourteen where there are many messages at a time.
func (x *iserDatamover) moreRecvMemLocked() error {
	size := 16 << 10
	if len(x.recvMem) > 3 {
		size = 64 << 10
	}
	b, err := x.c.quota.Get(size)
	if err != nil {
		return err
	}
	x.recvMem = append(x.recvMem, b)
	s := b.Span()
	for off := 0; off+recvEach <= s.Len; off += recvEach {
		x.recvFree = append(x.recvFree, s.Cut(off, recvEach))
	}
	return nil
}

// dropRecvMemLocked gives back the memory of receives, but for the first piece, if no message is in any of it.
func (x *iserDatamover) dropRecvMemLocked() {
	if len(x.recvMem) < 2 {
		return
	}
	out := 0
	for i := range x.recvs {
		if x.recvs[i].span.Slab != nil {
			out++
		}
	}
	if out > 0 {
		return
	}
	for i, b := range x.recvMem[1:] {
		b.Release()
		x.recvMem[i+1] = nil
	}
	x.recvMem, x.recvFree = x.recvMem[:1:1], nil
	s := x.recvMem[0].Span()
	for off := 0; off+recvEach <= s.Len; off += recvEach {
		x.recvFree = append(x.recvFree, s.Cut(off, recvEach))
	}
}

// postMoreLocked adds n receives.
func (x *iserDatamover) postMoreLocked(n int) error {
	const each = recvEach
	for x.lazy && len(x.freeRecv) < n {
		if len(x.recvs) >= x.c.srv.opt.Limits.Queue+unexpectedPDUs {
			return errors.New("iscsi: no more receives")
		}
		x.freeRecv = append(x.freeRecv, len(x.recvs))
		x.recvs = append(x.recvs, recvSlot{})
	}
	for len(x.freeRecv) < n {
		size := 16 << 10
		if n-len(x.freeRecv) > 12 {
			size = 64 << 10
		}
		b, err := x.c.quota.Get(size)
		if err != nil {
			return err
		}
		x.recvMem = append(x.recvMem, b)
		s := b.Span()
		for off := 0; off+each <= s.Len; off += each {
			if len(x.recvs) >= x.c.srv.opt.Limits.Queue+unexpectedPDUs {
				break
			}
			x.freeRecv = append(x.freeRecv, len(x.recvs))
			x.recvs = append(x.recvs, recvSlot{span: s.Cut(off, each)})
		}
		if len(x.freeRecv) < n && len(x.recvs) >= x.c.srv.opt.Limits.Queue+unexpectedPDUs {
			return errors.New("iscsi: no more receives")
		}
	}
	for ; n > 0; n-- {
		i := x.freeRecv[len(x.freeRecv)-1]
		x.oneRecv[0] = transport.Recv{Token: token(tokRecv, i+1), Buf: x.recvs[i].span}
		if _, err := x.qp.PostRecv(x.oneRecv[:]); err != nil {
			return err
		}
		x.freeRecv = x.freeRecv[:len(x.freeRecv)-1]
		x.posted++
	}
	return nil
}

// repostLocked posts a receive again, unless the window has shrunk below it.
func (x *iserDatamover) repostLocked(i int) {
	if i > 0 {
		x.freeRecv = append(x.freeRecv, i-1)
		if x.lazy {
			x.recvFree = append(x.recvFree, x.recvs[i-1].span)
			x.recvs[i-1].span = mem.Span{}
		}
	} else if x.full && !x.c.discovery {
		// The login's receive was the first of full-feature phase too; it is too large to stay.
		x.loginRecv.Release()
		x.loginRecv = nil
		i = 1
	}
	open := int(x.c.maxCmdSN-x.c.expCmdSN) + 1
	if i > 0 && x.posted >= max(x.wanted, open+unexpectedPDUs) {
		return
	}
	if i == 0 {
		if _, err := x.qp.PostRecv([]transport.Recv{{Token: token(tokRecv, 0), Buf: x.loginRecv.Span()}}); err == nil {
			x.posted++
		}
		return
	}
	_ = x.postMoreLocked(1) // a queue pair that takes none is closing, and Poll says so
}

func (x *iserDatamover) idleLocked() {
	if len(x.freeSend) == len(x.sends) && len(x.sends) > 16 && x.owner.EmptyLocked() && len(x.late.pdus) == 0 {
		for _, b := range x.sendMem {
			b.Release()
		}
		x.sends, x.freeSend, x.sendMem, x.readQ = nil, nil, nil, nil
		x.owner.TrimLocked()
	}
	if x.full && x.lazy {
		x.dropRecvMemLocked()
	}
	if t, ok := x.qp.(transport.Trimmer); ok {
		t.Trim()
	}
}
