package iscsi

import (
	"errors"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/transport"
)

// The owner of an iSER connection polls it, and performs the device requests that hardly ever block, writes into the page
// cache, itself (role.Role says why). It takes them up after the Poll that brought their data, one at a time, and looks
// at the queue pair in between.

// work is a device request that waits for the owner.
type work struct {
	by blockdev.Performer
	r  *blockdev.Request
}

// Defer implements blockdev.Deferrer. Only what is submitted while the owner handles completions is for the owner: it looks for
// work behind them.
func (t *task) Defer(by blockdev.Performer, r *blockdev.Request) bool {
	c := t.c
	c.mu.Lock()
	defer c.mu.Unlock()
	x, is := c.link.(*iserLink)
	if !is || !c.corked || x.dead {
		return false
	}
	x.works = append(x.works, work{by, r})
	return true
}

// own polls until the connection ends.
func (x *iserLink) own() error {
	over := make(chan error, 1)
	x.role.Init(blockTime, func() {
		x.c.uncork() // what waits for company
		if err, mine := x.loop(); mine {
			over <- err
		}
	})
	defer x.role.Stop()
	err, mine := x.loop()
	if !mine {
		err = <-over
	}
	return err
}

// loop is the owner's, until the connection ends or the role is lost.
func (x *iserLink) loop() (err error, mine bool) {
	c := x.c
	for busy := true; ; {
		n, err := x.qp.Poll(x.wc[:])
		switch {
		case n > 0:
			c.cork()
			for i := range x.wc[:n] {
				if e := x.completion(&x.wc[i]); e != nil {
					x.lastWords(e)
					// What else this Poll brought still has owners.
					for j := i + 1; j < n; j++ {
						x.abandon(&x.wc[j])
					}
					return e, true
				}
			}
		case err != nil:
			return x.ended(err), true
		case !busy:
			if err := x.qp.Wait(c.ctx); err != nil {
				if c.ctx.Err() != nil {
					return c.ctx.Err(), true
				}
				if !errors.Is(err, transport.ErrClosed) {
					return err, true
				}
			}
			continue
		}
		w, ok := x.turn()
		if busy = ok; ok {
			s := x.role.Enter()
			w.by.Perform(w.r)
			if !x.role.Leave(s) {
				return nil, false
			}
		}
	}
}

// turn sends what is due of what the owner has queued, all of it before the owner waits, and returns the next work.
func (x *iserLink) turn() (work, bool) {
	c := x.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(x.works) == 0 {
		c.corked = false
		x.flushLocked()
		return work{}, false
	}
	if x.dueLocked() {
		x.flushLocked()
	}
	return x.nextWorkLocked(), true
}

// dueLocked reports whether what is queued leaves although the owner will be back soon. Each Post costs a system call here
// and a wake-up there, so responses wait for company up to half of the commands that the initiator lately had here at
// once, and Reads while more than a quarter as many are under way, which keeps both sides at work.
func (x *iserLink) dueLocked() bool {
	peak := x.c.peak
	return len(x.q)-x.readsHeld >= min(maxTogether, (peak+1)/2) || x.readsHeld > 0 && 4*(x.reads-x.readsHeld) <= peak
}

func (x *iserLink) nextWorkLocked() work {
	w := x.works[0]
	n := copy(x.works, x.works[1:])
	x.works[n] = work{}
	x.works = x.works[:n]
	return w
}

// performAll performs what the connection's end has overtaken: the data had arrived. Nothing is added any more.
func (x *iserLink) performAll() {
	c := x.c
	c.mu.Lock()
	for len(x.works) > 0 {
		w := x.nextWorkLocked()
		c.mu.Unlock()
		w.by.Perform(w.r)
		c.mu.Lock()
	}
	c.mu.Unlock()
}
