package rpcserver

import (
	"sync"

	"github.com/sluice-storage/sluice/internal/role"
)

// lane executes a stream's short calls that hardly ever block, such as UNSTABLE WRITEs of a few pages, one after another on
// one worker, and sends the replies of those that came together together. Each on a worker of its own would cost a wake-up
// and a system call a reply, and those that write one file wait for one another in the kernel all the same. One that blocks
// costs those behind it no more than blockTime, see role.Role.
type lane struct {
	c    *stream
	role role.Role

	mu         sync.Mutex
	head, tail *Call
	made       bool
	running    bool // somebody executes, or is about to
}

// add queues a call.
func (l *lane) add(c *Call) {
	c.next = nil
	l.mu.Lock()
	if !l.made {
		l.made = true
		l.role.Init(blockTime, l.handOver)
	}
	if l.running {
		if l.tail != nil {
			l.tail.next = c
		} else {
			l.head = c
		}
		l.tail = c
		l.mu.Unlock()
		return
	}
	l.running = true
	l.mu.Unlock()
	l.submit(c)
}

func (l *lane) submit(c *Call) {
	l.c.s.pool.submit(c)
}

// next returns the next call to be executed by whoever has the role, who loses it where there is none.
func (l *lane) next() *Call {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.head
	if c == nil {
		l.running = false
		return nil
	}
	if l.head = c.next; l.head == nil {
		l.tail = nil
	}
	c.next = nil
	return c
}

// run executes c and those behind it on a worker.
func (l *lane) run(c *Call) {
	for c != nil {
		s := l.role.Enter()
		v := Drop
		var err error
		if !c.from.gone() {
			v, err = l.c.s.run(c)
		}
		var next *Call
		if l.role.Leave(s) {
			next = l.next()
		} // or else a deputy has the rest
		c.from.finish(v, err, next == nil)
		if v == Drop && next == nil {
			l.c.out.flush()
		}
		c = next
	}
}

// handOver goes on with the calls behind one that blocks.
func (l *lane) handOver() {
	l.c.s.stats.handovers.Add(1)
	l.c.out.flush() // what waits for company
	if c := l.next(); c != nil {
		l.submit(c)
	}
}

// end is called when no call of the stream is left.
func (l *lane) end() {
	if l.made {
		l.role.Stop()
	}
}
