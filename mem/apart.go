package mem

import (
	"errors"
	"slices"
)

// A pool apart has slabs of its own, and its size counts against another pool's bound: so a connection whose peer can read all of its
// memory has memory that holds nothing of others', and all connections together still hold no more than was allowed.

// Apart returns a pool of slabs of kind k, which may have max bytes of p's bound. It has room for a slab a class from the beginning,
// whatever p's other users take, so that its own users never wait for those; more it gets where p has room. Where p has not that much
// room left Apart answers ErrNoMemory: idle slabs of p are given up before. Close or Retire it.
func (p *Pool) Apart(max int64, k Kind) (*Pool, error) {
	if max < minApart {
		max = minApart
	}
	a := &Pool{max: max / apartSlab * apartSlab, kind: k, slab: apartSlab, from: p, quotas: make(map[*Quota]struct{})}
	a.dry()
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.borrowLocked(minApart) {
		return nil, ErrNoMemory
	}
	return a, nil
}

// borrowLocked makes sure that a pool apart has borrowed what it maps and need bytes more. The other pool's lock comes behind p.mu.
func (p *Pool) borrowLocked(need int64) bool {
	if p.from == nil || p.mapped+need <= p.borrowed {
		return true
	}
	n := p.mapped + need - p.borrowed
	if !p.from.lend(n) {
		return false
	}
	p.borrowed += n
	return true
}

func (p *Pool) repayLocked() {
	if p.from != nil {
		p.from.takeBack(p.borrowed)
		p.borrowed = 0
	}
}

// lend gives n bytes of the bound away, unless a quota waits for memory, or each class could not have its first slab any more.
func (p *Pool) lend(n int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.waiting) > 0 {
		return false
	}
	if p.lendableLocked(n) {
		p.lent += n
		return true
	}
	p.reclaimLocked()
	idle := p.idleLocked()
	for c := range idle {
		for _, s := range idle[c] {
			if p.cut[c] == 1 {
				break
			}
			p.giveUpLocked(s, c)
			if p.lendableLocked(n) {
				p.lent += n
				return true
			}
		}
	}
	return false
}

func (p *Pool) lendableLocked(n int64) bool {
	need := p.mapped + p.lent + n
	for _, slabs := range p.cut {
		if slabs == 0 {
			need += int64(p.slab)
		}
	}
	return need <= p.max
}

// giveUpLocked takes an idle slab of class c out of the pool. One that a provider does not let go of stays mapped, and counts.
func (p *Pool) giveUpLocked(s *Slab, c int) {
	p.uncutLocked(s, c)
	p.slabs = slices.DeleteFunc(p.slabs, func(o *Slab) bool { return o == s })
	if unmap(s, p.known) == nil {
		p.mapped -= int64(p.slab)
	}
}

func (p *Pool) takeBack(n int64) {
	p.mu.Lock()
	p.lent -= n
	ready := p.serveLocked(nil)
	p.mu.Unlock()
	call(ready)
}

// Shrink gives idle slabs of a pool apart back, but for one of each class. It does nothing to other pools, which all of their users keep warm.
func (p *Pool) Shrink() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.from == nil || p.closed || len(p.waiting) > 0 {
		return
	}
	p.reclaimLocked()
	idle := p.idleLocked()
	for c := range idle {
		for _, s := range idle[c] {
			if p.cut[c] > 1 {
				p.giveUpLocked(s, c)
			}
		}
	}
	keep := p.mapped
	for _, slabs := range p.cut {
		if slabs == 0 {
			keep += int64(p.slab)
		}
	}
	if n := p.borrowed - max(keep, minApart); n > 0 {
		p.borrowed -= n
		p.from.takeBack(n)
	}
}

// Retire closes the pool when the last of its buffers is released, which may be now. Its quotas are closed before.
func (p *Pool) Retire() {
	p.mu.Lock()
	p.retired = true
	p.goLocked()
	p.mu.Unlock()
}

// goLocked closes a pool that is retired and has all its buffers back.
func (p *Pool) goLocked() {
	if !p.retired || p.closed {
		return
	}
	_ = p.closeLocked() // buffers are out, or a provider keeps a slab, which stays mapped for it
}

// ErrInUse is the answer of Share where buffers are out already.
var ErrInUse = errors.New("mem: the pool has handed out memory that cannot be shared; make it with mem.Shared.NewPool, or share it first")

// Share makes the slabs of a pool be of the kind Shared. It fails with ErrInUse where there are others that something uses.
func (p *Pool) Share() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kind == Shared {
		return nil
	}
	p.reclaimLocked()
	if p.mapped != p.freeSize {
		return ErrInUse
	}
	for c, l := range p.idleLocked() {
		for _, s := range l {
			p.giveUpLocked(s, c)
		}
	}
	p.kind = Shared
	return nil
}

// Kind is what the pool's slabs are made of.
func (p *Pool) Kind() Kind {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.kind
}
