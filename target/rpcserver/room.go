package rpcserver

import (
	"slices"
	"sync"
	"sync/atomic"
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

// place is what waits for room. in is called once it has it, under the lock of the room.
type place struct {
	n  int64
	in func()
}

// try takes room for n bytes where there is some and none waits.
func (r *room) try(n int64) bool {
	if r.waiting.Load() > 0 {
		return false
	}
	if r.used.Add(n) <= r.max {
		return true
	}
	r.give(n)
	return false
}

// force takes room for n bytes whether there is some or not: for what is there already, or needed to give more back.
func (r *room) force(n int64) { r.used.Add(n) }

// take returns when there is room for n bytes, or reports false when stop or other is closed.
func (r *room) take(n int64, stop, other <-chan struct{}) bool {
	if r.try(n) {
		return true
	}
	ready := make(chan struct{})
	p := r.ask(n, func() { close(ready) })
	select {
	case <-ready:
		return true
	case <-stop:
	case <-other:
	}
	if !r.cancel(p) {
		r.give(n) // it was let in at the same time
	}
	return false
}

// ask has in called when there is room for n bytes, which is taken then. in must not wait, nor come back to the room.
func (r *room) ask(n int64, in func()) *place {
	p := &place{n: n, in: in}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue = append(r.queue, p)
	r.waiting.Store(int64(len(r.queue)))
	r.admitLocked() // room may have been given back before it could be seen that this one waits
	return p
}

// cancel takes what ask has begun back. It reports false where the room has been taken.
func (r *room) cancel(p *place) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.Index(r.queue, p)
	if i < 0 {
		return false
	}
	r.queue = slices.Delete(r.queue, i, i+1)
	r.waiting.Store(int64(len(r.queue)))
	r.admitLocked()
	return true
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
		p.in()
	}
	r.waiting.Store(int64(len(r.queue)))
}

// takeRoom waits for room for n bytes, of the smallest group first: its host's strangers, its host, all strangers, the server. So a call that
// waits keeps no room of a larger group. It reports false when the server ends.
func (c *stream) takeRoom(sc *streamCall, n int64) bool {
	sc.strange = !c.peer.trusted() && !lasts(c.believed.Load())
	l := sc.rooms()
	for i, r := range l {
		if r == nil || r.try(n) {
			continue
		}
		c.out.flush() // or replies would wait with it
		if !r.take(n, c.s.ending, nil) {
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
	c.msg, c.Args = nil, Args{}
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
