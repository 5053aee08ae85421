package transporttest

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

// Network is a fabric of twins: devices made from it reach one another by address and nothing else does. It is memory
// and channels only, so that everything above it can run in a testing/synctest bubble; make it inside the bubble.
type Network struct {
	// mu guards all that belongs to the network. One lock for everything keeps the model plain: what a twin does
	// is the meaning of the contract, not a way to be fast.
	mu        sync.Mutex
	listeners map[string]*listener
	nextPort  int
}

// NewNetwork returns an empty fabric.
func NewNetwork() *Network {
	return &Network{listeners: make(map[string]*listener), nextPort: 49152}
}

// Twin returns two devices on a fabric of their own.
func Twin() (a, b transport.Device) {
	n := NewNetwork()
	return n.Device(), n.Device()
}

// Device returns a new device on the network.
func (n *Network) Device() transport.Device { return n.device(likeEnv()) }

func (n *Network) device(like *Adapter) *twin {
	return &twin{net: n, like: like, slabs: make(map[uint32]*mem.Slab), qps: make(map[*qp]struct{}), mine: make(map[*listener]struct{})}
}

// twin is one device.
type twin struct {
	net  *Network
	like *Adapter // nil: keeps every rule and has every power

	// Guarded by net.mu.
	slabs  map[uint32]*mem.Slab
	qps    map[*qp]struct{}
	mine   map[*listener]struct{}
	closed bool

	windows uint32 // made so far, where STags count
	polled  uint64 // completions so far
}

var _ transport.Device = (*twin)(nil)

func (d *twin) Name() string {
	if d.like != nil && d.like.Provider != "" {
		return d.like.Provider
	}
	return "twin"
}

func (d *twin) Caps() transport.Caps {
	if d.like != nil {
		return d.like.caps()
	}
	return transport.Caps{PerIOWindows: true, ExactWindows: true, RandomSTags: true, RemoteInv: true, Terminates: true,
		MaxSGE: twinMaxSGE, MaxBindSGE: twinMaxSGE, MaxMessage: twinMaxMessage, MaxReads: twinMaxReads, MaxPrivate: twinMaxPrivate}
}

func (d *twin) Register(s *mem.Slab) error {
	d.net.mu.Lock()
	defer d.net.mu.Unlock()
	if d.closed {
		return transport.ErrClosed
	}
	d.slabs[s.ID()] = s
	return nil
}

// Unregister refuses while anything still names the slab: an adapter would write to memory that is another's by then.
func (d *twin) Unregister(s *mem.Slab) error {
	d.net.mu.Lock()
	defer d.net.mu.Unlock()
	if d.closed {
		return nil
	}
	if d.slabs[s.ID()] != s {
		return errors.New("twin: the memory is not registered with this device")
	}
	for q := range d.qps {
		if q.namesLocked(s) {
			return errors.New("twin: the memory is named by work that is outstanding")
		}
	}
	delete(d.slabs, s.ID())
	return nil
}

func (d *twin) Gauges() (g transport.Gauges) {
	d.net.mu.Lock()
	defer d.net.mu.Unlock()
	for q := range d.qps {
		if q.peer != nil {
			g.Connections++
		}
		g.Windows += len(q.bound)
		g.ReadSinks += len(q.reads)
		g.Sends += q.nsend
		g.Receives += q.nrecv
	}
	return g
}

func (d *twin) NewQP(o transport.QPOptions) (transport.QP, error) {
	if o.Sends < 0 || o.Recvs < 0 {
		return nil, fmt.Errorf("twin: queue pair of %d sends and %d receives asked for", o.Sends, o.Recvs)
	}
	if o.Sends == 0 {
		o.Sends = twinSends
	}
	if o.Recvs == 0 {
		o.Recvs = twinRecvs
	}
	d.net.mu.Lock()
	defer d.net.mu.Unlock()
	if d.closed {
		return nil, transport.ErrClosed
	}
	q := &qp{dev: d, opts: o, wake: make(chan struct{}, 1), bound: make(map[uint32]*binding)}
	d.qps[q] = struct{}{}
	return q, nil
}

func (d *twin) Close() error {
	d.net.mu.Lock()
	defer d.net.mu.Unlock()
	d.closed = true
	for l := range d.mine {
		l.closeLocked()
	}
	for q := range d.qps {
		q.closeLocked(transport.Reason{})
	}
	clear(d.slabs)
	return nil
}

func (d *twin) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("twin: listen: %w", err)
	}
	d.net.mu.Lock()
	defer d.net.mu.Unlock()
	if d.closed {
		return nil, transport.ErrClosed
	}
	if port == "0" {
		port = d.net.portLocked()
	}
	addr = net.JoinHostPort(host, port)
	if d.net.listeners[addr] != nil {
		return nil, fmt.Errorf("twin: listen on %s: %w", addr, syscall.EADDRINUSE)
	}
	l := &listener{dev: d, addr: twinAddr(addr), wake: make(chan struct{}, 1), done: make(chan struct{})}
	d.net.listeners[addr] = l
	d.mine[l] = struct{}{}
	return l, nil
}

func (n *Network) portLocked() string {
	n.nextPort++
	return strconv.Itoa(n.nextPort)
}

func (d *twin) Dial(ctx context.Context, addr string, tq transport.QP, p transport.ConnParams) (transport.Peer, error) {
	q, err := d.take(tq, p)
	if err != nil {
		return transport.Peer{}, err
	}
	r, err := d.request(ctx, addr, q, p)
	if err != nil {
		return transport.Peer{}, errors.Join(err, q.Close(transport.Reason{Err: err}))
	}
	select {
	case <-r.answered:
	case <-ctx.Done():
		d.net.mu.Lock()
		if r.state == reqOpen {
			r.state, r.err = reqGone, ctx.Err()
			close(r.answered)
		}
		d.net.mu.Unlock()
	}
	d.net.mu.Lock()
	defer d.net.mu.Unlock()
	if r.state == reqAccepted {
		return r.answer, nil
	}
	q.closeLocked(transport.Reason{Err: r.err})
	return transport.Peer{}, r.err
}

// take claims a queue pair for one connection.
func (d *twin) take(tq transport.QP, p transport.ConnParams) (*qp, error) {
	q, ok := tq.(*qp)
	if !ok || q.dev != d {
		return nil, errors.New("twin: the queue pair belongs to another device")
	}
	err := func() error {
		if most := d.Caps().MaxPrivate; len(p.Private) > most {
			return fmt.Errorf("twin: %d bytes of private data, %d are the most", len(p.Private), most)
		}
		if p.ReadsIn < 0 || p.ReadsIn > twinMaxReads || p.ReadsOut < 0 || p.ReadsOut > twinMaxReads {
			return fmt.Errorf("twin: read depths %d in and %d out, %d is the most", p.ReadsIn, p.ReadsOut, twinMaxReads)
		}
		d.net.mu.Lock()
		defer d.net.mu.Unlock()
		if q.err != nil {
			return q.err
		}
		if q.taken {
			return errors.New("twin: the queue pair has been connected before")
		}
		q.taken = true
		return nil
	}()
	if err != nil {
		return nil, errors.Join(err, q.Close(transport.Reason{Err: err}))
	}
	return q, nil
}

func (d *twin) request(ctx context.Context, addr string, q *qp, p transport.ConnParams) (*request, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	d.net.mu.Lock()
	defer d.net.mu.Unlock()
	l := d.net.listeners[addr]
	if l == nil || len(l.queue) >= backlog {
		return nil, fmt.Errorf("twin: dial %s: %w", addr, syscall.ECONNREFUSED)
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("twin: dial: %w", err)
	}
	local := twinAddr(net.JoinHostPort(host, d.net.portLocked()))
	r := &request{from: q, params: p, answered: make(chan struct{}),
		peer: transport.Peer{Private: d.padded(p.Private, adapterRequest), ReadsIn: p.ReadsIn, ReadsOut: p.ReadsOut, Named: true,
			Local: l.addr, Remote: local}}
	l.queue = append(l.queue, r)
	wake(l.wake)
	return r, nil
}

// twinAddr is an address of the fabric, host:port.
type twinAddr string

func (a twinAddr) Network() string { return "twin" }
func (a twinAddr) String() string  { return string(a) }

// listener queues requests until Accept takes them.
type listener struct {
	dev  *twin
	addr twinAddr
	wake chan struct{}
	done chan struct{}

	// Guarded by net.mu.
	queue  []*request
	closed bool
}

func (l *listener) Addr() net.Addr { return l.addr }

func (l *listener) Accept(ctx context.Context) (transport.Request, error) {
	for {
		l.dev.net.mu.Lock()
		for len(l.queue) > 0 {
			r := l.queue[0]
			l.queue = l.queue[1:]
			if r.state == reqOpen {
				r.dev = l.dev
				l.dev.net.mu.Unlock()
				return r, nil
			}
		}
		closed := l.closed
		l.dev.net.mu.Unlock()
		if closed {
			return nil, transport.ErrClosed
		}
		select {
		case <-l.wake:
		case <-l.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (l *listener) Close() error {
	l.dev.net.mu.Lock()
	defer l.dev.net.mu.Unlock()
	l.closeLocked()
	return nil
}

func (l *listener) closeLocked() {
	if l.closed {
		return
	}
	l.closed = true
	close(l.done)
	delete(l.dev.net.listeners, string(l.addr))
	delete(l.dev.mine, l)
	for _, r := range l.queue {
		r.refuseLocked(fmt.Errorf("twin: dial %s: %w", l.addr, syscall.ECONNRESET))
	}
	l.queue = nil
}

const (
	reqOpen = iota
	reqAccepted
	reqGone // refused, or the dialler gave up
)

// request is a connection request.
type request struct {
	dev    *twin // the listener's
	from   *qp
	params transport.ConnParams
	peer   transport.Peer

	// Guarded by net.mu; read without it once answered is closed.
	state    int
	answer   transport.Peer
	err      error
	answered chan struct{}
}

func (r *request) Peer() transport.Peer { return r.peer }

func (r *request) Accept(ctx context.Context, tq transport.QP, p transport.ConnParams) error {
	q, err := r.dev.take(tq, p)
	r.dev.net.mu.Lock()
	defer r.dev.net.mu.Unlock()
	if err != nil {
		r.refuseLocked(fmt.Errorf("twin: the listener gave up: %w", syscall.ECONNRESET))
		return err
	}
	err = ctx.Err()
	if err == nil && (r.state != reqOpen || r.from.err != nil) {
		err = fmt.Errorf("twin: accept: the dialler is gone or was answered: %w", transport.ErrClosed)
	}
	if err != nil {
		q.closeLocked(transport.Reason{Err: err})
		r.refuseLocked(fmt.Errorf("twin: the listener gave up: %w", syscall.ECONNRESET))
		return err
	}
	f := r.from
	f.peer, q.peer = q, f
	f.depth = transport.Depth{In: min(r.params.ReadsIn, p.ReadsOut), Out: min(r.params.ReadsOut, p.ReadsIn)}
	q.depth = transport.Depth{In: f.depth.Out, Out: f.depth.In}
	r.state = reqAccepted
	r.answer = transport.Peer{Private: r.dev.padded(p.Private, adapterReply), ReadsIn: p.ReadsIn, ReadsOut: p.ReadsOut, Named: true,
		Local: r.peer.Remote, Remote: r.peer.Local}
	close(r.answered)
	return nil
}

func (r *request) Reject(private []byte) error {
	if most := r.dev.Caps().MaxPrivate; len(private) > most {
		return fmt.Errorf("twin: %d bytes of private data, %d are the most", len(private), most)
	}
	r.dev.net.mu.Lock()
	defer r.dev.net.mu.Unlock()
	if r.state != reqOpen {
		return fmt.Errorf("twin: reject: the dialler is gone or was answered: %w", transport.ErrClosed)
	}
	r.refuseLocked(&transport.RejectedError{Private: r.dev.padded(private, adapterReject)})
	return nil
}

func (r *request) refuseLocked(err error) {
	if r.state == reqOpen {
		r.state, r.err = reqGone, err
		close(r.answered)
	}
}

// wake rings a bell that holds one ring.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
