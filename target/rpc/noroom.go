package rpc

import (
	"errors"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/mem"
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
	if errors.Is(err, mem.ErrNoRoom) {
		c.noRoom(err)
	}
	go func() { _ = c.qp.Close(transport.Reason{Err: err}) }() // its owner sees the end
}

// noRoom logs why a connection ends.
func (c *rdmaConn) noRoom(err error) {
	c.s.log.Warn("RDMA connection ended: there is no room for its memory", zap.Stringer("client", c.peer.Addr.Addr()), zap.Error(err))
}
