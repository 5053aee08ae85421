package shm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/transport"
)

// guard makes ctx and a time limit end the blocking use of c in a connection set-up. The result is called when it is over.
func guard(ctx context.Context, c net.Conn, limit time.Duration) (release func()) {
	if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
		return func() {}
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	return func() { stop() }
}

func ctxErr(ctx context.Context, err error) error {
	if cerr := ctx.Err(); cerr != nil {
		return cerr
	}
	return err
}

// checkParams looks at what the upper protocol asks for.
func checkParams(p *transport.ConnParams) error {
	if len(p.Private) > maxPrivate {
		return fmt.Errorf("shm: %d bytes of private data, at most %d are sent", len(p.Private), maxPrivate)
	}
	return nil
}

// capReads bounds a depth.
func capReads(n int) int { return min(max(n, 0), maxReads) }

func (h *hello) of(kind uint8, p *transport.ConnParams, slots int) {
	h.kind, h.slots, h.private = kind, uint32(slots), p.Private
	h.readsIn, h.readsOut = uint16(capReads(p.ReadsIn)), uint16(capReads(p.ReadsOut))
}

// depths are what both sides can.
func depths(p *transport.ConnParams, h *hello) transport.Depth {
	return transport.Depth{In: min(capReads(p.ReadsIn), capReads(int(h.readsOut))), Out: min(capReads(p.ReadsOut), capReads(int(h.readsIn)))}
}

func (d *Device) dial(ctx context.Context, addr string, q *QP, p transport.ConnParams) (transport.Peer, error) {
	if d.isClosed() {
		return transport.Peer{}, transport.ErrClosed
	}
	if err := checkParams(&p); err != nil {
		return transport.Peer{}, err
	}
	path, says, err := d.find(ctx, addr)
	if err != nil {
		return transport.Peer{}, err
	}
	var nd net.Dialer
	c, err := nd.DialContext(ctx, "unixpacket", path)
	switch {
	case errors.Is(err, unix.EPROTOTYPE):
		return transport.Peer{}, fmt.Errorf("shm: the socket at %s is another program's: it is of another type: %w", path, err)
	case errors.Is(err, unix.EACCES):
		return transport.Peer{}, fmt.Errorf("shm: this user may not connect to %s: %w", path, err)
	case err != nil:
		return transport.Peer{}, ctxErr(ctx, fmt.Errorf("shm: connect: %w", err)) // the path is in it
	}
	uc := c.(*net.UnixConn)
	defer func() { _ = uc.Close() }() // the QP has a descriptor of its own
	return d.initiate(ctx, uc, q, p, path, says)
}

// initiate is the dialler's half of the set-up.
func (d *Device) initiate(ctx context.Context, c *net.UnixConn, q *QP, p transport.ConnParams, path, says string) (_ transport.Peer, err error) {
	var l link
	defer func() {
		if err != nil {
			l.drop()
		}
	}()
	if l.own, l.ownSlab, err = ownRegion(d.opt.slots); err != nil {
		return transport.Peer{}, err
	}
	release := guard(ctx, c, replyTimeout)
	defer release()
	req := hello{text: says}
	req.of(msgRequest, &p, d.opt.slots)
	if err := sendHello(c, &req, l.ownSlab.FD()); err != nil {
		return transport.Peer{}, ctxErr(ctx, fmt.Errorf("shm: send the request: %w", err))
	}
	rep, b, err := readHello(c)
	l.peer = b
	if err != nil {
		return transport.Peer{}, ctxErr(ctx, fmt.Errorf("shm: no reply to the request: %w", err))
	}
	peer := transport.Peer{Private: rep.private, ReadsIn: int(rep.readsIn), ReadsOut: int(rep.readsOut), Named: true,
		Local: &Dialler{name: rep.text}, Remote: Addr(path)}
	switch {
	case rep.kind == msgRefusal && rep.text != "":
		return peer, &RefusedError{rep.text}
	case rep.kind == msgRefusal:
		return peer, &transport.RejectedError{Private: rep.private}
	case rep.kind != msgReply:
		return peer, errNoHello
	}
	l.depth = depths(&p, &rep)
	release()
	if err := ctx.Err(); err != nil {
		return peer, err
	}
	if l.file, err = c.File(); err != nil {
		return peer, err
	}
	return peer, q.start(&l)
}

// RefusedError is a refusal that is not the upper protocol's.
type RefusedError struct{ Why string }

func (e *RefusedError) Error() string { return "shm: the peer refused the connection: " + e.Why }

// request is one connection request that waits for its answer.
type request struct {
	d    *Device
	c    *net.UnixConn
	h    hello
	peer []byte // its region
	addr *Dialler
	path string
	done bool
}

var errAnswered = errors.New("shm: the connection request has been answered already")

// Peer is what the request said.
func (r *request) Peer() transport.Peer {
	return transport.Peer{Private: r.h.private, ReadsIn: int(r.h.readsIn), ReadsOut: int(r.h.readsOut), Named: true,
		Local: Addr(r.path), Remote: r.addr}
}

// Reject answers with a refusal.
func (r *request) Reject(private []byte) error {
	if r.done {
		return errAnswered
	}
	r.done = true
	defer func() { _ = r.c.Close() }()
	unmap(r.peer)
	if len(private) > maxPrivate {
		return fmt.Errorf("shm: %d bytes of private data, at most %d are sent", len(private), maxPrivate)
	}
	return refuse(r.c, private, "")
}

func refuse(c *net.UnixConn, private []byte, why string) error {
	if err := c.SetDeadline(time.Now().Add(replyTimeout)); err != nil {
		return err
	}
	return sendHello(c, &hello{kind: msgRefusal, private: private, text: why[:min(len(why), maxDetail)]}, -1)
}

// Accept answers and connects tq.
func (r *request) Accept(ctx context.Context, tq transport.QP, p transport.ConnParams) error {
	if r.done {
		return errAnswered
	}
	r.done = true
	defer func() { _ = r.c.Close() }() // the QP has a descriptor of its own
	q, err := r.d.claim(tq)
	if err != nil {
		unmap(r.peer)
		return err
	}
	if err = r.accept(ctx, q, p); err != nil {
		q.fail(lost(err), nil, false)
	}
	return err
}

// accept is the listener's half of the set-up.
func (r *request) accept(ctx context.Context, q *QP, p transport.ConnParams) (err error) {
	l := link{peer: r.peer, depth: depths(&p, &r.h)}
	defer func() {
		if err != nil {
			l.drop()
		}
	}()
	if err := checkParams(&p); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if l.own, l.ownSlab, err = ownRegion(r.d.opt.slots); err != nil {
		return err
	}
	if l.file, err = r.c.File(); err != nil {
		return err
	}
	release := guard(ctx, r.c, replyTimeout)
	defer release()
	rep := hello{text: r.addr.name}
	rep.of(msgReply, &p, r.d.opt.slots)
	if err := sendHello(r.c, &rep, l.ownSlab.FD()); err != nil {
		return ctxErr(ctx, fmt.Errorf("shm: send the reply: %w", err))
	}
	return q.start(&l)
}
