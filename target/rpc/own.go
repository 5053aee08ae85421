package rpc

import (
	"context"
	"sync/atomic"
	"time"
)

// Prompter is a Program some of whose calls hardly ever block, although they may.
type Prompter interface {
	// Prompt reports such a call. It must not take from c.Args.
	Prompt(c *Call) bool
}

// ownership is the role of the goroutine that polls a connection. Who has it executes the calls whose data has just been
// placed, such as an UNSTABLE WRITE, itself: the data is still in this processor's cache, which halves what it costs to
// write, and nobody has to be woken. A call that blocks all the same costs the others no more than blockTime: then a
// deputy takes the role, and the goroutine that had it ends with its call.
type ownership struct {
	state  atomic.Uint64 // the number of the call being executed, times 2, and 1 while it is
	since  atomic.Int64  // when it began, nanoseconds after epoch
	epoch  time.Time
	armed  atomic.Bool
	deputy *time.Timer
}

// init arranges that take is called, on a goroutine of its own, by a deputy that has taken the role.
func (o *ownership) init(take func()) {
	o.epoch = time.Now()
	o.deputy = time.AfterFunc(time.Hour, func() { o.watch(take) })
	o.deputy.Stop()
}

// enter begins a call that may block; leave is to be given what it returns.
func (o *ownership) enter() uint64 {
	o.since.Store(int64(time.Since(o.epoch)))
	s := o.state.Add(1)
	if !o.armed.Swap(true) {
		o.deputy.Reset(blockTime)
	}
	return s
}

// leave ends it, and reports whether the caller still has the role.
func (o *ownership) leave(s uint64) bool { return o.state.CompareAndSwap(s, s+1) }

// watch takes the role if one and the same call has been executed for too long.
func (o *ownership) watch(take func()) {
	o.armed.Store(false)
	s := o.state.Load()
	if s&1 == 0 {
		return // the next call arms it again
	}
	if left := blockTime - (time.Since(o.epoch) - time.Duration(o.since.Load())); left > 0 {
		if !o.armed.Swap(true) {
			o.deputy.Reset(left)
		}
		return
	}
	if o.state.CompareAndSwap(s, s+1) {
		take()
	}
}

// run owns the connection to its end, itself or by deputies, and returns when nothing of it is outstanding.
func (c *rdmaConn) run() error {
	c.role.init(func() {
		c.s.stats.handovers.Add(1)
		c.mu.Lock()
		c.pushLocked() // what waits for company
		c.mu.Unlock()
		if err, mine := c.own(); mine {
			c.over <- err
		}
	})
	err, mine := c.own()
	if !mine {
		err = <-c.over
	}
	c.role.deputy.Stop()
	return c.end(err)
}

// own is the owner's loop, until the connection ends or the role is lost.
func (c *rdmaConn) own() (err error, mine bool) {
	for {
		n, err := c.qp.Poll(c.wcs[:])
		for i := range c.wcs[:n] {
			c.complete(&c.wcs[i])
		}
		c.mu.Lock()
		if c.placed == nil {
			c.pushLocked()
		} else {
			c.pushSomeLocked()
		}
		c.mu.Unlock()
		if err != nil {
			return err, true
		}
		if r := c.placed; r != nil {
			c.placed, r.next = r.next, nil
			if !c.executeOwn(r) {
				return nil, false
			}
			continue // what came meanwhile goes on before the next
		}
		if n == 0 {
			if err := c.qp.Wait(context.Background()); err != nil {
				return err, true
			}
		}
	}
}

// executeOwn executes a call whose data is in place. It reports whether the caller still owns the connection.
func (c *rdmaConn) executeOwn(r *rdmaCall) bool {
	s := c.role.enter()
	r.call.own = !c.s.opt.NoInline
	c.execute(r)
	if c.role.leave(s) {
		return true
	}
	c.mu.Lock()
	c.pushLocked() // the new owner may be asleep
	c.mu.Unlock()
	return false
}

// keepPlaced lists a call whose data is in place, in order.
func (c *rdmaConn) keepPlaced(r *rdmaCall) {
	p := &c.placed
	for *p != nil {
		p = &(*p).next
	}
	*p = r
}

// dropPlaced drops the calls that the connection's end has overtaken.
func (c *rdmaConn) dropPlaced() {
	for c.placed != nil {
		r := c.placed
		c.placed, r.next = r.next, nil
		c.drop(r.call)
	}
}
