package shm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-storage/sluice/internal/unixsock"
	"github.com/sluice-storage/sluice/transport"
)

// Socket is what the socket of a listener is like: the rights of its file say who may connect.
type Socket struct {
	Mode  fs.FileMode // to connect takes the right to write; 0 stands for 0600
	Group int         // of the file; 0 stands for this process's
}

// listener accepts connections and reads their requests, each on a goroutine of its own while that takes.
type listener struct {
	d    *Device
	ln   net.Listener
	path string
	at   service
	reqs chan *request
	done chan struct{}
	wg   sync.WaitGroup

	mu     sync.Mutex
	closed bool
	fresh  []net.Conn // without a whole request yet, oldest first
}

// diallers numbers those that this process has accepted, for their names.
var diallers atomic.Uint64

// Listen makes a socket for addr, a path or "host:port" (Options.Directory), with the device's Options.Socket.
func (d *Device) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	return d.ListenAs(ctx, addr, d.opt.Socket)
}

// ListenAs is Listen for a socket with other rights.
func (d *Device) ListenAs(ctx context.Context, addr string, s Socket) (transport.Listener, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	path, err := d.place(addr)
	if err != nil {
		return nil, err
	}
	at, err := serviceAt(ctx, addr)
	if err != nil {
		return nil, err
	}
	ln, err := unixsock.Socket{Packets: true, Mode: s.Mode, Group: s.Group}.Listen(path)
	if err != nil {
		return nil, fmt.Errorf("shm: listen: %w", err)
	}
	l := &listener{d: d, ln: ln, path: path, at: at, reqs: make(chan *request), done: make(chan struct{})}
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

// Addr is the socket.
func (l *listener) Addr() net.Addr { return Addr(l.path) }

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
	if err := ctx.Err(); err != nil {
		return nil, err
	}
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

// admit starts the reading of c's request. When too many are at it, the oldest gives way: one that sends its
// request at once is served however many say nothing.
func (l *listener) admit(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		_ = c.Close()
		return false
	}
	if len(l.fresh) >= maxPending {
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
	r, err := l.readRequest(c)
	if !l.leave(c) || err != nil {
		_ = c.Close()
		if r != nil {
			unmap(r.peer)
		}
		return
	}
	select {
	case l.reqs <- r:
	case <-l.done:
		_ = c.Close()
		unmap(r.peer)
	}
}

var errNotAdmitted = errors.New("shm: the dialler is not admitted")

// readRequest reads the request of c and tells the dialler what is wrong with it.
func (l *listener) readRequest(c net.Conn) (*request, error) {
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("shm: connection of type %T, a unix socket's is needed", c)
	}
	if err := uc.SetDeadline(time.Now().Add(requestTimeout)); err != nil {
		return nil, err
	}
	who, err := processOf(uc)
	if err != nil {
		return nil, err
	}
	// It is read in any case: what is unread when a socket is closed keeps the other side from reading the refusal.
	p, err := readPacket(uc)
	if err != nil {
		closeAll(p.fds)
		return nil, err
	}
	if f := l.d.opt.Admit; f != nil {
		if err := f(who); err != nil {
			closeAll(p.fds)
			_ = refuse(uc, nil, errNotAdmitted.Error()) // it is refused, whether it hears of it or not
			return nil, err
		}
	}
	h, b, err := p.open()
	if err == nil && h.kind != msgRequest {
		err = errNoHello
	}
	if err == nil {
		err = l.at.isMeant(h.text)
	}
	if err != nil {
		unmap(b)
		_ = refuse(uc, nil, err.Error()) // likewise
		return nil, err
	}
	name := fmt.Sprintf("uid=%d:pid=%d.%d", who.UID, who.PID, diallers.Add(1))
	return &request{d: l.d, c: uc, h: h, peer: b, path: l.path, addr: &Dialler{name, who}}, nil
}
