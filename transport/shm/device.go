package shm

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// Name is what logs and `--provider` call the device.
const Name = "shm"

// Options tune a device. The zero value is right for most.
type Options struct {
	// Spin is how long an owner looks for work before it parks; 0 takes the default, and negative is never. On one processor it never does.
	Spin time.Duration
	// Admit is asked of each dialler; an error refuses the connection, and the dialler is not told which. Nil admits all whom the rights of the
	// socket's file let connect.
	Admit func(*transport.Process) error
	// Socket is what listeners' sockets are like.
	Socket Socket
	// Directory has the sockets of addresses that are "host:port", as PORT.sock. By default a listener takes what the service manager gave
	// (RUNTIME_DIRECTORY), /run/sluice for root, or $XDG_RUNTIME_DIR/sluice, and a dialler looks in Directories.
	Directory string

	slots int   // of our rings, for tests
	maps  int64 // of peers' slabs, likewise
}

func (o Options) withDefaults() Options {
	if o.Spin == 0 {
		o.Spin = spinTime
	}
	if runtime.GOMAXPROCS(0) == 1 {
		o.Spin = -1
	}
	if o.slots == 0 {
		o.slots = ringSlots
	}
	if o.maps == 0 {
		o.maps = maxMappings
	}
	return o
}

// Device is one end of shared memory. All its methods may be called by any goroutine.
type Device struct {
	opt Options

	slabMu sync.RWMutex
	slabs  map[uint32]*mem.Slab

	mu     sync.Mutex
	closed bool
	qps    map[*QP]struct{}
	lns    map[*listener]struct{}
	past   Stats // of QPs that are gone
	wg     sync.WaitGroup
}

var (
	_ transport.Device = (*Device)(nil)
	_ transport.Sharer = (*Device)(nil)
)

// New makes a device.
func New(o Options) *Device {
	return &Device{opt: o.withDefaults(), slabs: map[uint32]*mem.Slab{}, qps: map[*QP]struct{}{}, lns: map[*listener]struct{}{}}
}

// Name is "shm".
func (d *Device) Name() string { return Name }

// Caps says what it can do.
func (d *Device) Caps() transport.Caps {
	return transport.Caps{
		PerIOWindows: true, ExactWindows: true, RandomSTags: true, RemoteInv: true, Terminates: true, Memory: mem.Shared,
		MaxSGE: maxSGE, MaxBindSGE: maxSGE, MaxMessage: maxMessage, MaxReads: maxReads, MaxPrivate: maxPrivate,
	}
}

// Register notes a slab, which must be one that can be shared. No peer is shown it before a request names it.
func (d *Device) Register(s *mem.Slab) error {
	switch {
	case s.Kind() != mem.Shared:
		return errors.New("shm: this memory cannot be shared: make the slab, or the pool, of the kind mem.Shared")
	case len(s.Bytes()) > maxSlab:
		return fmt.Errorf("shm: a slab of %d bytes, at most %d can be shared", len(s.Bytes()), maxSlab)
	}
	d.slabMu.Lock()
	defer d.slabMu.Unlock()
	d.slabs[s.ID()] = s
	return nil
}

// Unregister takes a slab back from all peers. It refuses while a request or a window names it.
func (d *Device) Unregister(s *mem.Slab) error {
	if d.isClosed() {
		return nil
	}
	d.slabMu.Lock()
	delete(d.slabs, s.ID()) // from here nothing shows it
	d.slabMu.Unlock()
	for _, q := range d.connections() {
		if !q.withdraw(s) {
			d.slabMu.Lock()
			d.slabs[s.ID()] = s
			d.slabMu.Unlock()
			return errors.New("shm: the memory is named by work that is outstanding")
		}
	}
	return nil
}

// knows reports whether a slab is registered.
func (d *Device) knows(s *mem.Slab) bool {
	d.slabMu.RLock()
	defer d.slabMu.RUnlock()
	return s != nil && d.slabs[s.ID()] == s
}

// withdraw takes a slab back from the peer, unless something names it.
func (q *QP) withdraw(s *mem.Slab) bool {
	var fx effects
	ok := q.withdrawSlab(s, &fx)
	q.settle(&fx)
	return ok
}

func (q *QP) withdrawSlab(s *mem.Slab, fx *effects) bool {
	q.tx.Lock()
	defer q.tx.Unlock()
	if !q.life.up() {
		return true
	}
	if q.takenLocked(fx); fx.bad != nil {
		return true
	}
	if q.namesLocked(s) {
		return false
	}
	q.tx.shares.withdraw(s)
	q.pumpLocked(fx)
	return true
}

// namesLocked reports whether work that is outstanding, or a window, names a slab.
func (q *QP) namesLocked(s *mem.Slab) (yes bool) {
	t := &q.tx
	for i := range t.sq.Len() {
		yes = yes || t.sq.At(i).mem.names(s)
	}
	for i := range t.resp.Len() {
		yes = yes || t.resp.At(i).mem.names(s)
	}
	q.stags.Lock()
	q.stags.tab.All(func(w *window) { yes = yes || w.mem.names(s) })
	for i := range q.stags.reads.Len() {
		yes = yes || q.stags.reads.At(i).part.slab == s
	}
	q.stags.Unlock()
	q.rq.Lock()
	defer q.rq.Unlock()
	for i := range q.rq.ring.Len() {
		yes = yes || q.rq.ring.At(i).part.slab == s
	}
	return yes
}

// NewQP makes an unconnected queue pair.
func (d *Device) NewQP(o transport.QPOptions) (transport.QP, error) {
	if d.isClosed() {
		return nil, transport.ErrClosed
	}
	return newQP(d, o)
}

// Close ends all connections and listeners and waits until their memory is free.
func (d *Device) Close() error {
	d.mu.Lock()
	d.closed = true
	lns := make([]*listener, 0, len(d.lns))
	for l := range d.lns {
		lns = append(lns, l)
	}
	d.mu.Unlock()
	for _, l := range lns {
		_ = l.Close() // the error is of a socket that is closed
	}
	for _, q := range d.connections() {
		_ = q.Close(transport.Reason{}) // never fails
	}
	d.wg.Wait()
	return nil
}

func (d *Device) connections() []*QP {
	d.mu.Lock()
	defer d.mu.Unlock()
	qps := make([]*QP, 0, len(d.qps))
	for q := range d.qps {
		qps = append(qps, q)
	}
	return qps
}

// adopt counts a connection in. It refuses when the device is closed.
func (d *Device) adopt(q *QP) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	d.qps[q] = struct{}{}
	d.wg.Add(1)
	return true
}

// drop counts a connection out, of which nothing is left.
func (d *Device) drop(q *QP) {
	d.mu.Lock()
	delete(d.qps, q)
	add(&d.past, q.cnt.load())
	d.mu.Unlock()
	d.wg.Done()
}

func (d *Device) isClosed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}

var (
	errForeignQP = errors.New("shm: the queue pair is not one of this device")
	errUsedQP    = errors.New("shm: the queue pair has been used for a connection already")
)

// claim takes q for one connection: an unused QP of this device.
func (d *Device) claim(q transport.QP) (*QP, error) {
	x, ok := q.(*QP)
	if !ok || x.dev != d {
		return nil, errForeignQP
	}
	x.tx.Lock()
	defer x.tx.Unlock()
	switch {
	case x.life.dead():
		return nil, x.tx.err
	case x.life.is() != idle:
		return nil, errUsedQP
	}
	x.life.moveLocked(connecting)
	return x, nil
}

// Dial connects q to the listener whose socket is at addr: a path, or the "host:port" of a service on this host.
func (d *Device) Dial(ctx context.Context, addr string, tq transport.QP, p transport.ConnParams) (transport.Peer, error) {
	q, err := d.claim(tq)
	if err != nil {
		return transport.Peer{}, err
	}
	peer, err := d.dial(ctx, addr, q, p)
	if err != nil {
		q.fail(lost(err), nil, false)
	}
	return peer, err
}

// lost makes an error of a connection's set-up the reason of its queue pair's end.
func lost(err error) error {
	if errors.Is(err, transport.ErrClosed) {
		return err
	}
	return fmt.Errorf("%w: %w", transport.ErrClosed, err)
}
