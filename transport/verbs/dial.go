package verbs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/transport"
)

// cmConsumer is the reason of a refusal that is the upper protocol's (InfiniBand Architecture 12.6.7.2), and cmNoService
// that of a port that nothing listens on.
const (
	cmNoService = 8
	cmConsumer  = 28
)

// Dial connects q.
func (d *Device) Dial(ctx context.Context, addr string, tq transport.QP, p transport.ConnParams) (transport.Peer, error) {
	q, err := d.qpOf(tq)
	if err != nil {
		return transport.Peer{}, err
	}
	peer, err := d.dial(ctx, addr, q, p)
	if err != nil {
		q.fail(lost(err))
	}
	return peer, err
}

func (d *Device) dial(ctx context.Context, addr string, q *QP, p transport.ConnParams) (transport.Peer, error) {
	if err := ctx.Err(); err != nil {
		return transport.Peer{}, err
	}
	if len(p.Private) > maxPrivate {
		return transport.Peer{}, errPrivate(len(p.Private))
	}
	if err := q.adopt(); err != nil {
		return transport.Peer{}, err
	}
	dsts, err := lookup(ctx, addr)
	if err != nil {
		return transport.Peer{}, err
	}
	for _, dst := range dsts {
		if err = q.resolve(ctx, dst); err == nil {
			return q.connect(ctx, dst, p)
		}
		if ctx.Err() != nil || q.dead() {
			break
		}
	}
	return transport.Peer{}, err
}

func errPrivate(n int) error {
	return fmt.Errorf("verbs: %d bytes of private data, at most %d are sent", n, maxPrivate)
}

// lookup is every address of a "host:port". An empty host is every address there is, for a listener.
func lookup(ctx context.Context, addr string) ([]netip.AddrPort, error) {
	host, service, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("verbs: address %q: %w", addr, err)
	}
	port, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return nil, fmt.Errorf("verbs: address %q: %w", addr, err)
	}
	if host == "" {
		return []netip.AddrPort{netip.AddrPortFrom(netip.IPv6Unspecified(), uint16(port)), netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(port))}, nil
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, fmt.Errorf("verbs: address %q: %w", addr, err)
	}
	all := make([]netip.AddrPort, 0, len(ips))
	for _, ip := range ips {
		all = append(all, netip.AddrPortFrom(ip.Unmap(), uint16(port)))
	}
	return all, nil
}

// with calls f with the library's objects, unless they are gone.
func (q *QP) with(f func() error) error {
	q.build.Lock()
	defer q.build.Unlock()
	if q.dead() {
		return q.why()
	}
	return f()
}

// resolve finds the adapter and the route to dst. It begins with an id of its own: a failed one is of no more use.
func (q *QP) resolve(ctx context.Context, dst netip.AddrPort) error {
	tab := q.dev.tab
	err := q.with(func() (err error) {
		if q.id != 0 {
			q.dev.cm.dropID(q.id)
			q.id = 0
			for len(q.cmEvents) > 0 {
				<-q.cmEvents
			}
		}
		if q.id, err = q.dev.cm.newID(q); err != nil {
			return err
		}
		if tos := q.dev.opt.ToS; tos != 0 {
			if err := tab.SetToS(q.id, tos); err != nil {
				return fmt.Errorf("verbs: set the type of service: %w", err)
			}
		}
		if err := tab.ResolveAddr(q.id, netip.AddrPort{}, dst, int(resolveTime/time.Millisecond)); err != nil {
			return resolveErr(dst, err)
		}
		return nil
	})
	if err == nil {
		_, err = q.await(ctx, cmAddrResolved, dst, resolveTime+time.Second)
	}
	if err != nil {
		return err
	}
	if err := q.with(func() error {
		if err := q.timeRoute(); err != nil {
			return err
		}
		if err := tab.ResolveRoute(q.id, int(resolveTime/time.Millisecond)); err != nil {
			return fmt.Errorf("verbs: find a route to %s: %w", dst, err)
		}
		return nil
	}); err != nil {
		return err
	}
	_, err = q.await(ctx, cmRouteResolved, dst, resolveTime+time.Second)
	return err
}

// connect makes the queue pair on the adapter of the route, and asks for the connection.
func (q *QP) connect(ctx context.Context, dst netip.AddrPort, p transport.ConnParams) (transport.Peer, error) {
	var w where
	var in, out uint8
	err := q.with(func() (err error) {
		if w, err = q.dev.tab.Where(q.id); err != nil {
			return fmt.Errorf("verbs: the way to %s: %w", dst, err)
		}
		if err := q.makeLocked(w); err != nil {
			return err
		}
		// The system may know a way over a port without a carrier, and the connection manager would ask for long.
		if err := q.a.checkPort(w.Port); err != nil {
			return err
		}
		in, out = q.a.reads(p.ReadsIn, p.ReadsOut)
		o := &q.dev.opt
		q.askLocked(connParam{Private: p.Private, ResponderResources: in, InitiatorDepth: out, Retry: *o.Retry, RNRRetry: *o.RNRRetry})
		return nil
	})
	if err == nil {
		err = q.asked(ctx, dst)
	}
	if err != nil {
		return transport.Peer{}, err
	}
	e, err := q.await(ctx, cmEstablished, dst, dialTime)
	if err != nil {
		return transport.Peer{}, err
	}
	if q.a.turned {
		e.InitiatorDepth, e.ResponderResources = e.ResponderResources, e.InitiatorDepth
	}
	peer := peerOf(&e, q.a, w)
	q.depth = transport.Depth{In: int(in), Out: min(int(out), peer.ReadsIn)}
	if !peer.Named {
		q.depth.Out = int(out)
	}
	// A reply has what the message left: the adapter may have a Read less to wait for, never more.
	q.build.Lock()
	q.objects.moveLocked(qpObjectMoves, live)
	q.build.Unlock()
	if q.dead() {
		return peer, q.why()
	}
	return peer, nil
}

// asking is a Connect that the library has not returned from: siw's waits in the kernel until TCP has connected or given up, which
// takes up to two minutes, and nothing ends it before.
type asking struct {
	over chan struct{} // closed when it has
	err  error         // then
}

// askLocked begins to ask for the connection; build is held. Until it is over the id must stay, and nothing waits for it but the queue
// pair's end (takeApart).
func (q *QP) askLocked(p connParam) {
	a, id := &asking{over: make(chan struct{})}, q.id
	q.asks, q.known = a, true
	go func() {
		a.err = q.dev.tab.Connect(id, p)
		close(a.over)
	}()
}

// asked waits until the library has asked.
func (q *QP) asked(ctx context.Context, dst netip.AddrPort) error {
	t := time.NewTimer(dialTime)
	defer t.Stop()
	select {
	case <-q.asks.over:
		if err := q.asks.err; err != nil {
			return fmt.Errorf("verbs: connect to %s: %w", dst, err)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-q.dying:
		return q.why()
	case <-t.C:
		return noAnswer(dst, dialTime)
	}
}

func noAnswer(dst netip.AddrPort, limit time.Duration) error {
	return fmt.Errorf("verbs: %s: no answer within %s: %w", dst, limit, context.DeadlineExceeded)
}

// reads bounds the depths asked for by what the adapter has.
func (a *rnic) reads(in, out int) (uint8, uint8) {
	return uint8(min(max(in, 0), least(maxReads, a.attr.MaxReadIn))), uint8(min(max(out, 0), least(maxReads, a.attr.MaxReadOut)))
}

// peerOf is what an event says of the other side. The fields of an event are named for the side that gets it: its initiator
// depth is what the peer serves.
func peerOf(e *cmEvent, a *rnic, w where) transport.Peer {
	p := transport.Peer{Private: e.Private, ReadsIn: int(e.InitiatorDepth), ReadsOut: int(e.ResponderResources),
		Local: net.TCPAddrFromAddrPort(w.Local), Remote: net.TCPAddrFromAddrPort(w.Remote)}
	// InfiniBand's messages always have both; MPA's only in revision 2.
	p.Named = a.attr.Kind != kindIWARP || p.ReadsIn != 0 || p.ReadsOut != 0
	return p
}

// cmEvent takes an event of the connection's id: the set-up waits for it, or the connection ends.
func (q *QP) cmEvent(e cmEvent) {
	switch e.Kind {
	case cmDisconnected:
		q.fail(&LinkError{Reason: "the peer ended the connection", asked: true})
	case cmDeviceRemoval:
		if q.made() {
			q.a.leave() // its own event may come later
		}
		q.fail(&LinkError{Reason: "the RDMA device was removed"})
	case cmAddrChange, cmTimewaitExit:
	default:
		select {
		case q.cmEvents <- e:
		default: // a set-up that hears of so much has failed already
		}
	}
}

// await waits for one event of the set-up.
func (q *QP) await(ctx context.Context, want cmKind, dst netip.AddrPort, limit time.Duration) (cmEvent, error) {
	t := time.NewTimer(limit)
	defer t.Stop()
	for {
		select {
		case e := <-q.cmEvents:
			if e.Kind == want {
				return e, nil
			}
			if err := cmErr(&e, dst); err != nil {
				return e, err
			}
		case <-ctx.Done():
			return cmEvent{}, ctx.Err()
		case <-q.dying:
			return cmEvent{}, q.why()
		case <-t.C:
			return cmEvent{}, noAnswer(dst, limit)
		}
	}
}

// cmErr is an event that ends a set-up, in a sentence; nil for others.
func cmErr(e *cmEvent, dst netip.AddrPort) error {
	switch e.Kind {
	case cmAddrError:
		return resolveErr(dst, errno(e.Status))
	case cmRouteError:
		return fmt.Errorf("verbs: there is no route to %s over this fabric; is the subnet manager (InfiniBand) or the port up? %w", dst, errno(e.Status))
	case cmRejected:
		if e.Status == cmNoService {
			return fmt.Errorf("verbs: nothing listens for RDMA at %s: %w", dst, unix.ECONNREFUSED)
		}
		return &transport.RejectedError{Private: e.Private}
	case cmUnreachable:
		return fmt.Errorf("verbs: %s does not answer over RDMA: is the service started, with RDMA, and the network's RDMA devices up? %w", dst, errno(e.Status))
	case cmConnectError:
		return fmt.Errorf("verbs: the connection to %s could not be made (%s): %w", dst, e.Text, errno(e.Status))
	case cmAddrResolved, cmRouteResolved, cmEstablished, cmConnectResponse:
		return nil
	}
	return fmt.Errorf("verbs: the connection to %s could not be made (%s)", dst, e.Text)
}

func resolveErr(dst netip.AddrPort, err error) error {
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EADDRNOTAVAIL) {
		return fmt.Errorf("verbs: no RDMA device has a way to %s; the interface of the route has none, or it is down: %w", dst.Addr(), err)
	}
	return fmt.Errorf("verbs: resolve %s over the RDMA devices: %w", dst.Addr(), err)
}

// errno is the status of an event, which is negative where it is a system's error.
func errno(status int) error {
	if status < 0 {
		return unix.Errno(-status)
	}
	return fmt.Errorf("reason %d", status)
}
