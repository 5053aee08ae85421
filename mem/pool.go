package mem

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// ErrClosed is Get's answer after Close.
var ErrClosed = errors.New("mem: the pool or quota is closed")

// Pool hands out buffers cut from slabs and maps another slab when it must, up to its bound. Safe for concurrent use.
//
// Lock order: Pool.mu, then Quota.mu. The hot path is a quota's cache and takes Quota.mu alone.
type Pool struct {
	starving atomic.Int32 // waiters in the queue; above 0 quotas cache nothing

	mu       sync.Mutex
	max      int64 // bytes of slabs at most
	kind     Kind  // of its slabs
	slab     int   // bytes of each
	lent     int64 // bytes of max that pools apart have (apart.go)
	from     *Pool // the pool that this one is apart from, or nil
	borrowed int64 // bytes of from's
	retired  bool
	mapped   int64
	slabs    []*Slab
	cut      [len(classes)]int // slabs of each class
	free     [len(classes)]*Buf
	freeSize int64
	known    []Registrar
	quotas   map[*Quota]struct{}
	waiting  []*Quota // wait for memory of the pool, oldest first
	dirty    bool     // a quota joined the queue: caches are to be emptied
	refused  uint64
	closed   bool
	full     error     // ErrNoRoom of a provider, until fullTill
	fullTill time.Time // when another slab may be tried

	deny func(size int) bool // of a drought; nil but in tests
}

// Stats are a pool's counters. All sizes are bytes.
type Stats struct {
	Max      int64  // the bound
	Mapped   int64  // slabs mapped so far
	Used     int64  // capacity of the buffers that are out
	Cached   int64  // capacity that quotas keep for themselves, free
	Quotas   int    // open quotas
	Waiting  int    // quotas that wait for memory
	Lent     int64  // bytes of the bound that pools apart have
	Refused  uint64 // ErrNoMemory given because the pool, not a quota, was at its bound
	SlabSize int64
}

// NewPool returns a pool that maps at most max bytes; it rounds max up to one slab a size class.
func NewPool(max int64) *Pool {
	if max < minPool {
		max = minPool
	}
	p := &Pool{max: max / slabSize * slabSize, slab: slabSize, quotas: make(map[*Quota]struct{})}
	p.dry()
	return p
}

// Registrar is a provider that has to know the memory which it moves. What is registered stays mapped, and no page of it is
// given back to the system, until it is unregistered: an adapter holds the pages themselves.
type Registrar interface {
	Register(*Slab) error
	Unregister(*Slab) error
}

// OnSlab registers every slab the pool has and will have with a provider, until Forget or Close, and does nothing for one that knows them. An error fails the Get
// that needed the slab; one that is ErrNoRoom makes it wait, as at the pool's own bound, where there are buffers to wait for. Of slabs that
// there are, those that nothing uses are given up where there is no room for them; it fails while there is none for those in use.
func (p *Pool) OnSlab(r Registrar) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if slices.Contains(p.known, r) {
		return nil
	}
	if err := p.registerLocked(r); err != nil {
		return err
	}
	p.known = append(p.known, r)
	return nil
}

// Forget takes the pool's slabs from a provider that OnSlab told of them. Nothing of the provider's names a buffer any more.
func (p *Pool) Forget(r Registrar) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.known, r)
	if i < 0 {
		return nil
	}
	p.known = slices.Delete(p.known, i, i+1)
	return unregister(r, p.slabs)
}

func unregister(r Registrar, slabs []*Slab) error {
	var errs []error
	for _, s := range slabs {
		errs = append(errs, r.Unregister(s))
	}
	return errors.Join(errs...)
}

// Get returns a buffer of n bytes, 1 to MaxBuf, or ErrNoMemory. It never blocks. The content is undefined.
func (p *Pool) Get(n int) (*Buf, error) {
	c := mustClass(n)
	b, err := p.take(c, math.MaxInt64, true)
	if err != nil {
		return nil, err
	}
	b.hand(n, nil)
	return b, nil
}

// Used is the sum of the capacities handed out, in bytes.
func (p *Pool) Used() int64 { return p.Stats().Used }

// Stats reads the counters. It visits every quota: for scrapes, not for data paths.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := Stats{Max: p.max, Mapped: p.mapped, Quotas: len(p.quotas), Waiting: len(p.waiting), Refused: p.refused, Lent: p.lent, SlabSize: int64(p.slab)}
	for s := range p.quotas {
		s.mu.Lock()
		st.Cached += s.cached + s.granted
		s.mu.Unlock()
	}
	st.Used = p.mapped - p.freeSize - st.Cached
	return st
}

// Close takes the slabs from the providers that know them and unmaps them. It fails, and changes nothing, while buffers are
// out: unmapping memory that a fabric or a device may still touch would be worse than a leak. A slab that a provider
// does not let go of stays mapped, for the same reason.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	return p.closeLocked()
}

func (p *Pool) closeLocked() error {
	for s := range p.quotas {
		s.mu.Lock()
		p.emptyQuotaLocked(s)
		s.mu.Unlock()
	}
	if out := p.mapped - p.freeSize; out != 0 {
		return fmt.Errorf("mem: pool closed while %d bytes of buffers are in use", out)
	}
	p.closed = true
	var errs []error
	for _, s := range p.slabs {
		errs = append(errs, unmap(s, p.known))
	}
	p.slabs, p.free, p.mapped, p.freeSize = nil, [len(classes)]*Buf{}, 0, 0
	p.repayLocked()
	return errors.Join(errs...)
}

// unmap unmaps a slab that no provider of l knows any more.
func unmap(s *Slab, l []Registrar) error {
	for _, r := range l {
		if err := r.Unregister(s); err != nil {
			return fmt.Errorf("mem: a slab stays mapped: %w", err)
		}
	}
	return s.Close()
}

// Capacity is how many bytes of a pool the n bytes of a GetAll take at most, where nothing else is short.
func Capacity(n int) (total int64) {
	for n > 0 {
		size := classes[mustClass(min(n, MaxBuf))]
		total += int64(size)
		n -= size
	}
	return total
}

func mustClass(n int) int {
	if n > 0 {
		for c, size := range classes {
			if n <= size {
				return c
			}
		}
	}
	panic(fmt.Sprintf("mem: buffer of %d bytes asked for", n))
}

// take removes a free buffer of class c, or of a larger class that is not above room bytes. With up unset only c will do.
func (p *Pool) take(c int, room int64, up bool) (*Buf, error) {
	denied := p.deny != nil && p.deny(classes[c])
	p.mu.Lock()
	defer p.mu.Unlock()
	if denied && !p.closed {
		p.refused++
		return nil, ErrNoMemory
	}
	b, err := p.takeLocked(c, room, up)
	if (errors.Is(err, ErrNoMemory) || errors.Is(err, ErrNoRoom)) && p.starving.Load() == 0 { // caches are empty while a quota waits
		p.reclaimLocked()
		b, err = p.takeLocked(c, room, up)
	}
	if errors.Is(err, ErrNoMemory) {
		p.refused++
	}
	return b, err
}

func (p *Pool) takeLocked(c int, room int64, up bool) (*Buf, error) {
	if p.closed {
		return nil, ErrClosed
	}
	if p.free[c] == nil {
		err := p.growLocked(c)
		noRoom := errors.Is(err, ErrNoRoom)
		switch {
		case err == nil:
		case !errors.Is(err, ErrNoMemory) && !noRoom:
			return nil, err
		case noRoom && !p.comesBackLocked(c, up) && p.recutLocked(c):
		case !up:
			if noRoom && !p.comesBackLocked(c, false) {
				return nil, err
			}
			return nil, ErrNoMemory
		default:
			least := c
			for c++; c < len(classes) && p.free[c] == nil; c++ {
			}
			if c == len(classes) || int64(classes[c]) > room {
				if noRoom && !p.comesBackLocked(least, true) {
					return nil, err
				}
				return nil, ErrNoMemory
			}
		}
	}
	b := p.free[c]
	p.free[c], b.next = b.next, nil
	p.freeSize -= int64(classes[c])
	return b, nil
}

// comesBackLocked reports whether there are buffers of class c, or with up of a larger one, that others may release.
func (p *Pool) comesBackLocked(c int, up bool) bool {
	if !up {
		return p.cut[c] > 0
	}
	for _, n := range p.cut[c:] {
		if n > 0 {
			return true
		}
	}
	return false
}

// A provider that has no room is not asked for some by each Get: that takes system calls, under the lock.
const fullTime = time.Second

func (p *Pool) growLocked(c int) error {
	need := int64(p.slab)
	for other, n := range p.cut {
		if other != c && n == 0 {
			need += int64(p.slab) // each class may have its first slab at any time
		}
	}
	if p.mapped+p.lent+need > p.max || !p.borrowLocked(need) {
		return ErrNoMemory
	}
	if p.full != nil && time.Now().Before(p.fullTill) {
		return p.full
	}
	p.full = nil
	s, err := p.kind.NewSlab(p.slab)
	if err != nil {
		return err
	}
	for i, r := range p.known {
		if err := r.Register(s); err != nil {
			err = fmt.Errorf("mem: register a slab: %w", errors.Join(err, unmap(s, p.known[:i])))
			if errors.Is(err, ErrNoRoom) {
				p.full, p.fullTill = err, time.Now().Add(fullTime)
			}
			return err
		}
	}
	p.mapped += int64(p.slab)
	p.slabs = append(p.slabs, s)
	p.cutLocked(s, c)
	return nil
}

// put takes a buffer back and has those called whose wait it ends.
func (p *Pool) put(b *Buf) {
	p.mu.Lock()
	p.putLocked(b)
	ready := p.serveLocked(nil)
	p.goLocked()
	p.mu.Unlock()
	call(ready)
}

func (p *Pool) putLocked(b *Buf) {
	b.next, p.free[b.class] = p.free[b.class], b
	p.freeSize += int64(classes[b.class])
}

// reclaimLocked empties the caches of all quotas.
func (p *Pool) reclaimLocked() {
	for s := range p.quotas {
		s.mu.Lock()
		if !s.claim.Load() {
			p.reclaimQuotaLocked(s)
		}
		s.mu.Unlock()
	}
}

// reclaimQuotaLocked empties the cache of s. Both locks are held.
func (p *Pool) reclaimQuotaLocked(s *Quota) {
	for c := range s.cache {
		for s.cache[c] != nil {
			p.putLocked(s.pop(c))
		}
	}
}

// emptyQuotaLocked takes back everything that s keeps. Both locks are held.
func (p *Pool) emptyQuotaLocked(s *Quota) {
	p.reclaimQuotaLocked(s)
	p.dropGrantLocked(s)
}

// dropGrantLocked takes back what was set aside for a waiter. Both locks are held.
func (p *Pool) dropGrantLocked(s *Quota) {
	for s.grant != nil {
		b := s.grant
		s.grant = b.next
		p.putLocked(b)
	}
	s.granted = 0
}

// serveLocked sets free memory aside for the waiters, oldest first, and appends the callbacks of those that have all
// they asked for. A buffer that the oldest cannot use goes to the next. Since a quota joins at the tail, none holds
// a part of what an older one needs: so the oldest always gets there, and none waits for ever.
func (p *Pool) serveLocked(ready []func()) []func() {
	if len(p.waiting) == 0 {
		return ready
	}
	if p.dirty {
		p.dirty = false
		p.reclaimLocked()
	}
	still := p.waiting[:0]
	for _, s := range p.waiting {
		s.mu.Lock()
		for s.granted < s.want {
			b, err := p.takeWantLocked(s)
			if err != nil {
				break
			}
			b.next, s.grant = s.grant, b
			s.granted += int64(classes[b.class])
		}
		if s.granted >= s.want {
			ready = append(ready, s.readyLocked())
			p.starving.Add(-1)
		} else {
			still = append(still, s)
		}
		s.mu.Unlock()
	}
	clear(p.waiting[len(still):])
	p.waiting = still
	return ready
}

// takeWantLocked finds a buffer towards the want of s: large pieces before small ones, none below its class.
func (p *Pool) takeWantLocked(s *Quota) (*Buf, error) {
	left, room := s.want-s.granted, s.limit-s.held-s.granted
	top := mustClass(int(min(left, MaxBuf)))
	for c := max(top, s.wantClass); c >= s.wantClass; c-- {
		if int64(classes[c]) > room {
			continue
		}
		if b, err := p.takeLocked(c, room, c == top); err == nil {
			return b, nil
		}
	}
	return nil, ErrNoMemory
}

// call runs callbacks on a goroutine of their own: those who release, trim or close hold locks of theirs that f may want,
// or that the holder of what f wants waits for. There are callbacks only while memory is short.
func call(fs []func()) {
	if len(fs) == 0 {
		return
	}
	go func() {
		for _, f := range fs {
			f()
		}
	}()
}
