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
	"unsafe"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

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

	buf   []byte // look-ahead: buf[r:w] is unread
	r, w  int
	ahead int // how far to look ahead, bytes: no further than the next header while records are bulky

	// One read: the descriptor's part of it, in and out.
	iovs    [2]unix.Iovec
	nIovs   int
	got     int
	readErr syscall.Errno
	try     func(fd uintptr) bool

	slots    chan struct{} // one for each call in flight
	inFlight sync.WaitGroup
	held     atomic.Int64  // bytes of results that are not written yet
	room     chan struct{} // told when held shrinks

	out   outQueue
	pipes pipes
	lane  lane
}

func (s *Server) serveStream(nc net.Conn) {
	c := &stream{s: s, nc: nc, buf: make([]byte, readAhead), ahead: readAhead, slots: make(chan struct{}, maxInFlight), room: make(chan struct{}, 1)}
	c.peer.Addr, c.peer.Local = addrPort(nc.RemoteAddr()), addrPort(nc.LocalAddr())
	if sc, ok := nc.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			c.raw = raw
			if !s.opt.KeepPacing {
				unpace(raw, c.peer.Addr, c.peer.Local)
			}
		}
	}
	c.try = c.readv
	c.out.init(c)
	c.pipes.s = s
	c.lane.c = c
	err := c.readLoop()
	if errors.Is(err, io.EOF) {
		// The peer has said all; it may still be listening, but not for ever.
		_ = nc.SetWriteDeadline(time.Now().Add(lingerTime))
	} else {
		_ = nc.Close()
	}
	c.out.flush()
	c.inFlight.Wait()
	c.lane.end()
	c.out.end()
	c.pipes.end()
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
		if frags == 1 && last && n >= bulkRecord {
			call.growBulk(n)
		} else {
			call.grow(have, have+n)
		}
		c.look(n)
		k, err := c.readFull(call.msg[have : have+n])
		if err != nil {
			return err
		}
		call.copied += k
		have += n
		if last {
			c.s.stats.bytesIn.Add(uint64(have))
			return nil
		}
		if n, last, err = c.readMark(); err != nil {
			return err
		}
	}
}

// look decides how far to look ahead behind a fragment of n bytes. Bulk data comes in powers of two behind a header
// whose length does not change much: what is beyond the next header is left in the socket, and read to its place.
func (c *stream) look(n int) {
	switch header := n % pageSize; {
	case n < bulkRecord:
		c.ahead = readAhead
	case header <= maxHeader:
		c.ahead = rpc.MarkLen + header
	default:
		c.ahead = maxHeader
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

// growBulk makes msg n bytes long, so that it ends with a page: then so does the data of a WRITE, and what is whole pages
// of it is copied to whole pages of the file.
func (c *Call) growBulk(n int) {
	skew := -n & (bodyAlign - 1)
	c.body = getBytes(skew + n)
	c.msg = (*c.body)[skew : skew+n]
}

func (c *stream) readMark() (n int, last bool, err error) {
	for c.w-c.r < rpc.MarkLen {
		c.w = copy(c.buf, c.buf[c.r:c.w])
		c.r = 0
		k, err := c.read(nil, c.buf[c.w:max(c.ahead, rpc.MarkLen)])
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

// readFull fills b, and the look-ahead with what comes behind it. copied is how much of b the look-ahead had.
func (c *stream) readFull(b []byte) (copied int, err error) {
	copied = copy(b, c.buf[c.r:c.w])
	c.r += copied
	b = b[copied:]
	for len(b) > 0 {
		k, err := c.read(b, c.buf[:c.ahead])
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return copied, err
		}
		c.r, c.w = 0, max(k-len(b), 0)
		b = b[min(k, len(b)):]
	}
	return copied, nil
}

// read reads once, into b and then into ahead.
func (c *stream) read(b, ahead []byte) (int, error) {
	if c.raw == nil {
		if len(b) > 0 {
			return c.nc.Read(b)
		}
		return c.nc.Read(ahead)
	}
	k := 0
	for _, v := range [2][]byte{b, ahead} {
		if len(v) > 0 {
			c.iovs[k].Base = unsafe.SliceData(v)
			c.iovs[k].SetLen(len(v))
			k++
		}
	}
	c.nIovs = k
	if err := c.raw.Read(c.try); err != nil {
		return 0, err
	}
	switch {
	case c.readErr != 0:
		return 0, c.readErr
	case c.got == 0:
		return 0, io.EOF
	}
	return c.got, nil
}

// readv is the function that raw.Read calls with the descriptor: false makes it wait until there is something.
func (c *stream) readv(fd uintptr) bool {
	for {
		n, _, e := syscall.Syscall(unix.SYS_READV, fd, uintptr(unsafe.Pointer(&c.iovs[0])), uintptr(c.nIovs))
		switch e {
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
			return false
		}
		c.got, c.readErr = int(n), e
		return true
	}
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
