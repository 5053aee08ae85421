package rpcserver

import (
	"errors"
	"maps"
	"net/netip"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// postRecvLocked posts receives that the client counts on.
func (c *rdmaConn) postRecvLocked(rs []transport.Recv) {
	_, err := c.qp.PostRecv(rs)
	c.unpostedLocked(err)
}

// unpostedLocked ends the connection where err kept something from being posted that its client was promised, or waits for, and nothing
// will make up for it: an adapter may have to register memory as it is used (transport.QPOptions.Slim) and have no room for it. Where
// the queue is full a completion is to come, and where the connection is ending Poll tells.
func (c *rdmaConn) unpostedLocked(err error) {
	if err == nil || c.unposted {
		return
	}
	for _, other := range []error{transport.ErrQueueFull, transport.ErrTooManyReads, transport.ErrClosed, transport.ErrLost} {
		if errors.Is(err, other) {
			return
		}
	}
	c.unposted = true
	c.owner.StopLocked()
	if errors.Is(err, mem.ErrNoRoom) {
		c.crowd.add(c.peer.Addr.Addr())
		c.s.log.Warn("RDMA connection ended: there is no room for its memory", zap.Stringer("client", c.peer.Addr.Addr()), zap.Error(err))
	}
	go func() { _ = c.qp.Close(transport.Reason{Err: err}) }() // its owner sees the end
}

// widen gives the connection of a client that has shown a right all memory. Where there is no room it goes on with what it uses.
func (c *rdmaConn) widen(w transport.Widener) {
	switch err := w.Widen(); {
	case errors.Is(err, mem.ErrNoRoom):
		c.s.log.Warn("RDMA connection goes on with the memory that it uses: there is no room for all", zap.Stringer("client", c.peer.Addr.Addr()), zap.Error(err))
	case err != nil:
		c.s.log.Debug("RDMA connection was not given all memory", zap.Stringer("client", c.peer.Addr.Addr()), zap.Error(err)) // it is ending
	}
}

var errNoRoom = errors.New("rpc: a moment ago there was no room for the memory of this client's connection")

// crowd are the clients that are refused for a moment.
type crowd struct {
	mu    sync.Mutex
	until map[netip.Addr]time.Time
}

func (l *crowd) add(a netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(l.until, func(_ netip.Addr, until time.Time) bool { return !now.Before(until) })
	if l.until == nil {
		l.until = make(map[netip.Addr]time.Time)
	}
	l.until[a] = now.Add(roomTime)
}

func (l *crowd) has(a netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Now().Before(l.until[a])
}
