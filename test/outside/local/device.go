// Package local is a provider of package transport whose fabric is this process: what a program that brings an RNIC of its own has to
// write. It is plain rather than fast. One lock guards everything, and a message is copied when it is posted.
package local

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"syscall"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

const (
	queueDepth = 128 // of a queue pair that asks for none
	backlog    = 128 // connection requests that a listener keeps
	maxSGE     = 16
	maxMessage = 16 << 20
	maxReads   = 64
	maxPrivate = 256
)

// Fabric joins the devices made from it.
type Fabric struct {
	mu        sync.Mutex
	listeners map[string]*listener
	port      int
}

// New returns a fabric without devices.
func New() *Fabric { return &Fabric{listeners: map[string]*listener{}, port: 20000} }

// Device returns a new device on the fabric.
func (f *Fabric) Device() transport.Device {
	return &device{Fabric: f, slabs: map[uint32]*mem.Slab{}, qps: map[*qp]bool{}}
}

func (f *Fabric) nextPort() string {
	f.port++
	return strconv.Itoa(f.port)
}

type device struct {
	*Fabric
	slabs  map[uint32]*mem.Slab
	qps    map[*qp]bool
	closed bool
}

var _ transport.Device = (*device)(nil)

func (d *device) Name() string { return "local" }

// Caps has no Terminates: both sides of a connection that ends see transport.ErrClosed and no more.
func (d *device) Caps() transport.Caps {
	return transport.Caps{PerIOWindows: true, ExactWindows: true, RandomSTags: true, RemoteInv: true,
		MaxSGE: maxSGE, MaxBindSGE: maxSGE, MaxMessage: maxMessage, MaxReads: maxReads, MaxPrivate: maxPrivate}
}

func (d *device) Register(s *mem.Slab) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return transport.ErrClosed
	}
	d.slabs[s.ID()] = s
	return nil
}

// Unregister refuses while work names the slab (rule 8).
func (d *device) Unregister(s *mem.Slab) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for q := range d.qps {
		if q.names(s) {
			return errors.New("local: the memory is named by work that is outstanding")
		}
	}
	delete(d.slabs, s.ID())
	return nil
}

func (d *device) Gauges() (g transport.Gauges) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for q := range d.qps {
		if q.peer != nil {
			g.Connections++
		}
		g.Windows += len(q.bound)
		g.ReadSinks += len(q.reads)
		g.Sends += q.sends
		g.Receives += q.receives
	}
	return g
}

func (d *device) NewQP(o transport.QPOptions) (transport.QP, error) {
	if o.Sends == 0 {
		o.Sends = queueDepth
	}
	if o.Recvs == 0 {
		o.Recvs = queueDepth
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, transport.ErrClosed
	}
	q := &qp{d: d, o: o, bell: make(chan struct{}, 1), bound: map[uint32]*life{}}
	d.qps[q] = true
	return q, nil
}

func (d *device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for _, l := range d.listeners {
		if l.d == d {
			l.shutLocked()
		}
	}
	for q := range d.qps {
		q.end()
	}
	clear(d.slabs)
	return nil
}

// takeLocked claims a queue pair for one connection. The lock is held.
func (d *device) takeLocked(tq transport.QP, p transport.ConnParams) (*qp, error) {
	q, ok := tq.(*qp)
	switch {
	case !ok || q.d != d:
		return nil, errors.New("local: the queue pair belongs to another device")
	case q.err != nil:
		return q, q.err
	case q.taken:
		return q, errors.New("local: the queue pair has been connected before")
	case len(p.Private) > maxPrivate || p.ReadsIn > maxReads || p.ReadsOut > maxReads:
		return q, fmt.Errorf("local: %d bytes of private data and read depths of %d and %d; %d and %d are the most", len(p.Private), p.ReadsIn, p.ReadsOut, maxPrivate, maxReads)
	}
	q.taken = true
	return q, nil
}

func (d *device) Dial(ctx context.Context, addr string, tq transport.QP, p transport.ConnParams) (transport.Peer, error) {
	r, err := d.ask(ctx, addr, tq, p)
	if err != nil {
		return transport.Peer{}, err
	}
	select {
	case <-r.answered:
	case <-ctx.Done():
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	r.answerLocked(ctx.Err()) // does nothing where an answer is there
	if r.err != nil {
		r.from.end()
	}
	return r.said, r.err
}

// ask puts a request before the listener. On an error the queue pair is closed.
func (d *device) ask(ctx context.Context, addr string, tq transport.QP, p transport.ConnParams) (*request, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	q, err := d.takeLocked(tq, p)
	l := d.listeners[addr]
	switch {
	case err != nil:
	case ctx.Err() != nil:
		err = ctx.Err()
	case l == nil || len(l.queue) == backlog:
		err = fmt.Errorf("local: dial %s: %w", addr, syscall.ECONNREFUSED)
	}
	if err != nil {
		if q != nil {
			q.end()
		}
		return nil, err
	}
	host, _, _ := net.SplitHostPort(addr)
	r := &request{d: l.d, from: q, params: p, answered: make(chan struct{})}
	r.peer = transport.Peer{Private: append([]byte(nil), p.Private...), ReadsIn: p.ReadsIn, ReadsOut: p.ReadsOut, Named: true,
		Local: l.addr, Remote: address(net.JoinHostPort(host, d.nextPort()))}
	l.queue = append(l.queue, r)
	ring(l.bell)
	return r, nil
}

func (d *device) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("local: listen: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if port == "0" {
		port = d.nextPort()
	}
	addr = net.JoinHostPort(host, port)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case d.closed:
		return nil, transport.ErrClosed
	case d.listeners[addr] != nil:
		return nil, fmt.Errorf("local: listen on %s: %w", addr, syscall.EADDRINUSE)
	}
	l := &listener{d: d, addr: address(addr), bell: make(chan struct{}, 1)}
	d.listeners[addr] = l
	return l, nil
}

type address string

func (a address) Network() string { return "local" }
func (a address) String() string  { return string(a) }

type listener struct {
	d      *device
	addr   address
	bell   chan struct{}
	queue  []*request
	closed bool
}

func (l *listener) Addr() net.Addr { return l.addr }

func (l *listener) Accept(ctx context.Context) (transport.Request, error) {
	for {
		l.d.mu.Lock()
		for len(l.queue) > 0 {
			r := l.queue[0]
			l.queue = l.queue[1:]
			if !r.done {
				l.d.mu.Unlock()
				return r, nil
			}
		}
		closed := l.closed
		l.d.mu.Unlock()
		if closed {
			return nil, transport.ErrClosed
		}
		select {
		case <-l.bell:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (l *listener) Close() error {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	l.shutLocked()
	return nil
}

// shutLocked ends a listener. The lock is held.
func (l *listener) shutLocked() {
	if l.closed {
		return
	}
	l.closed = true
	delete(l.d.listeners, string(l.addr))
	for _, r := range l.queue {
		r.answerLocked(fmt.Errorf("local: dial %s: %w", l.addr, syscall.ECONNRESET))
	}
	l.queue = nil
	ring(l.bell)
}

type request struct {
	d        *device // the listener's
	from     *qp
	params   transport.ConnParams
	peer     transport.Peer
	answered chan struct{}

	done bool
	said transport.Peer
	err  error
}

func (r *request) Peer() transport.Peer { return r.peer }

// answerLocked ends the dialler's waiting, once. The lock is held.
func (r *request) answerLocked(err error) {
	if !r.done {
		r.done, r.err = true, err
		close(r.answered)
	}
}

func (r *request) Accept(ctx context.Context, tq transport.QP, p transport.ConnParams) error {
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	q, err := r.d.takeLocked(tq, p)
	if err == nil && (r.done || r.from.err != nil) {
		err = fmt.Errorf("local: accept: the dialler is gone or was answered: %w", transport.ErrClosed)
	}
	if err = errors.Join(err, ctx.Err()); err != nil {
		if q != nil {
			q.end()
		}
		r.answerLocked(fmt.Errorf("local: the listener gave up: %w", syscall.ECONNRESET))
		return err
	}
	q.peer, r.from.peer = r.from, q
	q.depth = transport.Depth{In: min(p.ReadsIn, r.params.ReadsOut), Out: min(p.ReadsOut, r.params.ReadsIn)}
	r.from.depth = transport.Depth{In: q.depth.Out, Out: q.depth.In}
	r.said = transport.Peer{Private: append([]byte(nil), p.Private...), ReadsIn: p.ReadsIn, ReadsOut: p.ReadsOut, Named: true,
		Local: r.peer.Remote, Remote: r.peer.Local}
	r.answerLocked(nil)
	return nil
}

func (r *request) Reject(private []byte) error {
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	switch {
	case len(private) > maxPrivate:
		return fmt.Errorf("local: %d bytes of private data, %d are the most", len(private), maxPrivate)
	case r.done:
		return fmt.Errorf("local: reject: the dialler is gone or was answered: %w", transport.ErrClosed)
	}
	r.answerLocked(&transport.RejectedError{Private: append([]byte(nil), private...)})
	return nil
}

// ring rings a bell that holds one ring.
func ring(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}
