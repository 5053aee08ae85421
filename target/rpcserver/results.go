package rpcserver

import (
	"slices"
	"sync"
)

// Results of streams take memory until their clients have taken the replies. A result takes room before it is made, of its host's and then of the
// server's, and gives it back when its reply is written. A call that finds none keeps none of either, nor a worker: it is put off, and is executed
// once more when it has its room (Verdict Later). So a call that holds room waits for nothing but its client, and one that does not take replies has
// unreadTime. The reader does not wait for room: what a client asks for beside its bulk data is answered meanwhile.

// resultRooms are those that a result takes of, in order.
func (sc *streamCall) resultRooms() [2]*room {
	return [...]*room{&sc.st.host.results, &sc.st.s.results}
}

// roomFor takes room for a result of n bytes, with what the call has already.
func (sc *streamCall) roomFor(n int) bool {
	more := int64(n) - sc.results
	if n <= smallResult || more <= 0 {
		return true
	}
	if sc.st.held.Load() <= maxHeld {
		l := sc.resultRooms()
		switch {
		case !l[0].try(more):
		case !l[1].try(more):
			l[0].give(more)
		default:
			sc.results += more
			return true
		}
	}
	sc.wants = int64(n)
	return false
}

// reserve takes room for what a program is about to append to the reply.
func (sc *streamCall) reserve(n int) error {
	if !sc.roomFor(n) {
		return ErrNoMemory
	}
	return nil
}

// settleRoom leaves the call what its result takes. What it has taken without being asked, such as a long reply of a program that reserves nothing,
// is there already.
func (sc *streamCall) settleRoom() {
	n := int64(sc.held)
	if n <= smallResult {
		n = 0
	}
	more := n - sc.results
	for _, r := range sc.resultRooms() {
		switch {
		case more > 0:
			r.force(more)
		case more < 0:
			r.give(-more)
		}
	}
	sc.results = n
}

// giveResults gives all room back.
func (sc *streamCall) giveResults() {
	if sc.results > 0 {
		l := sc.resultRooms()
		giveRoom(l[:], sc.results)
		sc.results = 0
	}
}

// awaitRoom returns when the call has the room that it found none of, or reports false when no reply can be sent any more.
func (sc *streamCall) awaitRoom() bool {
	c := sc.st
	for c.held.Load() > maxHeld {
		select {
		case <-c.later.eased:
		case <-c.dead:
			return false
		case <-c.s.ending:
			return false
		}
	}
	l := sc.resultRooms()
	for i, r := range l {
		if !r.take(sc.wants, c.dead, c.s.ending) {
			giveRoom(l[:i], sc.wants)
			return false
		}
	}
	sc.results, sc.wants = sc.wants, 0
	return true
}

// laterQueue are the calls of a stream that wait for room for their results, first come first served. One goroutine waits for them, as long as there
// are some.
type laterQueue struct {
	c     *stream
	eased chan struct{} // told when the stream holds less

	mu     sync.Mutex
	calls  []*streamCall
	runs   bool
	runner sync.WaitGroup
}

// add puts a call off. It keeps no room meanwhile.
func (q *laterQueue) add(sc *streamCall) {
	sc.giveResults()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.calls = append(q.calls, sc)
	if !q.runs {
		q.runs = true
		q.runner.Go(q.run)
	}
}

func (q *laterQueue) run() {
	for sc := q.next(); sc != nil; sc = q.next() {
		if q.c.gone() || !sc.awaitRoom() {
			sc.drop()
			continue
		}
		q.c.s.giveWorker(&sc.call)
	}
}

func (q *laterQueue) next() *streamCall {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.calls) == 0 {
		q.runs = false
		return nil
	}
	sc := q.calls[0]
	q.calls = slices.Delete(q.calls, 0, 1)
	return sc
}

// end is called when no call of the stream is left.
func (q *laterQueue) end() { q.runner.Wait() }
