package rpcserver

import (
	"sync"
	"sync/atomic"

	"github.com/sluice-storage/sluice/internal/xdr"
)

// room bounds the memory that the requests of streams take together. A stream that finds none waits, first come first
// served, and reads nothing meanwhile: TCP's window is the backpressure.
//
// There is one for all streams, one for each host and one for all peers that have shown no right yet. The last two have half,
// so that neither one host nor any number of strangers keeps the rest from calling. Of a host's, its strangers have half: users
// of a machine, and its neighbours behind one address, do not keep its mounts from calling.
type room struct {
	max     int64
	used    atomic.Int64
	waiting atomic.Int64 // of queue, so that giving back takes no lock where none waits
	mu      sync.Mutex
	queue   []*place
}

type place struct {
	n     int64
	ready chan struct{}
}

// take returns when there is room for n bytes, or reports false when stop is closed.
func (r *room) take(n int64, stop <-chan struct{}) bool {
	if r.waiting.Load() == 0 {
		if r.used.Add(n) <= r.max {
			return true
		}
		r.used.Add(-n)
	}
	p := &place{n: n, ready: make(chan struct{})}
	r.mu.Lock()
	r.queue = append(r.queue, p)
	r.waiting.Store(int64(len(r.queue)))
	r.admitLocked() // room may have been given back before it could be seen that this one waits
	r.mu.Unlock()
	select {
	case <-p.ready:
		return true
	case <-stop:
	}
	r.mu.Lock()
	for i, q := range r.queue {
		if q == p {
			r.queue = append(r.queue[:i], r.queue[i+1:]...)
			r.waiting.Store(int64(len(r.queue)))
			r.admitLocked()
			r.mu.Unlock()
			return false
		}
	}
	r.mu.Unlock()
	r.give(n) // it was let in at the same time
	return false
}

// give returns room.
func (r *room) give(n int64) {
	r.used.Add(-n)
	if r.waiting.Load() == 0 {
		return
	}
	r.mu.Lock()
	r.admitLocked()
	r.mu.Unlock()
}

func (r *room) admitLocked() {
	for len(r.queue) > 0 {
		p := r.queue[0]
		if r.used.Add(p.n) > r.max {
			r.used.Add(-p.n)
			break
		}
		r.queue = r.queue[1:]
		close(p.ready)
	}
	r.waiting.Store(int64(len(r.queue)))
}

// takeRoom waits for room for n bytes, of the smallest group first: its host's strangers, its host, all strangers, the server. So a call that
// waits keeps no room of a larger group. It reports false when the server ends.
func (c *stream) takeRoom(sc *streamCall, n int64) bool {
	sc.strange = !c.peer.trusted() && !lasts(c.believed.Load())
	l := sc.rooms()
	for i, r := range l {
		if r != nil && !r.take(n, c.s.ending) {
			giveRoom(l[:i], n)
			return false
		}
	}
	sc.room = n
	return true
}

// rooms are those that a call of a stream takes of, in order; nil for none.
func (sc *streamCall) rooms() [4]*room {
	s, h := sc.st.s, sc.st.host
	if sc.strange {
		return [...]*room{&h.strangers, &h.room, &s.strangers, &s.room}
	}
	return [...]*room{nil, &h.room, nil, &s.room}
}

func giveRoom(l []*room, n int64) {
	for _, r := range l {
		if r != nil {
			r.give(n)
		}
	}
}

// letMsgGo gives the memory of the message back, after the last read of its arguments.
func (c *Call) letMsgGo() {
	if c.body != nil {
		putBytes(c.body)
		c.body = nil
	}
	c.msg, c.Args = nil, xdr.Reader{}
	if c.from != nil {
		c.from.dropRoom()
	}
}

func (sc *streamCall) dropRoom() {
	if sc.room == 0 {
		return
	}
	l := sc.rooms()
	giveRoom(l[:], sc.room)
	sc.room = 0
}
