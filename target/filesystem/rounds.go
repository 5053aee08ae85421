package filesystem

import (
	"sync"
)

// rounds lets callers share flushes: a call is answered by one that began after it, and all calls that came during a
// flush by the next. The flush's error is every sharer's: the kernel tells it to the first that asks, and to no other.
type rounds struct {
	mu   sync.Mutex
	now  *round // runs
	next *round // begins when now has ended
}

type round struct {
	done chan struct{}
	err  error
}

func (r *rounds) do(flush func() error) error {
	r.mu.Lock()
	before, shared := r.now, r.next
	if before != nil && shared != nil {
		r.mu.Unlock()
		<-shared.done
		return shared.err
	}
	// The error stands if flush does not return.
	me := &round{done: make(chan struct{}), err: ErrFault}
	if before == nil {
		r.now = me
	} else {
		r.next = me
	}
	r.mu.Unlock()
	if before != nil {
		<-before.done
	}
	defer r.end(me)
	me.err = flush()
	return me.err
}

// end lets the leader of the next round begin.
func (r *rounds) end(me *round) {
	r.mu.Lock()
	r.now, r.next = r.next, nil
	r.mu.Unlock()
	close(me.done)
}
