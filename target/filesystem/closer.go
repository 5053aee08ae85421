package filesystem

import (
	"sync"
	"sync/atomic"
	"time"
)

// closer flushes and closes the files of one medium that are not used any more, one after another beside the calls: one that
// hangs holds up neither the calls nor the files of other media.
type closer struct {
	mu      sync.Mutex
	queue   []aside
	running bool
	waiting atomic.Int32 // of queue, and the one at hand
}

// aside is a node that waits to be closed.
type aside struct {
	n    *node
	done *sync.WaitGroup // told when it is, may be nil
}

// putAside has a node closed that is out of the cache and unused.
func (c *nodeCache) putAside(n *node) { c.aside(aside{n: n}) }

func (c *nodeCache) aside(a aside) {
	m := a.n.e.medium
	m.waiting.Add(1)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.queue = append(m.queue, a)
	if !m.running {
		m.running = true
		c.s.closers.Go(func() { c.closeAside(m) })
	}
}

func (c *nodeCache) closeAside(m *medium) {
	for {
		m.mu.Lock()
		l := m.queue
		m.queue = nil
		m.running = len(l) > 0
		m.mu.Unlock()
		if len(l) == 0 {
			return
		}
		for _, a := range l {
			c.shut(a.n)
			m.waiting.Add(-1)
			if a.done != nil {
				a.done.Done()
			}
		}
	}
}

// sweep closes nodes that were not used for a while; all of them if everything is set. While those of a medium are being
// closed, further ones that are unused there stay. The channel is closed when all is done.
func (c *nodeCache) sweep(everything bool) <-chan struct{} {
	before := time.Now().Add(-nodeIdle).Unix()
	busy := make(map[*medium]bool)
	var unused []*node
	for i := range c.shards {
		s := &c.shards[i]
		s.Lock()
		for k, n := range s.m {
			m := n.e.medium
			if _, known := busy[m]; !known {
				busy[m] = m.waiting.Load() > 0
			}
			if n.refs == 0 && (everything || n.used <= before && !busy[m]) {
				delete(s.m, k)
				n.gone = true
				unused = append(unused, n)
			}
		}
		s.Unlock()
	}
	var wg sync.WaitGroup
	wg.Add(len(unused))
	for _, n := range unused {
		c.aside(aside{n, &wg})
	}
	done := make(chan struct{})
	c.s.closers.Go(func() {
		wg.Wait()
		close(done)
	})
	return done
}
