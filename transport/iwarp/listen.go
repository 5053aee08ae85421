package iwarp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/sluice-storage/sluice/transport"
)

// listener accepts connections and reads their MPA Requests, each on a goroutine of its own while that takes.
type listener struct {
	d    *Device
	ln   net.Listener
	reqs chan *request
	done chan struct{}
	wg   sync.WaitGroup

	mu     sync.Mutex
	closed bool
	fresh  []net.Conn // without a whole MPA Request yet, oldest first
}

// Listen listens on addr for RDMA connections.
func (d *Device) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("iwarp: listen: %w", err)
	}
	return d.listen(ln)
}

// listen takes over ln, which yields *net.TCPConn. A connection that begins with anything but an MPA Request Frame, or that says nothing
// for Options.RequestTimeout, is closed.
func (d *Device) listen(ln net.Listener) (transport.Listener, error) {
	l := &listener{d: d, ln: ln, reqs: make(chan *request), done: make(chan struct{})}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errors.Join(transport.ErrClosed, ln.Close())
	}
	d.lns[l] = struct{}{}
	l.wg.Add(1)
	go l.run()
	return l, nil
}

// Addr is the address listened on.
func (l *listener) Addr() net.Addr { return l.ln.Addr() }

// Close ends the listener and the connections not yet handed out.
func (l *listener) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	close(l.done)
	err := l.ln.Close()
	for _, c := range l.fresh {
		_ = c.Close() // wakes its reader
	}
	l.mu.Unlock()
	l.wg.Wait()
	l.d.mu.Lock()
	delete(l.d.lns, l)
	l.d.mu.Unlock()
	return err
}

// Accept returns the next connection request.
func (l *listener) Accept(ctx context.Context) (transport.Request, error) {
	select {
	case r := <-l.reqs:
		return r, nil
	case <-l.done:
		return nil, transport.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *listener) run() {
	defer l.wg.Done()
	for {
		c, err := l.ln.Accept()
		if err != nil {
			select {
			case <-l.done:
				return
			default:
			}
			if errors.Is(err, net.ErrClosed) {
				go func() { _ = l.Close() }()
				return
			}
			// Out of descriptors, most likely: wait for some to come free, not in a circle.
			select {
			case <-l.done:
				return
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		if !l.admit(c) {
			return
		}
	}
}

// admit starts the reading of c's first bytes. When too many are at it, the oldest gives way: one that sends its
// request at once is served however many say nothing.
func (l *listener) admit(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		_ = c.Close()
		return false
	}
	if len(l.fresh) >= maxHandshakes {
		_ = l.fresh[0].Close()
		l.fresh = append(l.fresh[:0], l.fresh[1:]...)
	}
	l.fresh = append(l.fresh, c)
	l.wg.Add(1)
	go l.greet(c)
	return true
}

// leave takes c out of the list; false means that it was closed meanwhile.
func (l *listener) leave(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, x := range l.fresh {
		if x == c {
			l.fresh = append(l.fresh[:i], l.fresh[i+1:]...)
			return !l.closed
		}
	}
	return false
}

func (l *listener) greet(c net.Conn) {
	defer l.wg.Done()
	handed := false
	defer func() {
		if recover() != nil { // a defect in the set-up of a connection ends that one
			l.leave(c)
		}
		if !handed {
			_ = c.Close()
		}
	}()
	if err := c.SetDeadline(time.Now().Add(l.d.opt.RequestTimeout)); err != nil {
		l.leave(c)
		return
	}
	b := make([]byte, 0, mpaHdrLen)
	for {
		yes, ok := IsMPARequest(b)
		if ok && !yes {
			l.leave(c)
			return
		}
		if ok {
			break
		}
		n, err := c.Read(b[len(b):len(mpaKeyReq)])
		b = b[:len(b)+n]
		if err != nil {
			l.leave(c)
			return
		}
	}
	r, err := l.d.readRequest(c, b)
	if !l.leave(c) || err != nil {
		return
	}
	select {
	case l.reqs <- r:
		handed = true
	case <-l.done:
	}
}

// prefixed is a connection of which some bytes were read already.
type prefixed struct {
	read []byte
	c    net.Conn
}

func (p *prefixed) Read(b []byte) (int, error) {
	if len(p.read) > 0 {
		n := copy(b, p.read)
		p.read = p.read[n:]
		return n, nil
	}
	return p.c.Read(b)
}

// readRequest reads the MPA Request of c, of which peeked has been read.
func (d *Device) readRequest(c net.Conn, peeked []byte) (_ *request, err error) {
	defer defective(&err)
	tc, ok := c.(*net.TCPConn)
	if !ok {
		return nil, fmt.Errorf("iwarp: connection of type %T, a TCP connection is needed", c)
	}
	p := &prefixed{read: peeked, c: c}
	f, err := readFrame(io.Reader(p), false)
	if err != nil {
		return nil, err
	}
	if len(p.read) > 0 {
		return nil, fmt.Errorf("iwarp: %d bytes follow the MPA Request before its reply (RFC 5044 section 7.1.3)", len(p.read))
	}
	return &request{d: d, c: tc, f: f}, nil
}

// Request reads the MPA Request of a connection that was accepted elsewhere and of which peeked has been read already.
// It takes conn over, and closes it on an error. The time limit is Options.RequestTimeout.
func (d *Device) Request(ctx context.Context, conn *net.TCPConn, peeked []byte) (transport.Request, error) {
	release := guard(ctx, conn, d.opt.RequestTimeout)
	defer release()
	r, err := d.readRequest(conn, peeked)
	if err != nil {
		_ = conn.Close() // the error above says more
		return nil, ctxErr(ctx, err)
	}
	return r, nil
}
