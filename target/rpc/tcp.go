package rpc

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/rpc"
)

// ServeTCP takes connections from l until Close. It closes l. The listener may be of any stream network.
func (s *Server) ServeTCP(l net.Listener) error {
	if !s.track(l, false) {
		_ = l.Close()
		return ErrServerClosed
	}
	defer s.untrack(l, false)
	defer func() { _ = l.Close() }()
	for {
		nc, err := l.Accept()
		if err != nil {
			if s.isClosed() || errors.Is(err, net.ErrClosed) {
				return ErrServerClosed
			}
			var ne net.Error
			if errors.As(err, &ne) && ne.Timeout() || errors.Is(err, syscall.ECONNABORTED) || errors.Is(err, syscall.EMFILE) {
				s.log.Warn("a connection could not be accepted", zap.Error(err))
				time.Sleep(acceptPause)
				continue
			}
			return err
		}
		if !s.track(nc, true) {
			_ = nc.Close()
			if !s.isClosed() {
				s.refuse(refConnections)
			}
			continue
		}
		s.stats.connections.Add(1)
		go s.serveStream(nc)
	}
}

// stream is one connection in record marking (RFC 5531 section 11).
type stream struct {
	s    *Server
	nc   net.Conn
	raw  syscall.RawConn // nil where the connection has no descriptor
	peer Peer

	buf  []byte // look-ahead: buf[r:w] is unread
	r, w int

	slots    chan struct{} // one for each call in flight
	inFlight sync.WaitGroup
	held     atomic.Int64  // bytes of results that are not written yet
	room     chan struct{} // told when held shrinks

	out outQueue
}

func (s *Server) serveStream(nc net.Conn) {
	c := &stream{s: s, nc: nc, buf: make([]byte, readAhead), slots: make(chan struct{}, maxInFlight), room: make(chan struct{}, 1)}
	c.peer.Addr, c.peer.Local = addrPort(nc.RemoteAddr()), addrPort(nc.LocalAddr())
	if sc, ok := nc.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			c.raw = raw
		}
	}
	c.out.init(c)
	err := c.readLoop()
	if errors.Is(err, io.EOF) {
		// The peer has said all; it may still be listening, but not for ever.
		_ = nc.SetWriteDeadline(time.Now().Add(lingerTime))
	} else {
		_ = nc.Close()
	}
	c.out.flush()
	c.inFlight.Wait()
	c.out.wait()
	_ = nc.Close()
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		s.log.Info("an RPC connection ended", zap.Stringer("peer", c.peer.Addr), zap.Error(err))
	}
	s.untrack(nc, true)
}

func addrPort(a net.Addr) netip.AddrPort {
	if a == nil {
		return netip.AddrPort{}
	}
	if t, ok := a.(*net.TCPAddr); ok {
		ap := t.AddrPort()
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	}
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

func (c *stream) readLoop() error {
	for {
		n, last, err := c.readMark()
		if err != nil {
			return err
		}
		c.slots <- struct{}{} // given back when the reply is out
		c.inFlight.Add(1)
		call := c.s.newCall(c, &c.peer)
		if err := c.readRecord(call, n, last); err != nil {
			c.drop(call)
			return err
		}
		// Replies wait for company while the next call is here already.
		more := c.w-c.r >= rpc.MarkLen && len(c.slots) < maxInFlight
		queued, err := c.s.handle(call, !more)
		if err != nil {
			return err
		}
		if !more && !queued {
			c.out.flush()
		}
		if c.out.broken.Load() {
			return net.ErrClosed // what is in the look-ahead would be executed for nobody
		}
		// A client that asks for much and reads nothing is not read from either.
		for c.held.Load() > maxHeld {
			c.out.flush()
			<-c.room
		}
	}
}

// readRecord takes a record into call.msg. What is not in the look-ahead yet is read to its place at once.
func (c *stream) readRecord(call *Call, n int, last bool) error {
	have := 0
	for frags := 1; ; frags++ {
		if n > MaxRecord-have || frags > maxFragments {
			c.s.refuse(refRecord)
			return &rpc.RecordError{Len: have + n, Max: MaxRecord}
		}
		call.grow(have, have+n)
		if err := c.readFull(call.msg[have : have+n]); err != nil {
			return err
		}
		have += n
		if last {
			c.s.stats.bytesIn.Add(uint64(have))
			return nil
		}
		var err error
		if n, last, err = c.readMark(); err != nil {
			return err
		}
	}
}

// grow makes msg n bytes long and keeps the first have.
func (c *Call) grow(have, n int) {
	switch {
	case c.body != nil && n <= len(*c.body):
		c.msg = (*c.body)[:n]
	case c.body == nil && n <= len(c.small):
		c.msg = c.small[:n]
	default:
		old, oldBody := c.msg, c.body
		c.body = getBytes(n)
		c.msg = (*c.body)[:n]
		copy(c.msg, old[:have])
		if oldBody != nil {
			putBytes(oldBody)
		}
	}
}

func (c *stream) readMark() (n int, last bool, err error) {
	for c.w-c.r < rpc.MarkLen {
		if c.r == c.w {
			c.r, c.w = 0, 0
		} else if len(c.buf)-c.r < rpc.MarkLen {
			c.w = copy(c.buf, c.buf[c.r:c.w])
			c.r = 0
		}
		k, err := c.nc.Read(c.buf[c.w:])
		c.w += k
		if err != nil {
			if errors.Is(err, io.EOF) && c.w > c.r {
				err = io.ErrUnexpectedEOF
			}
			return 0, false, err
		}
	}
	n, last = rpc.ParseMark(c.buf[c.r:])
	c.r += rpc.MarkLen
	return n, last, nil
}

func (c *stream) readFull(b []byte) error {
	k := copy(b, c.buf[c.r:c.w])
	c.r += k
	b = b[k:]
	if len(b) == 0 {
		return nil
	}
	// Small rests come with look-ahead, large ones straight to their place.
	if len(b) < readAhead/8 {
		for len(b) > 0 {
			c.r = 0
			n, err := c.nc.Read(c.buf)
			c.w = n
			k := copy(b, c.buf[:n])
			c.r = k
			b = b[k:]
			if err != nil && len(b) > 0 {
				return err
			}
		}
		return nil
	}
	_, err := io.ReadFull(c.nc, b)
	return err
}

func (c *stream) sinkFor(call *Call, n int) ([][]byte, error) {
	call.plain = getBytes(max(n, 1))
	c.held.Add(int64(len(*call.plain)))
	call.sinkArr[0] = (*call.plain)[:n]
	return call.sinkArr[:1], nil
}

func (c *stream) reply(call *Call, flush bool) { c.out.send(call, flush) }

func (c *stream) drop(call *Call) {
	call.release()
	c.ended()
}

// letGo is told that n bytes of result are no longer held.
func (c *stream) letGo(n int) {
	c.held.Add(-int64(n))
	select {
	case c.room <- struct{}{}:
	default:
	}
}

// ended counts a call as answered.
func (c *stream) ended() {
	<-c.slots
	c.inFlight.Done()
}
