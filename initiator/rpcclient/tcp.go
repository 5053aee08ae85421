package rpcclient

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/internal/sockio"
	"github.com/sluice-storage/sluice/internal/xdr"
)

// TCP returns a Dialer for a stream to addr, "host:port". As root it binds a reserved port, which servers ask of clients
// that mount (RFC 1813 section 4.1 knows no other proof).
func TCP(addr string) Dialer {
	return Stream(func(ctx context.Context) (net.Conn, error) {
		d := net.Dialer{Control: reservedPort}
		nc, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, fmt.Errorf("rpc: connect to %s: %w", addr, err)
		}
		return nc, nil
	})
}

// Stream returns a Dialer for streams that dial makes.
func Stream(dial func(context.Context) (net.Conn, error)) Dialer {
	return dialFunc(func(ctx context.Context, c *Client) (conn, error) {
		nc, err := dial(ctx)
		if err != nil {
			return nil, err
		}
		t := &stream{c: c, nc: nc, written: make(chan struct{})}
		if raw := sockio.Raw(nc); raw != nil {
			t.out = sockio.NewWriter(raw)
		}
		t.wake.L = &t.mu
		c.wg.Add(2)
		go t.read()
		go t.write()
		return t, nil
	})
}

// reservedPort binds a port below 1024 where the process may; otherwise the kernel chooses one.
func reservedPort(network, _ string, rc syscall.RawConn) error {
	if syscall.Geteuid() != 0 {
		return nil
	}
	return rc.Control(func(fd uintptr) {
		for port := 1023; port > 512; port-- {
			var sa syscall.Sockaddr = &syscall.SockaddrInet4{Port: port}
			if network == "tcp6" {
				sa = &syscall.SockaddrInet6{Port: port}
			}
			if err := syscall.Bind(int(fd), sa); !errors.Is(err, syscall.EADDRINUSE) {
				return // bound, or not allowed to
			}
		}
	})
}

// stream is a connection in record marking. One goroutine reads, one writes.
type stream struct {
	c   *Client
	nc  net.Conn
	out *sockio.Writer // nil where nc has no descriptor

	written chan struct{} // closed when the writer has ended

	mu       sync.Mutex
	wake     sync.Cond
	queue    []*pending
	writing  *pending
	answered bool // writing is: the writer tells its caller
	outcome  error
	closed   bool
}

func (t *stream) start(p *pending) {
	t.mu.Lock()
	if !t.closed && !p.forgot {
		t.queue = append(t.queue, p)
		t.wake.Signal()
	}
	t.mu.Unlock()
}

// forget waits until the call's memory is not being written any more, also where the connection has ended: the system call that
// reads it may still run. A server that takes no more bytes loses the connection.
func (t *stream) forget(p *pending) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p.forgot = true
	t.unqueueLocked(p)
	if t.writing != p {
		return
	}
	stalled := time.AfterFunc(stallTimeout, t.close)
	defer stalled.Stop()
	for t.writing == p {
		t.wake.Wait()
	}
}

func (t *stream) unqueueLocked(p *pending) {
	if i := slices.Index(t.queue, p); i >= 0 {
		t.queue = slices.Delete(t.queue, i, i+1)
	}
}

// told ends a call whose reply is here, with the error if that is none. A server may answer what it has not read: the writer ends such a call when its memory is not
// being read any more.
func (t *stream) told(p *pending, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unqueueLocked(p)
	if t.writing == p {
		t.answered, t.outcome = true, err
	} else {
		p.done <- err
	}
}

func (t *stream) close() {
	t.mu.Lock()
	t.closed = true
	t.wake.Broadcast()
	t.mu.Unlock()
	_ = t.nc.Close()
}

func (t *stream) write() {
	defer t.c.wg.Done()
	defer close(t.written)
	var mark [oncrpc.MarkLen]byte
	var pad [4]byte
	var bufs [4]unix.Iovec
	for {
		t.mu.Lock()
		if t.answered {
			t.writing.done <- t.outcome
		}
		t.writing, t.answered = nil, false
		t.wake.Broadcast()
		for len(t.queue) == 0 && !t.closed {
			t.wake.Wait()
		}
		if t.closed {
			t.mu.Unlock()
			return
		}
		p := t.queue[0]
		t.queue = t.queue[1:]
		t.writing = p
		t.mu.Unlock()
		data := p.call.data()
		n := len(data)
		oncrpc.PutMark(mark[:], len(p.msg)+n+xdr.Pad(n), true)
		if err := t.send(bufs[:0], mark[:], p.msg, data, pad[:xdr.Pad(n)]); err != nil {
			t.close()
		}
	}
}

// send writes all of parts; room is memory for their list.
func (t *stream) send(room []unix.Iovec, parts ...[]byte) error {
	if t.out == nil {
		v := append(net.Buffers(nil), parts...) // a copy: parts itself stays on the stack
		_, err := v.WriteTo(t.nc)
		return err
	}
	for _, b := range parts {
		room = sockio.Append(room, b)
	}
	return t.out.WriteAll(room)
}

func (t *stream) read() {
	defer t.c.wg.Done()
	r := bufio.NewReaderSize(t.nc, 64<<10)
	for {
		msg, err := readRecord(r)
		if len(msg) < 4 {
			break
		}
		xid := binary.BigEndian.Uint32(msg)
		if err != nil {
			var re *oncrpc.RecordError
			if errors.As(err, &re) {
				if p := t.c.takeFailed(xid); p != nil {
					t.told(p, &ProtocolError{err})
				}
			}
			break
		}
		if p := t.c.take(xid); p != nil {
			p.call.reply = msg
			t.told(p, nil)
		}
	}
	t.close()
	<-t.written
	t.c.ended(t)
}

// readRecord reads a message. With an error it returns what has come of it: of a message that is too long as much as says whose it is.
func readRecord(r *bufio.Reader) ([]byte, error) {
	var msg []byte
	for frags := 0; ; frags++ {
		var mark [oncrpc.MarkLen]byte
		if _, err := io.ReadFull(r, mark[:]); err != nil {
			return msg, err
		}
		n, last := oncrpc.ParseMark(mark[:])
		if n > maxRecord-len(msg) || frags == maxFragments {
			total := len(msg) + n
			if len(msg) == 0 {
				xid, _ := r.Peek(min(n, 4))
				msg = append(msg, xid...)
			}
			return msg, &oncrpc.RecordError{Len: total, Max: maxRecord}
		}
		have := len(msg)
		msg = append(msg, make([]byte, n)...)
		if _, err := io.ReadFull(r, msg[have:]); err != nil {
			return msg[:have], err
		}
		if last {
			return msg, nil
		}
	}
}
