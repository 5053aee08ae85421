package rpcclient

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/sluice-storage/sluice/internal/owner"
	"github.com/sluice-storage/sluice/internal/rpcrdma"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// RDMA is what a Dialer needs besides an address: a device and memory. Many clients may share one.
type RDMA struct {
	dev  transport.Device
	pool *mem.Pool
}

// NewRDMA registers memory with a device. The device stays the caller's.
func NewRDMA(dev transport.Device) (*RDMA, error) {
	r := &RDMA{dev: dev, pool: dev.Caps().Memory.NewPool(rdmaMemory)}
	if err := r.pool.OnSlab(dev); err != nil {
		return nil, err
	}
	return r, nil
}

// Woken is for Options: the device's (transport.Waker).
func (r *RDMA) Woken() <-chan struct{} { return transport.Woken(r.dev) }

// Memory is where registered buffers for Call.DataSpan and Call.SinkSpan come from.
func (r *RDMA) Memory() *mem.Pool { return r.pool }

// Close frees the memory. All clients must be closed.
func (r *RDMA) Close() error { return r.pool.Close() }

// Dialer returns a Dialer for RPC-over-RDMA to addr, "host:port" or what else the device's Dial takes.
func (r *RDMA) Dialer(addr string) Dialer {
	return dialFunc(func(ctx context.Context, c *Client) (conn, error) {
		t := &rdma{c: c, r: r, granted: 1, quota: r.pool.Quota(rdmaMemory / 2)}
		t.copied.L = &t.mu
		if err := t.connect(ctx, addr); err != nil {
			t.quota.Close()
			return nil, err
		}
		c.wg.Add(1)
		go t.run()
		return t, nil
	})
}

// rdma is one RPC-over-RDMA connection. Its owner goroutine polls; callers post under mu.
//
// A payload is registered memory, the caller's own or a buffer of the pool that the caller's goroutine fills or empties,
// bound to a window for just its bytes and just this call. The call is over for its caller when the window's STag is
// dead: the reply invalidated it, or a local Invalidate completed.
type rdma struct {
	c     *Client
	r     *RDMA
	qp    transport.QP
	poll  owner.Poller // of qp, the owner's
	slab  *mem.Slab
	quota *mem.Quota
	recvs []transport.Recv
	maxSend,
	maxRecv int

	mu      sync.Mutex
	copied  sync.Cond // a call's copying has ended
	slots   [credits]slot
	idle    *slot
	byXID   map[uint32]*slot
	queue   []*pending // wait for a credit
	used    int        // credits in use
	granted int
	closed  bool
	held    bool           // the owner sends what is queued, all together, when it has told callers of their replies
	over    int            // calls that have ended since held was set
	sends   []transport.WR // being gathered by fillLocked
}

// slot is one call in flight.
type slot struct {
	idx        int
	next       *slot
	p          *pending // nil when its caller waits no more
	xid        uint32
	send       mem.Span
	data, list exposed // the payload, and the reply chunk or position-zero chunk
	sendDone   bool
	replied    bool
	invalid    int           // Invalidates outstanding
	gone       chan struct{} // closed when no STag of a forgotten call is alive
	reply      []byte
	bad        error // what is wrong with the reply, which ends the connection and the call
	placed     int   // bytes in the write chunk
	wrs        [4]transport.WR
	spans      [4]mem.Span
	h          rpcrdma.Header
}

// exposed is memory that the server may reach during one call.
type exposed struct {
	win   transport.Window
	buf   *mem.Buf
	bound bool
	local [1]mem.Span
}

const (
	kindRecv = uint64(iota+1) << 32
	kindSend
	kindInvalidate
	kindBind
	kindMask = uint64(0xff) << 32
)

func (t *rdma) connect(ctx context.Context, addr string) (err error) {
	if t.slab, err = t.r.dev.Caps().Memory.NewSlab(2 * (credits + 1) * inline); err != nil {
		return err
	}
	if err := t.r.dev.Register(t.slab); err != nil {
		return errors.Join(err, t.slab.Close())
	}
	fail := func(err error) error {
		if t.qp != nil {
			t.drain()
		}
		return errors.Join(err, t.unmap())
	}
	t.qp, err = t.r.dev.NewQP(transport.QPOptions{Sends: 8 * credits, Recvs: credits + 1})
	if err != nil {
		return fail(err)
	}
	t.poll.QP = t.qp
	for i := range credits + 1 {
		t.recvs = append(t.recvs, transport.Recv{Token: kindRecv | uint64(i), Buf: mem.Span{Slab: t.slab, Off: i * inline, Len: inline}})
	}
	t.byXID = make(map[uint32]*slot)
	for i := range t.slots {
		s := &t.slots[i]
		s.idx = i
		s.send = mem.Span{Slab: t.slab, Off: (credits + 1 + i) * inline, Len: inline}
		for _, e := range [...]*exposed{&s.data, &s.list} {
			if e.win, err = t.qp.NewWindow(); err != nil {
				return fail(err)
			}
		}
		s.next, t.idle = t.idle, s
	}
	if _, err := t.qp.PostRecv(t.recvs); err != nil {
		return fail(err)
	}
	// A reply that ended an STag which stands for a whole slab would end all that is under way.
	caps := t.r.dev.Caps()
	priv := rpcrdma.Private{RemoteInv: caps.RemoteInv && caps.PerIOWindows, SendSize: inline, RecvSize: inline}
	peer, err := t.r.dev.Dial(ctx, addr, t.qp, transport.ConnParams{Private: priv.Append(nil), ReadsIn: credits, ReadsOut: 0})
	if err != nil {
		return fail(fmt.Errorf("rpc: RDMA connection to %s: %w", addr, err))
	}
	p, _ := rpcrdma.ParsePrivate(peer.Private)
	t.maxSend, t.maxRecv = min(inline, p.RecvSize), min(inline, p.SendSize)
	return nil
}

// drain closes the queue pair and waits until nothing of it can touch memory.
func (t *rdma) drain() {
	_ = t.qp.Close(transport.Reason{}) // whatever it says, Poll tells the end
	_ = t.poll.Drain(nil)
}

// unmap gives back the memory of messages, of which no work names any.
func (t *rdma) unmap() error {
	if err := t.r.dev.Unregister(t.slab); err != nil {
		return fmt.Errorf("rpc: the memory of a connection stays mapped: %w", err)
	}
	return t.slab.Close()
}

func (t *rdma) start(p *pending) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || p.forgot {
		return
	}
	t.stageLocked(p)
	if t.closed || p.forgot {
		p.unstage()
		return
	}
	t.queue = append(t.queue, p)
	if !t.held {
		t.fillLocked()
	}
}

// fillLocked sends calls while there are credits (RFC 8166 section 3.3.1), with one Post.
func (t *rdma) fillLocked() {
	t.gatherLocked()
	if len(t.sends) == 0 {
		return
	}
	_, err := t.qp.Post(t.sends)
	clear(t.sends)
	t.sends = t.sends[:0]
	if err != nil && !t.closed {
		t.closeLocked(fmt.Errorf("rpc: send: %w", err))
	}
}

// gatherLocked lists the Sends of calls that there are credits and memory for.
func (t *rdma) gatherLocked() {
	for len(t.queue) > 0 && t.idle != nil && t.used < t.granted && !t.closed {
		p := t.queue[0]
		s := t.idle
		t.idle, s.next = s.next, nil
		t.queue = t.queue[1:]
		s.p, s.xid = p, p.xid
		p.slot = s
		t.used++
		err := t.sendLocked(s)
		if errors.Is(err, mem.ErrNoMemory) {
			// Nothing was posted: the call waits for memory, before all others.
			s.release()
			s.p, p.slot = nil, nil
			s.next, t.idle = t.idle, s
			t.used--
			// One that has its memory already goes first: those behind this one may hold what it waits for.
			if i := slices.IndexFunc(t.queue, func(x *pending) bool { return x.staged != nil }); i >= 0 {
				t.queue[0], t.queue[i] = t.queue[i], t.queue[0]
				t.queue = slices.Insert(t.queue, 1, p)
				continue
			}
			t.queue = slices.Insert(t.queue, 0, p)
			t.quota.Wait(t.refillSoon)
			return
		}
		if err != nil {
			t.closeLocked(err)
		}
	}
}

// stageLocked copies bulk data that is not registered to memory that is, before the call has a slot and without the lock, which is held
// on entry and return. Without memory the call waits for it in the queue. The data is the caller's, who may give up meanwhile: forget waits.
func (t *rdma) stageLocked(p *pending) {
	data := p.call.Data
	if len(data) == 0 || p.call.DataSpan.Slab != nil || t.fitsInline(p, len(data)) {
		return
	}
	p.copying = true
	t.mu.Unlock()
	b, err := t.quota.Get(len(data))
	if err == nil {
		copy(b.Bytes(), data)
	}
	t.mu.Lock()
	if p.copying = false; err == nil {
		p.staged = b
	}
	t.copied.Broadcast()
}

// fitsInline reports data that goes inline: for small data a copy is cheaper than a window, and the server need not
// Read it.
func (t *rdma) fitsInline(p *pending, n int) bool {
	return n > 0 && rpcrdma.MinHeader+48+len(p.msg)+n+xdr.Pad(n) <= t.maxSend
}

// refillSoon is told that there is memory again. The goroutine that released some may hold the lock.
func (t *rdma) refillSoon() { go t.refill() }

func (t *rdma) refill() {
	t.mu.Lock()
	t.fillLocked()
	t.mu.Unlock()
}

// forget lets a call's slot go on without the caller. Where the server was shown the caller's own memory, it returns
// when that is out of reach; a server that still uses it then breaks the connection, and calls are sent again over the
// next.
func (t *rdma) forget(p *pending) {
	t.mu.Lock()
	p.forgot = true
	for p.copying {
		t.copied.Wait()
	}
	for i, x := range t.queue {
		if x == p {
			t.queue = append(t.queue[:i], t.queue[i+1:]...)
			p.unstage()
			t.mu.Unlock()
			return
		}
	}
	s := p.slot
	if s == nil || s.p != p {
		t.mu.Unlock()
		return
	}
	s.p, p.slot = nil, nil
	if s.data.bound && s.data.buf == nil && !s.replied {
		if t.r.dev.Caps().PerIOWindows {
			s.data.bound = false
			if err := t.invalidateLocked(s, &s.data); err != nil {
				t.closeLocked(err)
			}
		} else {
			// An STag of a whole slab lives on: only the connection's end puts the memory out of reach. No Invalidate will complete.
			s.invalid++
			t.closeLocked(nil)
		}
		s.gone = make(chan struct{})
	} else if s.invalid > 0 {
		s.gone = make(chan struct{})
	}
	gone := s.gone
	t.mu.Unlock()
	if gone != nil {
		<-gone
	}
}

func (t *rdma) invalidateLocked(s *slot, e *exposed) error {
	wr := [1]transport.WR{{Op: transport.OpInvalidate, Flags: transport.Signaled, Token: kindInvalidate | uint64(s.idx), Window: e.win}}
	s.invalid++ // also when it cannot be posted: then the connection's end counts
	_, err := t.qp.Post(wr[:])
	return err
}

func (p *pending) unstage() {
	if p.staged != nil {
		p.staged.Release()
		p.staged = nil
	}
}

func (t *rdma) close() {
	t.mu.Lock()
	t.closeLocked(nil)
	t.mu.Unlock()
}

func (t *rdma) closeLocked(err error) {
	t.closed = true
	_ = t.qp.Close(transport.Reason{Err: err})
}

// expose gets memory of n bytes, unless e has it or own is it, and lists its Bind.
func (t *rdma) expose(s *slot, e *exposed, n int, own mem.Span, a transport.Access, wrs []transport.WR) ([]transport.WR, error) {
	if own.Slab == nil && e.buf == nil {
		b, err := t.quota.Get(n)
		if err != nil {
			return wrs, err
		}
		e.buf = b
	}
	if own.Slab == nil {
		own = e.buf.Span()
	}
	e.bound, e.local[0] = true, own
	return append(wrs, transport.WR{Op: transport.OpBind, Token: kindBind | uint64(s.idx), Local: e.local[:], Window: e.win, Access: a}), nil
}

// sendLocked binds what the call exposes and lists its Send.
func (t *rdma) sendLocked(s *slot) error {
	call := s.p.call
	msg := s.p.msg
	wrs := s.wrs[:0]
	h := &s.h
	h.Reset()
	h.XID, h.Credits, h.Proc = s.xid, credits, rpcrdma.Msg
	var err error
	data, sink := call.data(), call.sink()
	n := len(data)
	inlineData := t.fitsInline(s.p, n)
	long := false
	switch {
	case rpcrdma.MinHeader+80+len(msg) > t.maxSend:
		long = true // position-zero chunk; bulk data of its own position may come with it
		if wrs, err = t.expose(s, &s.list, len(msg), mem.Span{}, transport.RemoteRead, wrs); err != nil {
			return err
		}
		copy(s.list.buf.Bytes(), msg)
		h.Proc = rpcrdma.Nomsg
	}
	if n > 0 && !inlineData {
		s.data.buf, s.p.staged = s.p.staged, nil
		staged := s.data.buf != nil
		if wrs, err = t.expose(s, &s.data, n, call.DataSpan, transport.RemoteRead, wrs); err != nil {
			return err
		}
		if s.data.buf != nil && !staged {
			copy(s.data.buf.Bytes(), data)
		}
	}
	if len(sink) > 0 && 28+200+len(sink) > t.maxRecv && n == 0 {
		if wrs, err = t.expose(s, &s.data, len(sink), call.SinkSpan, transport.RemoteWrite, wrs); err != nil {
			return err
		}
	}
	if call.MaxReply+rpcrdma.MinHeader+24 > t.maxRecv && !long && !s.data.bound {
		if wrs, err = t.expose(s, &s.list, min(call.MaxReply+24, maxReplyChunk), mem.Span{}, transport.RemoteWrite, wrs); err != nil {
			return err
		}
	}
	// STags are the provider's and known once the Binds are taken.
	if len(wrs) > 0 {
		if k, err := t.qp.Post(wrs); k < len(wrs) {
			return fmt.Errorf("rpc: bind: %w", err)
		}
	}
	t.chunks(s, long, n > 0)
	b := h.Append(s.send.Bytes()[:0])
	if !long {
		b = append(b, msg...)
	}
	if inlineData {
		b = xdr.AppendPad(append(b, data...), n)
	}
	s.spans[0] = s.send.Cut(0, len(b))
	s.wrs[0] = transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: kindSend | uint64(s.idx), Local: s.spans[:1]}
	t.byXID[s.xid] = s
	t.sends = append(t.sends, s.wrs[0])
	return nil
}

// chunks names the exposed memory in the header (RFC 8166 section 4.3).
func (t *rdma) chunks(s *slot, long, data bool) {
	seg := func(e *exposed) rpcrdma.Segment {
		r := e.win.Remote()
		return rpcrdma.Segment{Handle: r.STag, Len: uint32(e.local[0].Len), Off: r.Off}
	}
	h := &s.h
	if long && s.list.bound {
		h.Reads = append(h.Reads, rpcrdma.ReadSegment{Position: 0, Segment: seg(&s.list)})
	}
	switch {
	case s.data.bound && data:
		h.Reads = append(h.Reads, rpcrdma.ReadSegment{Position: uint32(len(s.p.msg)), Segment: seg(&s.data)})
	case s.data.bound:
		h.AddWrite(seg(&s.data))
	}
	if !long && s.list.bound {
		h.SetReply([]rpcrdma.Segment{seg(&s.list)})
	}
}
