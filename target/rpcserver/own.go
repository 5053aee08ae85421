package rpcserver

import (
	"context"
)

// run owns the connection to its end, itself or by deputies, and returns when nothing of it is outstanding.
func (c *rdmaConn) run() error {
	c.role.Init(blockTime, func() {
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
	c.role.Stop()
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
	s := c.role.Enter()
	if r.call.life == lifeOwner {
		v, err := c.s.run(r.call)
		c.finish(r.call, v, err, false)
	} else {
		c.execute(r, turnOwner)
	}
	if c.role.Leave(s) {
		return true
	}
	c.mu.Lock()
	c.pushLocked() // the new owner may be asleep
	c.mu.Unlock()
	return false
}

// brief lists a call for the owner to execute after this Poll, where it is the owner that has it.
func (r *rdmaCall) brief(at turn) bool {
	if at != turnPoll {
		return false
	}
	lives.Move(&r.call.life, lifeOwner)
	r.conn.keepPlaced(r)
	return true
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
