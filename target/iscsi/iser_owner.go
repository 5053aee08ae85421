package iscsi

import (
	"errors"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/devicework"
	"github.com/sluice-storage/sluice/internal/owner"
	"github.com/sluice-storage/sluice/transport"
)

// The owner of an iSER connection (internal/owner) performs what hardly ever blocks itself: behind the Poll that brought the commands or
// their data, one at a time. That is writes into the page cache, and the system call that hands to the kernel what a device has begun
// for this and other connections. The methods here are what the engine asks.

// Defer implements blockdev.Deferrer. Only what is submitted while the owner handles completions is for the owner: it looks for
// work behind them.
func (t *task) Defer(by blockdev.Performer, r *blockdev.Request) bool {
	c := t.c
	c.mu.Lock()
	defer c.mu.Unlock()
	x, is := c.datamover.(*iserDatamover)
	if !is || !c.corked || x.owner.OverLocked() {
		return false
	}
	owner.KeepOnceLocked(&x.owner, devicework.Work{By: by, Request: r})
	return true
}

// Flush implements blockdev.Flusher: what device requests that ended have led to leaves, unless the owner will see to it.
func (c *conn) Flush() {
	c.mu.Lock()
	c.kickLocked()
	c.mu.Unlock()
}

// own polls until the connection ends, and says why it did.
func (x *iserDatamover) own() error {
	err := x.owner.Run(x.c.ctx)
	if errors.Is(err, transport.ErrClosed) {
		return x.ended(err)
	}
	return err
}

// Completed handles completions, of which one may break a rule: what else came with it still has owners.
func (x *iserDatamover) Completed(wcs []transport.WC, over bool) error {
	if !over {
		x.c.cork()
	}
	var broken error
	for i := range wcs {
		if over || broken != nil {
			x.abandon(&wcs[i])
		} else if broken = x.completion(&wcs[i]); broken != nil {
			x.lastWords(broken)
		}
	}
	return broken
}

// Perform performs a request, also one that the connection's end has overtaken.
func (x *iserDatamover) Perform(w devicework.Work, over bool) {
	if over {
		x.overtaken.Perform(w)
		return
	}
	w.Perform()
}

// PeakLocked is how many commands the initiator lately had here at once.
func (x *iserDatamover) PeakLocked() int { return x.c.peak }

// RestLocked sends all that waits for company.
func (x *iserDatamover) RestLocked() {
	x.c.corked = false
	x.flushLocked()
}

// HandedOff sends what waits for company.
func (x *iserDatamover) HandedOff() { x.c.uncork() }

// LateLocked has nothing to do: the response has left, or leaves when the new owner has handled its completions.
func (x *iserDatamover) LateLocked() {}

// FailedLocked ends the connection.
func (x *iserDatamover) FailedLocked(err error) { x.failLocked(err) }
