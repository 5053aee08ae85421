package verbs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/transport"
)

// listener hands out the connection requests for one address.
type listener struct {
	d    *Device
	addr netip.AddrPort

	mu     sync.Mutex
	id     handle
	lost   handle // an id whose adapter went, perhaps before the id became the one that listens
	closed bool
	queue  []*request
	bell   chan struct{} // of one: something is in the queue
	done   chan struct{} // closed when Close has begun
	over   chan struct{} // closed when it is through
}

// Listen listens on addr for RDMA connections, on all adapters that have the address.
func (d *Device) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	all, err := lookup(ctx, addr)
	if err != nil {
		return nil, err
	}
	if !d.enter() {
		return nil, transport.ErrClosed
	}
	defer d.wg.Done()
	l := &listener{d: d, bell: make(chan struct{}, 1), done: make(chan struct{}), over: make(chan struct{})}
	var errs []error
	listens := false
	for _, l.addr = range all {
		if err = l.start(); err == nil {
			listens = true
			break
		}
		errs = append(errs, err)
	}
	if !listens {
		return nil, errors.Join(errs...)
	}
	d.mu.Lock()
	closed := d.closed
	if !closed {
		d.lns[l] = struct{}{}
	}
	d.mu.Unlock()
	if closed {
		return nil, errors.Join(transport.ErrClosed, l.Close())
	}
	return l, nil
}

// start makes the id that listens. A port of 0 becomes one that is kept from then on.
func (l *listener) start() error {
	tab := l.d.tab
	l.mu.Lock()
	l.lost = 0 // numbers come again
	l.mu.Unlock()
	id, err := l.d.cm.newID(l)
	if err != nil {
		return err
	}
	err = tab.BindAddr(id, l.addr)
	if err == nil {
		err = tab.Listen(id, backlog)
	}
	if err == nil && l.addr.Port() == 0 {
		var w where
		if w, err = tab.Where(id); err == nil {
			l.addr = netip.AddrPortFrom(l.addr.Addr(), w.Local.Port())
		}
	}
	if err == nil {
		if err = l.take(id); err == nil {
			return nil
		}
	}
	l.d.cm.dropID(id)
	if errors.Is(err, transport.ErrClosed) {
		return err
	}
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EADDRNOTAVAIL) {
		return fmt.Errorf("verbs: listen on %s: no RDMA device has this address: %w", l.addr, err)
	}
	return fmt.Errorf("verbs: listen on %s: %w", l.addr, err)
}

// take makes id the one that listens, unless the listener has been closed or the adapter has gone meanwhile.
func (l *listener) take(id handle) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return transport.ErrClosed
	case l.lost == id:
		return unix.ENODEV
	}
	l.id = id
	return nil
}

// Addr is the address listened on.
func (l *listener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.addr) }

// Accept returns the next connection request.
func (l *listener) Accept(ctx context.Context) (transport.Request, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		l.mu.Lock()
		closed := l.closed
		var r *request
		if len(l.queue) > 0 {
			r = l.queue[0]
			l.queue = slices.Delete(l.queue, 0, 1)
		}
		l.mu.Unlock()
		if closed {
			return nil, transport.ErrClosed
		}
		if r != nil {
			if r.hand() {
				return r, nil
			}
			continue
		}
		select {
		case <-l.bell:
		case <-l.done:
			return nil, transport.ErrClosed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Close ends the listener and refuses the requests that were not handed out. It waits for a Close that another goroutine has begun:
// when it returns the library has nothing of the listener, and the device may free the channel of its id.
func (l *listener) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		<-l.over
		return nil
	}
	l.closed = true
	defer close(l.over)
	close(l.done)
	queue, id := l.queue, l.id
	l.queue, l.id = nil, 0
	l.mu.Unlock()
	for _, r := range queue {
		r.refuse()
	}
	if id != 0 {
		l.d.cm.dropID(id)
	}
	l.d.mu.Lock()
	delete(l.d.lns, l)
	l.d.mu.Unlock()
	return nil
}

// cmEvent takes the events of the id that listens, or is about to: its adapter may go.
func (l *listener) cmEvent(e cmEvent) {
	if e.Kind != cmDeviceRemoval {
		return
	}
	l.mu.Lock()
	l.lost = e.ID
	listens := l.id == e.ID
	l.mu.Unlock()
	if listens {
		l.d.opt.Log.Warn("the RDMA device of a listener is gone; listening again when it is back", zap.Stringer("address", l.addr))
		l.d.aside(l.again)
	}
}

// again listens once more after the adapter went: until the address has an RDMA device again, or the listener is closed.
func (l *listener) again() {
	l.mu.Lock()
	id := l.id
	l.id = 0
	l.mu.Unlock()
	if id == 0 {
		return // closed, or at it already
	}
	l.d.cm.dropID(id)
	for wait := relistenMin; ; wait = min(2*wait, relistenMax) {
		select {
		case <-l.done:
			return
		case <-l.d.stop:
			return
		case <-l.d.opt.after(wait):
		}
		if err := l.start(); err == nil {
			l.d.opt.Log.Info("listening again", zap.Stringer("address", l.addr))
			return
		} else if errors.Is(err, transport.ErrClosed) {
			return
		}
	}
}

// requestLocked takes a new connection request from the connection manager, whose lock is held.
func (l *listener) requestLocked(e cmEvent) *request {
	r := &request{l: l, id: e.ID, ev: e}
	l.mu.Lock()
	full := l.closed || len(l.queue) >= backlog
	if !full {
		r.await() // before it can be answered
		l.queue = append(l.queue, r)
	}
	l.mu.Unlock()
	if full {
		l.d.aside(r.refuse)
		return r
	}
	select {
	case l.bell <- struct{}{}:
	default:
	}
	return r
}
