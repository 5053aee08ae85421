package rpcserver

import (
	"context"

	"github.com/sluice-storage/sluice/transport"
)

// The owner of an RDMA connection (internal/owner) executes calls itself that hardly ever block: those whose data has just been
// read into this processor's cache, and brief ones that came whole. The methods here are what its engine asks.

// run owns the connection to its end, and returns when nothing of it is outstanding.
func (c *rdmaConn) run() error { return c.end(c.owner.Run(context.Background())) }

// Completed handles completions, those of a connection that has ended as any others.
func (c *rdmaConn) Completed(wcs []transport.WC, _ bool) error {
	for i := range wcs {
		c.complete(&wcs[i])
	}
	return nil
}

// Perform executes a call whose data is in place, or drops one that the connection's end has overtaken.
func (c *rdmaConn) Perform(r *rdmaCall, over bool) {
	switch {
	case over:
		c.drop(r.call)
	case r.call.life == lifeOwner: // it was classed already
		v, err := c.s.run(r.call)
		c.finish(r.call, v, err, false)
	default:
		c.execute(r, turnOwner)
	}
}

// PeakLocked is how many calls the client lately had here at once.
func (c *rdmaConn) PeakLocked() int { return c.peak }

// RestLocked sends what waits for company.
func (c *rdmaConn) RestLocked() { c.owner.FlushLocked() }

// HandedOff counts, and sends the replies that wait for company.
func (c *rdmaConn) HandedOff() {
	c.s.stats.handoffs.Add(1)
	c.mu.Lock()
	c.owner.FlushLocked()
	c.mu.Unlock()
}

// LateLocked sends the reply to the call that took so long: the new owner may be asleep.
func (c *rdmaConn) LateLocked() { c.owner.FlushLocked() }

// FailedLocked is told that something could not be posted.
func (c *rdmaConn) FailedLocked(err error) { c.unpostedLocked(err) }

// brief keeps a call for the owner to execute after this Poll, where it is the owner that has it.
func (r *rdmaCall) brief(at turn) bool {
	if at != turnPoll {
		return false
	}
	c := r.conn
	lives.Move(&r.call.life, lifeOwner)
	c.mu.Lock()
	c.owner.KeepLocked(r)
	c.mu.Unlock()
	return true
}
