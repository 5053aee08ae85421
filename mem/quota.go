package mem

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
)

// ErrTooLarge is the answer to a request for more than the quota may ever hold: waiting would not help.
var ErrTooLarge = errors.New("mem: more asked for than the quota may ever hold")

// Quota is one connection's part of a pool: a bound that it does not pass, so that a peer that holds buffers for ever
// starves only itself. Any goroutine may use it.
type Quota struct {
	pool  *Pool
	limit int64

	mu     sync.Mutex
	held   int64 // capacity handed out
	cache  [len(classes)]*Buf
	cached int64
	closed bool

	// Waiting. The queue itself is the pool's.
	want      int64 // bytes of the last request that failed
	wantClass int   // the smallest class that helps
	grant     *Buf  // set aside for the waiter
	granted   int64
	wake      func()      // nil: not waiting
	limited   bool        // waits for its own releases, not for the pool
	claim     atomic.Bool // was called back and has not asked yet: its cache is its own; written under mu
}

// Quota returns a quota of the pool that may hold limit bytes, at most half of the pool, or all of a pool apart.
func (p *Pool) Quota(limit int64) *Quota {
	most := p.max / 2
	if p.from != nil {
		most = p.max
	}
	limit = min(max(limit, int64(classes[0])), most)
	s := &Quota{pool: p, limit: limit &^ int64(classes[0]-1)}
	p.mu.Lock()
	p.quotas[s] = struct{}{}
	p.mu.Unlock()
	return s
}

// Held is the capacity that is out, in bytes.
func (s *Quota) Held() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held
}

// Get is Pool.Get within the quota's bound. ErrTooLarge is permanent, ErrNoMemory is not.
func (s *Quota) Get(n int) (*Buf, error) {
	c := mustClass(n)
	b, err := s.get(n, c, true)
	if err == nil && !s.claim.Load() {
		return b, nil
	}
	s.mu.Lock()
	claimed := s.claim.Swap(false)
	if errors.Is(err, ErrNoMemory) {
		if int64(classes[c]) > s.limit {
			err = ErrTooLarge
		}
		s.want, s.wantClass = int64(classes[c]), c
	}
	s.mu.Unlock()
	if claimed && s.pool.starving.Load() > 0 {
		s.Trim()
	}
	return b, err
}

func (s *Quota) get(n, c int, up bool) (*Buf, error) {
	size := int64(classes[c])
	s.mu.Lock()
	if s.held+size > s.limit {
		s.mu.Unlock()
		return nil, ErrNoMemory
	}
	if s.cache[c] != nil {
		b := s.pop(c)
		s.held += size
		s.mu.Unlock()
		b.hand(n, s)
		return b, nil
	}
	if s.claim.Load() {
		// What was set aside may be of a larger class, where only that was free.
		for k := c + 1; k < len(classes); k++ {
			if s.cache[k] != nil && s.held+int64(classes[k]) <= s.limit {
				b := s.pop(k)
				s.held += int64(classes[k])
				s.mu.Unlock()
				b.hand(n, s)
				return b, nil
			}
		}
	}
	if s.closed {
		s.mu.Unlock()
		return nil, ErrClosed
	}
	room := s.limit - s.held
	s.held += size
	s.mu.Unlock()

	b, err := s.pool.take(c, room, up)

	s.mu.Lock()
	s.held -= size
	if b == nil {
		s.mu.Unlock()
		return nil, err
	}
	if got := int64(classes[b.class]); s.held+got > s.limit { // others of this quota took meanwhile
		s.mu.Unlock()
		s.pool.put(b)
		return nil, ErrNoMemory
	}
	s.held += int64(classes[b.class])
	s.mu.Unlock()
	b.hand(n, s)
	return b, nil
}

// GetAll appends to into buffers that together hold exactly n bytes, in pieces as large as can be had, or nothing and
// ErrNoMemory or ErrTooLarge.
func (s *Quota) GetAll(n int, into []*Buf) ([]*Buf, error) {
	mark := len(into)
	var err error
	for left := n; left > 0 && err == nil; {
		var b *Buf
		if b, err = s.piece(left); err == nil {
			into = append(into, b)
			left -= b.Len()
		}
	}
	if err != nil {
		for i := mark; i < len(into); i++ {
			into[i].Release()
			into[i] = nil
		}
		into = into[:mark]
	}
	if err == nil && !s.claim.Load() {
		return into, nil
	}
	s.mu.Lock()
	claimed := s.claim.Swap(false)
	if errors.Is(err, ErrNoMemory) {
		page := int64(classes[0])
		s.want, s.wantClass = (int64(n)+page-1)&^(page-1), 0
		if s.want > s.limit {
			err = ErrTooLarge
		}
	}
	s.mu.Unlock()
	if claimed && s.pool.starving.Load() > 0 {
		s.Trim()
	}
	return into, err
}

// piece gets one buffer towards left bytes: of the class that holds them all, else of the next smaller one that is free.
func (s *Quota) piece(left int) (*Buf, error) {
	top := mustClass(min(left, MaxBuf))
	var err error
	for c := top; c >= 0; c-- {
		var b *Buf
		b, err = s.get(min(left, classes[c]), c, c == 0)
		if !errors.Is(err, ErrNoMemory) && !errors.Is(err, ErrNoRoom) { // another class may have what one has no room for
			return b, err
		}
	}
	return nil, err
}

// Wait calls f once when what the last refused Get or GetAll of this quota asked for can be had: it has been set aside,
// so the same request succeeds if it is the quota's next one. Waiting quotas are served oldest first. f never runs within a
// call of this package: it may want a lock that the caller of Release or Wait holds. It must not block for long. Wait replaces an earlier f that
// was not called yet; nil takes it back and gives up what was set aside.
func (s *Quota) Wait(f func()) {
	p := s.pool
	p.mu.Lock()
	s.mu.Lock()
	switch {
	case f == nil || s.closed:
		p.unqueueLocked(s)
		p.dropGrantLocked(s)
		if s.claim.Swap(false) && p.starving.Load() > 0 {
			p.reclaimQuotaLocked(s)
		}
	case s.wake != nil:
		s.wake = f
	default:
		s.wake = f
		s.want = min(max(s.want, int64(classes[0])), s.limit)
		if s.limited = s.held+s.want > s.limit; !s.limited {
			p.queueLocked(s)
		}
	}
	s.mu.Unlock()
	ready := p.serveLocked(nil)
	p.mu.Unlock()
	call(ready)
}

// Await is Get that waits, as long as the context lasts. Nothing else may wait by the quota meanwhile.
func (s *Quota) Await(ctx context.Context, n int) (*Buf, error) {
	for {
		b, err := s.Get(n)
		if !errors.Is(err, ErrNoMemory) {
			return b, err
		}
		free := make(chan struct{})
		s.Wait(func() { close(free) })
		select {
		case <-free:
		case <-ctx.Done():
			s.Wait(nil)
			return nil, err
		}
	}
}

// queueLocked puts s at the tail of those that wait for the pool. Both locks are held.
func (p *Pool) queueLocked(s *Quota) {
	p.waiting = append(p.waiting, s)
	p.starving.Add(1) // before serveLocked empties the caches: see Quota.put
	p.dirty = true
}

// unqueueLocked ends a wait without its callback. Both locks are held.
func (p *Pool) unqueueLocked(s *Quota) {
	if s.wake != nil && !s.limited {
		i := slices.Index(p.waiting, s)
		p.waiting = slices.Delete(p.waiting, i, i+1)
		p.starving.Add(-1)
	}
	s.wake, s.limited = nil, false
}

// serve calls those whose wait can end, after s may have become able to join the queue.
func (p *Pool) serve(s *Quota) {
	p.mu.Lock()
	s.mu.Lock()
	if s.limited && s.held+s.want <= s.limit {
		s.limited = false
		p.queueLocked(s)
	}
	s.mu.Unlock()
	ready := p.serveLocked(nil)
	p.mu.Unlock()
	call(ready)
}

// Trim gives back what the quota keeps: for a connection that has gone idle.
func (s *Quota) Trim() {
	p := s.pool
	p.mu.Lock()
	s.mu.Lock()
	if !s.claim.Load() {
		p.reclaimQuotaLocked(s)
	}
	s.mu.Unlock()
	ready := p.serveLocked(nil)
	p.mu.Unlock()
	call(ready)
}

// Close ends the quota: a waiting f is forgotten, Get answers ErrNoMemory. Buffers it still holds stay valid until
// their release.
func (s *Quota) Close() {
	p := s.pool
	p.mu.Lock()
	s.mu.Lock()
	p.unqueueLocked(s)
	s.claim.Store(false)
	s.closed = true
	p.emptyQuotaLocked(s)
	s.mu.Unlock()
	delete(p.quotas, s)
	ready := p.serveLocked(nil)
	p.mu.Unlock()
	call(ready)
}

// put takes back a buffer of this quota.
func (s *Quota) put(b *Buf) {
	size := int64(classes[b.class])
	p := s.pool
	s.mu.Lock()
	s.held -= size
	// Read under mu: a waiter raises starving before it empties this cache under mu, so that a buffer goes either
	// to it here or to it there.
	keep := !s.closed && s.cached+size <= maxCached && p.starving.Load() == 0
	if keep {
		s.push(b)
	}
	waits := s.wake != nil
	s.mu.Unlock()
	if !keep {
		p.put(b)
	}
	if waits {
		p.serve(s)
	}
}

// readyLocked moves what was set aside into the cache and returns the callback.
func (s *Quota) readyLocked() func() {
	for s.grant != nil {
		b := s.grant
		s.grant = b.next
		s.push(b)
	}
	s.granted = 0
	s.claim.Store(true)
	f := s.wake
	s.wake, s.want = nil, 0
	return f
}

func (s *Quota) push(b *Buf) {
	b.next, s.cache[b.class] = s.cache[b.class], b
	s.cached += int64(classes[b.class])
}

func (s *Quota) pop(c int) *Buf {
	b := s.cache[c]
	s.cache[c], b.next = b.next, nil
	s.cached -= int64(classes[c])
	return b
}
