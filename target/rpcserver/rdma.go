package rpcserver

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/rpcrdma"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// RDMAOptions size RPC-over-RDMA connections. The zero value takes defaults.
type RDMAOptions struct {
	Credits int   // calls in flight granted to a connection
	Inline  int   // bytes of an inline message, both ways
	Memory  int64 // bytes of registered memory for bulk data, over all connections; those of one host have half
	// NoInvalidate keeps replies from invalidating the client's memory.
	NoInvalidate bool
}

func (o RDMAOptions) withDefaults() RDMAOptions {
	if o.Credits <= 0 {
		o.Credits = defaultCredits
	}
	o.Credits = min(o.Credits, maxCredits)
	if o.Inline <= 0 {
		o.Inline = defaultInline
	}
	o.Inline = min(max(o.Inline&^1023, 1024), rpcrdma.MaxInline)
	if o.Memory <= 0 {
		o.Memory = defaultMemory
	}
	return o
}

// ServeRDMA takes RPC-over-RDMA connections from l until Close. It closes l; the device stays open.
func (s *Server) ServeRDMA(dev transport.Device, l transport.Listener) error {
	if !s.track(l) {
		_ = l.Close()
		return ErrServerClosed
	}
	defer s.untrack(l)
	defer func() { _ = l.Close() }()
	opt := s.opt.RDMA.withDefaults()
	pool, err := s.bulk.use(dev, opt.Memory)
	if err != nil {
		return err
	}
	d := &rdmaListener{s: s, dev: dev, opt: opt, pool: pool}
	err = d.loop(l)
	d.conns.Wait()
	return errors.Join(err, s.bulk.leave(dev))
}

// bulk is the registered memory of all fabrics' connections. It is there while one is served.
type bulk struct {
	mu   sync.Mutex
	pool *mem.Pool
	uses map[transport.Device]int
}

// use returns the pool, with the device told of it.
func (b *bulk) use(dev transport.Device, size int64) (*mem.Pool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pool == nil {
		b.pool, b.uses = mem.NewPool(size), make(map[transport.Device]int)
	}
	if b.uses[dev] == 0 && dev.Caps().Memory == mem.Private {
		if err := b.pool.OnSlab(dev); err != nil {
			return nil, fmt.Errorf("rpc: register memory with %s: %w", dev.Name(), err)
		}
	}
	b.uses[dev]++
	return b.pool, nil
}

// leave is called when nothing of the device's names a buffer any more.
func (b *bulk) leave(dev transport.Device) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.uses[dev]--; b.uses[dev] > 0 {
		return nil
	}
	delete(b.uses, dev)
	if len(b.uses) > 0 {
		return b.pool.Forget(dev)
	}
	p := b.pool
	b.pool = nil
	return p.Close()
}

type rdmaListener struct {
	s     *Server
	dev   transport.Device
	opt   RDMAOptions
	pool  *mem.Pool
	conns sync.WaitGroup
	crowd crowd
}

func (d *rdmaListener) loop(l transport.Listener) error {
	ctx := context.Background()
	for {
		req, err := l.Accept(ctx)
		if err != nil {
			if d.s.isClosed() || errors.Is(err, transport.ErrClosed) {
				return ErrServerClosed
			}
			return err
		}
		d.conns.Add(1)
		go func() {
			defer d.conns.Done()
			if err := d.serve(req); err != nil {
				d.s.log.Info("an RPC-over-RDMA connection ended", zap.Stringer("peer", req.Peer().Remote), zap.Error(err))
			}
		}()
	}
}

// serve answers a connection request and owns the connection to its end.
func (d *rdmaListener) serve(req transport.Request) error {
	p := req.Peer()
	// What WRITE brings is fetched by RDMA Read; a peer that serves none could not write.
	if p.Named && p.ReadsIn == 0 {
		d.s.refuse(refNoReads)
		return errors.Join(errors.New("rpc: the client offers no RDMA Read depth"), req.Reject(nil))
	}
	if from, _ := peerAddrs(&p); d.crowd.has(from.Addr()) {
		return errors.Join(errNoRoom, req.Reject(nil))
	}
	c, err := d.newConn(p)
	if err != nil {
		return errors.Join(err, req.Reject(nil))
	}
	defer c.free()
	if !d.s.admit(c, c.peer.Addr.Addr(), &c.connState) {
		return errors.Join(ErrServerClosed, c.qp.Close(transport.Reason{}), req.Reject(nil))
	}
	defer d.s.leave(c, &c.connState)
	first, err := c.firstStep()
	if err == nil {
		_, err = c.qp.PostRecv(first)
	}
	if err != nil {
		return errors.Join(err, c.qp.Close(transport.Reason{}), req.Reject(nil))
	}
	private := rpcrdma.Private{RemoteInv: false, SendSize: d.opt.Inline, RecvSize: d.opt.Inline}
	if err := req.Accept(c.setUp, c.qp, transport.ConnParams{Private: private.Append(nil), ReadsIn: 1, ReadsOut: readDepth}); err != nil {
		return err
	}
	d.s.stats.rdmaConnections.Add(1)
	d.s.settle(c, &c.connState)
	return c.run()
}

// newConn makes a connection that has no memory yet.
func (d *rdmaListener) newConn(p transport.Peer) (*rdmaConn, error) {
	c := &rdmaConn{s: d.s, crowd: &d.crowd, opt: d.opt, caps: d.dev.Caps(), pool: d.pool, wanted: 1}
	most := int64(d.opt.Credits) * (MaxPayload + mem.PageSize)
	if c.caps.Memory == mem.Shared {
		if err := c.ownMemory(d, most); err != nil {
			return nil, err
		}
	}
	c.quota = c.pool.Quota(most)
	priv, _ := rpcrdma.ParsePrivate(p.Private)
	// RFC 8797 section 4.1: each direction uses the smaller of what one side sends and the other takes.
	c.maxSend = min(d.opt.Inline, priv.RecvSize)
	c.invalidate = priv.RemoteInv && c.caps.RemoteInv && !d.opt.NoInvalidate
	remote, local := peerAddrs(&p)
	c.peer = Peer{RDMA: true, Addr: rdmaAddr(remote), Local: local, process: transport.ProcessOf(p.Remote)}
	c.peer.state, c.who = &c.connState, &c.peer
	c.setUp, c.giveUp = context.WithTimeout(context.Background(), acceptTime)
	c.initCredits()
	var err error
	c.qp, err = d.dev.NewQP(transport.QPOptions{Sends: maxSends, Recvs: len(c.recvs), Slim: true})
	if err != nil {
		c.free()
		return nil, err
	}
	c.owner.Init(c, &c.mu, c.qp)
	if w, ok := c.qp.(transport.Widener); ok {
		c.proved = func() {
			c.widen(w)
		}
	}
	return c, nil
}

// ownMemory gives a connection a pool of its own, of the listener's bound: its peer can read all that the pool's slabs hold, and may go
// on to when the connection has ended (transport.Caps.Memory).
func (c *rdmaConn) ownMemory(d *rdmaListener, most int64) error {
	p, err := d.pool.Apart(most, c.caps.Memory)
	if err != nil {
		return fmt.Errorf("rpc: there is no room for a connection's own memory: %w", err)
	}
	if err := p.OnSlab(d.dev); err != nil {
		return errors.Join(fmt.Errorf("rpc: register memory with %s: %w", d.dev.Name(), err), p.Close())
	}
	c.pool, c.own = p, true
	return nil
}

// peerAddrs are the addresses that rules are about. A process of this host has none of IP, and counts as one that came by loopback.
func peerAddrs(p *transport.Peer) (remote, local netip.AddrPort) {
	if transport.ProcessOf(p.Remote) != nil {
		loopback := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)
		return loopback, loopback
	}
	return addrPort(p.Remote), addrPort(p.Local)
}

// rdmaAddr hides the port: on a fabric it means nothing, and every reconnection has another.
func rdmaAddr(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr(), 0) }

// Close ends the connection, for Server.Close.
func (c *rdmaConn) Close() error {
	c.giveUp()
	return c.qp.Close(transport.Reason{})
}

func (c *rdmaConn) gone() bool { return c.lost.Load() }

// peerGone reports only what the owner has seen: a fabric tells of a connection's end at once.
func (c *rdmaConn) peerGone() bool { return false }

// errOverdue is why the watch ended a connection.
var errOverdue = errors.New("rpc: the client lets the memory of its connection lie, or has not called for long")

// look closes a connection that is idle, or whose peer answers no Read and takes no reply while their memory is held.
func (c *rdmaConn) look(now time.Time) {
	c.mu.Lock()
	calls, sending, closed := c.calls, c.sending, c.closed
	inReads, begun := c.owner.ReadsLocked()
	oldest := c.oldestLocked(now)
	c.mu.Unlock()
	// Each kind by itself: a client's calls say nothing of the Reads that it lets lie.
	idle := c.quiet.forTime(c.moved.Load(), now)
	reads, sends := c.quietReads.forTime(c.movedReads.Load()+begun, now), c.quietSends.forTime(c.movedSends.Load(), now)
	switch {
	case closed:
		return
	case inReads+sending+calls == 0 && c.own && idle >= shrinkTime && idle < idleTime:
		c.pool.Shrink()
		return
	case inReads > 0 && reads >= fabricTime, sending > 0 && sends >= fabricTime:
	case oldest >= moveTime: // one that moves a little, again and again, would hold the memory of all for as long
	case inReads+sending+calls == 0 && idle >= idleTime:
	default:
		return
	}
	c.s.refuse(refOverdue)
	c.fail(errOverdue)
}

func (c *rdmaConn) free() {
	c.giveUp()
	c.quota.Close()
	// One that was told of memory just before may still come to look.
	c.mu.Lock()
	c.s.stats.credits.Add(-int64(c.open * c.step))
	c.open = 0
	for i := range c.steps { // the queue pair has given back every buffer
		if s := &c.steps[i]; s.buf != nil {
			c.freed = append(c.freed, s.buf)
			c.host.fabric.give(s.room)
			*s = creditStep{}
		}
	}
	c.unlockAndFree()
	if c.own {
		c.pool.Retire()
	}
}
