package rpcserver

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
	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/internal/sockio"
)

// ServeTCP takes connections from l until Close. It closes l. The listener may be of any stream network.
func (s *Server) ServeTCP(l net.Listener) error {
	if !s.track(l) {
		_ = l.Close()
		return ErrServerClosed
	}
	defer s.untrack(l)
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
		c := s.newStream(nc)
		if !s.admit(c, c.peer.Addr.Addr(), &c.connState) {
			_ = nc.Close()
			continue
		}
		s.stats.connections.Add(1)
		go c.serve()
	}
}

// stream is one connection in record marking (RFC 5531 section 11).
type stream struct {
	connState
	s    *Server
	nc   net.Conn
	raw  syscall.RawConn // nil where the connection has no descriptor
	peer Peer

	buf   []byte // look-ahead: buf[r:w] is unread
	r, w  int
	ahead int // how far to look ahead, bytes: no further than the next header while records are bulky

	sock *sockio.Reader // nil without raw
	iovs [2]unix.Iovec  // of one read

	slots    chan struct{} // one for each call in flight
	inFlight sync.WaitGroup
	held     atomic.Int64  // bytes of results in replies that are not written yet
	room     chan struct{} // told when held shrinks
	dead     chan struct{} // closed when no reply can be sent any more
	die      func()        // closes it, once

	out    outQueue
	pipes  pipes
	serial serialQueue
	later  laterQueue

	// What the watch looks at.
	records               atomic.Uint64 // begun
	partial               atomic.Uint64 // the number of the record that is being read beyond the look-ahead, 0 for none
	idle, reading, unread still
}

func (s *Server) newStream(nc net.Conn) *stream {
	c := &stream{s: s, nc: nc, buf: make([]byte, readAhead), ahead: readAhead, slots: make(chan struct{}, maxInFlight), room: make(chan struct{}, 1)}
	c.peer.state, c.who = &c.connState, &c.peer
	c.peer.slots.Store(maxInFlight)
	c.peer.Addr, c.peer.Local = addrPort(nc.RemoteAddr()), addrPort(nc.LocalAddr())
	if raw := sockio.Raw(nc); raw != nil {
		c.raw, c.sock = raw, sockio.NewReader(raw)
		if !s.opt.KeepPacing {
			unpace(raw, c.peer.Addr, c.peer.Local)
		}
	}
	c.out.init(c)
	c.pipes.s = s
	c.serial.c = c
	c.later.c, c.later.eased = c, make(chan struct{}, 1)
	c.dead = make(chan struct{})
	c.die = sync.OnceFunc(func() { close(c.dead) })
	return c
}

// Close ends the connection, for Server.Close.
func (c *stream) Close() error { return c.nc.Close() }

// serve reads calls to the connection's end.
func (c *stream) serve() {
	s, nc := c.s, c.nc
	err := c.readLoop()
	c.noMore.Store(true)
	if errors.Is(err, io.EOF) {
		// The peer has said all; it may still be listening, but not for ever.
		_ = nc.SetWriteDeadline(time.Now().Add(lingerTime))
		defer time.AfterFunc(lingerTime, c.die).Stop() // what waits for room until then is not answered any more
	} else {
		c.lost.Store(true)
		c.die()
		_ = nc.Close()
	}
	c.out.flush()
	c.inFlight.Wait()
	c.later.end()
	c.serial.end()
	c.out.end()
	c.pipes.end()
	_ = nc.Close()
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		s.log.Info("an RPC connection ended", zap.Stringer("peer", c.peer.Addr), zap.Error(err))
	}
	s.leave(c, &c.connState)
}

// gone reports that the peer is not there to be answered.
func (c *stream) gone() bool { return c.lost.Load() || c.out.broken.Load() }

// peerGone asks the socket, because the end of a connection lies behind requests that are not read yet.
func (c *stream) peerGone() bool {
	if c.raw == nil {
		return false
	}
	gone := false
	err := c.raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		gone = err == nil && info.State != unix.BPF_TCP_ESTABLISHED
	})
	return gone || err != nil
}

// look closes a connection that is idle, whose peer has begun a record and does not end it, or does not take its replies.
func (c *stream) look(now time.Time) {
	n := c.records.Load()
	why := ""
	switch idle := c.idle.forTime(n, now); {
	case idle >= idleTime && len(c.slots) == 0 && c.partial.Load() == 0:
		why = "it was idle"
	case c.reading.forTime(c.partial.Load(), now) >= recordTime && c.partial.Load() != 0:
		why = "a record was begun and not ended"
	case c.unread.forTime(c.out.written.Load(), now) >= unreadTime && c.out.waits.Load():
		why = "replies were not taken"
	default:
		return
	}
	c.s.refuse(refOverdue)
	c.s.log.Info("an RPC connection is closed", zap.Stringer("peer", c.peer.Addr), zap.String("why", why))
	_ = c.nc.Close()
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
		c.s.settle(c, &c.connState)
		c.records.Add(1)
		c.slots <- struct{}{} // given back when the reply is out
		c.inFlight.Add(1)
		sc := c.newStreamCall()
		err = c.readRecord(sc, n, last)
		c.partial.Store(0)
		if err != nil {
			sc.drop()
			return err
		}
		// Replies wait for company while the next call is here already.
		more := c.w-c.r >= oncrpc.MarkLen && len(c.slots) < maxInFlight
		queued, err := c.s.handle(&sc.call, turnReader, !more)
		if err != nil {
			return err
		}
		if !more && !queued {
			c.out.flush()
		}
		if c.out.broken.Load() {
			return net.ErrClosed // no client is there for what is in the look-ahead
		}
		// A client that asks for much and reads nothing is not read from either.
		for c.held.Load() > maxHeld {
			c.out.flush()
			<-c.room
		}
	}
}

// readRecord takes a record into call.msg. What is not in the look-ahead yet is read to its place at once.
func (c *stream) readRecord(sc *streamCall, n int, last bool) error {
	call := &sc.call
	have := 0
	for frags := 1; ; frags++ {
		if n > MaxRecord-have || frags > maxFragments {
			c.s.refuse(refRecord)
			return &oncrpc.RecordError{Len: have + n, Max: MaxRecord}
		}
		if !c.makeRoom(sc, have+n, last) {
			return net.ErrClosed
		}
		if have+n > c.w-c.r {
			c.partial.Store(c.records.Load())
		}
		if frags == 1 && last && n >= bulkRecord {
			call.growBulk(n)
		} else {
			call.grow(have, have+n)
		}
		c.lookAhead(n)
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

// makeRoom waits for room for a record that is n bytes long so far. A record of several fragments takes all that it could
// need at once: two that have a part each could wait for one another.
func (c *stream) makeRoom(sc *streamCall, n int, last bool) bool {
	if n <= inlineBody || sc.room > 0 {
		return true
	}
	if !last {
		n = MaxRecord
	}
	return c.takeRoom(sc, int64(n))
}

// lookAhead decides how far to look ahead behind a fragment of n bytes. Bulk data comes in powers of two behind a header
// whose length does not change much: what is beyond the next header is left in the socket, and read to its place.
func (c *stream) lookAhead(n int) {
	switch header := n % pageSize; {
	case n < bulkRecord:
		c.ahead = readAhead
	case header <= maxHeader:
		c.ahead = oncrpc.MarkLen + header
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
	for c.w-c.r < oncrpc.MarkLen {
		c.w = copy(c.buf, c.buf[c.r:c.w])
		c.r = 0
		k, err := c.read(nil, c.buf[c.w:max(c.ahead, oncrpc.MarkLen)])
		c.w += k
		if err != nil {
			if errors.Is(err, io.EOF) && c.w > c.r {
				err = io.ErrUnexpectedEOF
			}
			return 0, false, err
		}
	}
	n, last = oncrpc.ParseMark(c.buf[c.r:])
	c.r += oncrpc.MarkLen
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

// read reads once, into b and then into ahead. Replies that wait for company leave before: the rest of a record that was begun may be long in coming.
func (c *stream) read(b, ahead []byte) (int, error) {
	c.out.flush()
	if c.raw == nil {
		if len(b) > 0 {
			return c.nc.Read(b)
		}
		return c.nc.Read(ahead)
	}
	return c.sock.Read(sockio.Append(sockio.Append(c.iovs[:0], b), ahead))
}

// letGo is told that n bytes of result are no longer held.
func (c *stream) letGo(n int) {
	c.held.Add(-int64(n))
	for _, told := range [...]chan struct{}{c.room, c.later.eased} {
		select {
		case told <- struct{}{}:
		default:
		}
	}
}

// ended counts a call as answered.
func (c *stream) ended() {
	<-c.slots
	c.inFlight.Done()
}
