package rpc

import "sync"

// pool runs calls that may block. Submitting never waits: what is queued is bounded by the calls that connections may
// have in flight.
type pool struct {
	s          *Server
	mu         sync.Mutex
	wake       sync.Cond
	head, tail *Call
	n, idle    int
	waiting    int // calls in the queue
	max        int
	closed     bool
	wg         sync.WaitGroup
}

func (p *pool) init(s *Server, max int) {
	p.s, p.max = s, max
	p.wake.L = &p.mu
}

func (p *pool) submit(c *Call) {
	p.mu.Lock()
	c.next = nil
	if p.tail != nil {
		p.tail.next = c
	} else {
		p.head = c
	}
	p.tail = c
	p.waiting++
	if p.idle > 0 {
		p.idle-- // the one that is woken is not another call's too: this one may block it
		p.wake.Signal()
	} else if p.n < p.max {
		p.n++
		p.wg.Add(1)
		go p.work()
	}
	p.mu.Unlock()
}

func (p *pool) work() {
	defer p.wg.Done()
	p.mu.Lock()
	for {
		for p.head == nil {
			if p.closed {
				p.mu.Unlock()
				return
			}
			p.idle++
			p.wake.Wait()
		}
		c := p.head
		p.head = c.next
		p.waiting--
		if p.head == nil {
			p.tail = nil
		}
		c.next = nil
		p.mu.Unlock()
		p.perform(c)
		p.mu.Lock()
	}
}

// perform takes a call off the queue through to its end.
func (p *pool) perform(c *Call) {
	switch {
	case c.lane != nil:
		c.lane.run(c)
	case c.from.gone():
		c.from.drop(c)
	case c.screen:
		c.rdma.conn.screened(c)
	default:
		v, err := p.s.run(c, true)
		c.from.finish(c, v, err, true)
	}
}

// close ends the workers once the queue is empty.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	p.wake.Broadcast()
	p.mu.Unlock()
	p.wg.Wait()
}
