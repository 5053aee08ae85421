package rpcserver

import (
	"sync"
	"time"
)

// pool runs calls that may block. Submitting never waits: what is queued is bounded by the calls that connections may
// have in flight.
//
// A worker that has been in one call for stuckTime does not count: where calls wait, another is begun for it, up to
// maxStuck more. So a medium that hangs costs the calls of others a moment, and not all workers.
type pool struct {
	s          *Server
	mu         sync.Mutex
	wake       sync.Cond
	head, tail *Call
	n, idle    int
	waiting    int // calls in the queue
	max        int // workers that count
	most       int // workers
	stuck      int // workers that do not count
	busy       map[*worker]struct{}
	watch      *time.Timer // runs while calls wait and no worker may be begun
	watching   bool
	closed     bool
	wg         sync.WaitGroup
}

// worker is a goroutine of the pool. Its fields are guarded by the pool's lock.
type worker struct {
	since time.Time // of the call that it is in, zero for none
	stuck bool
}

func (p *pool) init(s *Server, max int) {
	p.s, p.max, p.most = s, max, max+maxStuck
	p.wake.L = &p.mu
	p.busy = make(map[*worker]struct{})
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
	} else if !p.growLocked() {
		p.watchLocked(stuckTime)
	}
	p.mu.Unlock()
}

// growLocked begins a worker, if there may be one more.
func (p *pool) growLocked() bool {
	if p.n-p.stuck >= p.max || p.n >= p.most || p.closed {
		return false
	}
	p.n++
	w := &worker{}
	p.busy[w] = struct{}{}
	p.wg.Add(1)
	go p.work(w)
	return true
}

func (p *pool) watchLocked(d time.Duration) {
	if p.watching || p.closed {
		return
	}
	p.watching = true
	if p.watch == nil {
		p.watch = time.AfterFunc(d, p.look)
	} else {
		p.watch.Reset(d)
	}
}

// look finds workers that are stuck, and begins others for the calls that wait.
func (p *pool) look() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watching = false
	if p.waiting == 0 {
		return
	}
	now := time.Now()
	for w := range p.busy {
		if !w.stuck && !w.since.IsZero() && now.Sub(w.since) >= stuckTime {
			w.stuck = true
			p.stuck++
		}
	}
	for range p.waiting {
		if !p.growLocked() {
			p.watchLocked(stuckTime / 4)
			return
		}
	}
}

func (p *pool) work(w *worker) {
	defer p.wg.Done()
	p.mu.Lock()
	for {
		if w.stuck {
			w.stuck = false
			p.stuck--
		}
		w.since = time.Time{}
		if p.n-p.stuck > p.max { // it was stuck, and another has its place
			p.endLocked(w)
			return
		}
		for p.head == nil {
			if p.closed {
				p.endLocked(w)
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
		w.since = time.Now()
		p.mu.Unlock()
		p.perform(c)
		p.mu.Lock()
	}
}

func (p *pool) endLocked(w *worker) {
	p.n--
	delete(p.busy, w)
	p.mu.Unlock()
}

// perform takes a call off the queue through to its end.
func (p *pool) perform(c *Call) {
	switch {
	case c.life == lifeSerial:
		c.from.work()
	case c.from.gone():
		c.from.drop()
	case c.life == lifeScreening:
		c.from.work()
	default:
		v, err := p.s.run(c)
		c.from.finish(v, err, true)
	}
}

// close ends the workers once the queue is empty.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	if p.watch != nil {
		p.watch.Stop()
	}
	p.wake.Broadcast()
	p.mu.Unlock()
	p.wg.Wait()
}
