package lock

import (
	"net/netip"
	"sync"
)

// lines are the clients that are called, or are about to be.
type lines struct {
	mu sync.Mutex
	m  map[netip.Addr]*line
}

// line is what one client may have of the calls to all: whatever becomes of it, the others are called.
type line struct {
	turns   chan struct{} // one for each call to it on its way
	answers int           // that have not been sent; guarded by lines
	users   int           // guarded by lines
}

// join returns the line of a client; leave has to follow.
func (k *lines) join(to netip.Addr) *line {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.joinLocked(to)
}

func (k *lines) joinLocked(to netip.Addr) *line {
	l := k.m[to]
	if l == nil {
		if k.m == nil {
			k.m = make(map[netip.Addr]*line)
		}
		l = &line{turns: make(chan struct{}, maxHostCallbacks)}
		k.m[to] = l
	}
	l.users++
	return l
}

func (k *lines) leave(to netip.Addr) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.leaveLocked(to)
}

func (k *lines) leaveLocked(to netip.Addr) {
	l := k.m[to]
	if l.users--; l.users == 0 {
		delete(k.m, to)
	}
}

// mayAnswer reports that there is room for one more answer to an asynchronous procedure of a client; answered has to follow.
func (m *Manager) mayAnswer(to netip.Addr) bool {
	k := &m.lines
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.joinLocked(to)
	if l.answers < maxHostAnswers {
		select {
		case m.answers <- struct{}{}:
			l.answers++
			return true
		default:
		}
	}
	k.leaveLocked(to)
	return false
}

// answered ends what mayAnswer has begun.
func (m *Manager) answered(to netip.Addr) {
	k := &m.lines
	k.mu.Lock()
	defer k.mu.Unlock()
	k.m[to].answers--
	k.leaveLocked(to)
	<-m.answers
}
