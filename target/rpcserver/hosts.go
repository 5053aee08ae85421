package rpcserver

import (
	"io"
	"net/netip"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// conn is a connection, whatever its transport.
type conn interface {
	io.Closer
	// peerGone asks the transport whether the peer has ended the connection, which its reader may not have come to yet.
	peerGone() bool
	// look is called by the watch every watchTick, and closes a connection that is overdue.
	look(now time.Time)
}

// connState is what the server keeps of a connection.
type connState struct {
	host     *host
	who      *Peer
	believed atomic.Pointer[time.Time] // until when what its client has shown on another connection counts here (trust.go)
	addr     netip.Addr                // its own, of those that count as the host's
	// lost says that what it has queued and no worker has begun is not to be executed: its client asks again, perhaps on
	// another connection, and the late execution could undo what came after that.
	lost   atomic.Bool
	noMore atomic.Bool   // no more calls will come
	over   chan struct{} // closed when nothing of it is executed any more
	first  bool          // settle has been called
	late   bool          // it was waited for in vain; guarded by the server's lock

	proved func() // its peer has shown a right; nil where nothing follows from that

	born   uint64 // later for each connection
	second bool   // its host had another when its first call came
	early  atomic.Int32
}

// host is what the connections of one client have in common.
type host struct {
	addr  netip.Addr
	conns map[conn]*connState

	room, strangers room // of requests: of its streams, and of those whose peers have shown no right
	results         room // of its streams
	fabric          room // registered memory of its RDMA connections

	memo   atomic.Pointer[any] // the program's (Peer.HostMemo)
	claims atomic.Pointer[claims]
}

// hostOf is the address whose connections may be one client's: a host with IPv6 may come back by another address of its network
// of 64 bits. It may be other machines' too.
func hostOf(a netip.Addr) netip.Addr {
	a = a.Unmap().WithZone("")
	if a.Is6() {
		if p, err := a.Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return a
}

// admit takes a connection into the server's books and makes Close close it. It reports false when the server is closed, or
// when there are too many connections, in all, of that address or of its network.
func (s *Server) admit(c conn, a netip.Addr, st *connState) bool {
	st.addr = a.Unmap().WithZone("")
	a = hostOf(a)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	h := s.hosts[a]
	if s.conns >= maxConns || h != nil && a.IsValid() && h.full(st.addr) {
		s.refuse(refConnections)
		return false
	}
	if h == nil {
		h = &host{addr: a, conns: make(map[conn]*connState)}
		h.room.max, h.strangers.max, h.results.max = s.room.max/2, s.room.max/4, s.results.max/2
		h.fabric.max = s.hostFabric
		s.hosts[a] = h
	}
	s.born++
	st.host, st.over, st.born = h, make(chan struct{}), s.born
	s.believeLocked(st)
	h.conns[c] = st
	s.closers[c] = struct{}{}
	s.conns++
	s.wg.Add(1)
	if !s.watched {
		s.watched = true
		s.watch.Go(s.watchConns)
	}
	return true
}

// full reports that one more connection from an address would be too many.
func (h *host) full(a netip.Addr) bool {
	n := 0
	for _, st := range h.conns {
		if st.addr == a {
			n++
		}
	}
	return n >= maxHostConns || len(h.conns) >= maxNetConns
}

// leave is the end of a connection of which nothing is executed any more.
func (s *Server) leave(c conn, st *connState) {
	s.mu.Lock()
	delete(s.closers, c)
	delete(st.host.conns, c)
	if len(st.host.conns) == 0 {
		delete(s.hosts, st.host.addr)
	}
	s.conns--
	s.rememberLocked(st)
	close(st.over)
	s.mu.Unlock()
	s.wg.Done()
}

// settle lets a new connection of a host wait for the calls of those that its peer has left, before its own first call. A
// client that lost a connection repeats on the next one what was not answered, and goes on: a WRITE of the old connection
// that is executed only then would undo a newer one. The wait has an end, because a medium may hang.
func (s *Server) settle(c conn, st *connState) {
	if st.first {
		return
	}
	st.first = true
	s.mu.Lock()
	var left []*connState
	for o, os := range st.host.conns {
		st.second = st.second || os.born < st.born
		if o != c && !os.late && (os.noMore.Load() || o.peerGone()) {
			left = append(left, os)
		}
	}
	s.mu.Unlock()
	if len(left) == 0 {
		return
	}
	t := time.NewTimer(settleTime)
	defer t.Stop()
	for _, o := range left {
		select {
		case <-o.over:
			continue
		case <-s.ending:
			return
		case <-t.C:
		}
		// What is queued is not begun any more, and what was begun asks before it overwrites (Superseded): nothing is gained
		// where the next connections wait as well.
		s.mu.Lock()
		for _, o := range left {
			o.lost.Store(true)
			o.late = true
		}
		s.mu.Unlock()
		s.log.Warn("calls of a connection that its client has left are still being executed; what it has queued is dropped",
			zap.Stringer("host", st.host.addr))
		return
	}
}

// watchConns looks at all connections until the server is closed.
func (s *Server) watchConns() {
	t := time.NewTicker(watchTick)
	defer t.Stop()
	var l []conn
	for {
		select {
		case <-s.ending:
			return
		case now := <-t.C:
			l = l[:0]
			s.mu.Lock()
			for _, h := range s.hosts {
				for c := range h.conns {
					l = append(l, c)
				}
			}
			s.mu.Unlock()
			for _, c := range l {
				c.look(now)
			}
		}
	}
}

// still tells for how long a number has been what it is.
type still struct {
	n     uint64
	since time.Time
}

// forTime takes the number as it is now.
func (s *still) forTime(n uint64, now time.Time) time.Duration {
	if n != s.n || s.since.IsZero() {
		s.n, s.since = n, now
	}
	return now.Sub(s.since)
}
