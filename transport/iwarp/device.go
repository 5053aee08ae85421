package iwarp

import (
	"context"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// Device is the software RNIC. All its methods may be called by any goroutine.
type Device struct {
	opt Options

	mu     sync.Mutex
	closed bool
	qps    map[*QP]struct{}
	lns    map[*listener]struct{}
	past   Stats // of QPs that are gone
	wg     sync.WaitGroup
}

var _ transport.Device = (*Device)(nil)

// New makes a device.
func New(o Options) *Device {
	return &Device{opt: o.withDefaults(), qps: map[*QP]struct{}{}, lns: map[*listener]struct{}{}}
}

// Name is "iwarp".
func (d *Device) Name() string { return "iwarp" }

// Caps says what the software can do.
func (d *Device) Caps() transport.Caps {
	return transport.Caps{
		PerIOWindows: true, ExactWindows: true, RandomSTags: true, RemoteInv: true, Terminates: true,
		MaxSGE: maxSGE, MaxBindSGE: maxSGE, MaxMessage: maxMessage, MaxReads: maxReads, MaxPrivate: maxPrivate,
	}
}

// Register needs to do nothing: the processor reaches all memory.
func (d *Device) Register(*mem.Slab) error { return nil }

// Unregister needs to do nothing either: after its last completion nothing of a connection names memory.
func (d *Device) Unregister(*mem.Slab) error { return nil }

// NewQP makes an unconnected queue pair.
func (d *Device) NewQP(o transport.QPOptions) (transport.QP, error) { return newQP(d, o) }

// Stats sums the counters of all connections, past and present.
func (d *Device) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.past
	for q := range d.qps {
		add(&s, q.cnt.load())
	}
	return s
}

// Close ends all connections and listeners and waits for their goroutines.
func (d *Device) Close() error {
	d.mu.Lock()
	d.closed = true
	qps := make([]*QP, 0, len(d.qps))
	for q := range d.qps {
		qps = append(qps, q)
	}
	lns := make([]*listener, 0, len(d.lns))
	for l := range d.lns {
		lns = append(lns, l)
	}
	d.mu.Unlock()
	for _, l := range lns {
		_ = l.Close() // the error is of a socket that is closed
	}
	for _, q := range qps {
		_ = q.Close(transport.Reason{}) // never fails
	}
	d.wg.Wait()
	return nil
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

// drop is the end of a connection's flusher.
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

// sendMSS is the payload of a full segment now: unlike the MSS option, it leaves out what timestamps take. The kernel
// keeps it current (tcp_sync_mss).
func sendMSS(fd, otherwise int) int {
	n, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG)
	if err != nil || n < minMSS {
		return max(otherwise, minMSS)
	}
	return min(n, maxULPDU)
}

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

// Dial connects q.
func (d *Device) Dial(ctx context.Context, addr string, tq transport.QP, p transport.ConnParams) (transport.Peer, error) {
	q, err := d.claim(tq)
	if err != nil {
		return transport.Peer{}, err
	}
	peer, err := d.dial(ctx, addr, q, p)
	if err != nil {
		q.fail(lost(err), nil, nil)
	}
	return peer, err
}
