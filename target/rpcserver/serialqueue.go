package rpcserver

import (
	"sync"

	"github.com/sluice-storage/sluice/internal/owner"
)

// serialQueue executes a stream's short calls that hardly ever block, such as UNSTABLE WRITEs of a few pages, one after another
// on one worker, and sends the replies of those that came together together. Each on a worker of its own would cost a wake-up
// and a system call a reply, and those that write one file wait for one another in the kernel all the same. One that blocks
// costs those behind it no more than owner.BlockTime: then another worker has the queue.
type serialQueue struct {
	c       *stream
	handoff owner.Handoff

	mu         sync.Mutex
	head, tail *Call
	made       bool
	running    bool // a worker executes calls of it, or is about to
}

// add queues a call.
func (q *serialQueue) add(c *Call) {
	c.next = nil
	q.mu.Lock()
	if !q.made {
		q.made = true
		q.handoff.Init(owner.BlockTime, q.handOff)
	}
	if q.running {
		if q.tail != nil {
			q.tail.next = c
		} else {
			q.head = c
		}
		q.tail = c
		q.mu.Unlock()
		return
	}
	q.running = true
	q.mu.Unlock()
	q.submit(c)
}

func (q *serialQueue) submit(c *Call) {
	q.c.s.pool.submit(c)
}

// take returns the next call to be executed by the worker that has the queue, which has it no more where there is none.
func (q *serialQueue) take() *Call {
	q.mu.Lock()
	defer q.mu.Unlock()
	c := q.head
	if c == nil {
		q.running = false
		return nil
	}
	if q.head = c.next; q.head == nil {
		q.tail = nil
	}
	c.next = nil
	return c
}

// run executes c and those behind it on a worker.
func (q *serialQueue) run(c *Call) {
	for c != nil {
		s := q.handoff.Enter()
		v := Drop
		var err error
		if !c.from.gone() {
			v, err = q.c.s.run(c)
		}
		var next *Call
		if q.handoff.Leave(s) {
			next = q.take()
		} // or else another worker has the rest
		c.from.finish(v, err, next == nil)
		if (v == Drop || v == Later) && next == nil {
			q.c.out.flush()
		}
		c = next
	}
}

// handOff goes on with the calls behind one that blocks.
func (q *serialQueue) handOff() {
	q.c.s.stats.handoffs.Add(1)
	q.c.out.flush() // what waits for company
	if c := q.take(); c != nil {
		q.submit(c)
	}
}

// end is called when no call of the stream is left.
func (q *serialQueue) end() {
	if q.made {
		q.handoff.Stop()
	}
}
