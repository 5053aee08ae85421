package mem

import (
	"errors"
	"slices"
	"time"
)

// What a provider's lack of room does to slabs.

// idleLocked are the slabs of which every buffer is free, by their class. What quotas cache is not: the caller has taken it back where it may.
func (p *Pool) idleLocked() (idle [len(classes)][]*Slab) {
	for c, size := range classes {
		n := map[*Slab]int{}
		for b := p.free[c]; b != nil; b = b.next {
			s := b.span.Slab
			if n[s]++; n[s] == p.slab/size {
				idle[c] = append(idle[c], s)
			}
		}
	}
	return idle
}

// recutLocked makes an idle slab of another class one of class c, which has none and can get none: else the classes that were asked for
// first would have all the room for good.
func (p *Pool) recutLocked(c int) bool {
	idle, from := p.idleLocked(), -1
	for k := range idle {
		if len(idle[k]) > 0 && (from < 0 || p.cut[k] > p.cut[from]) {
			from = k
		}
	}
	if from < 0 {
		return false
	}
	s := idle[from][0]
	p.uncutLocked(s, from)
	p.cutLocked(s, c)
	return true
}

// cutLocked makes free buffers of a slab.
func (p *Pool) cutLocked(s *Slab, c int) {
	p.freeSize += int64(p.slab)
	p.cut[c]++
	bufs := make([]Buf, p.slab/classes[c])
	for i := len(bufs) - 1; i >= 0; i-- {
		b := &bufs[i]
		b.pool, b.class, b.span = p, c, Span{Slab: s, Off: i * classes[c], Len: classes[c]}
		b.next, p.free[c] = p.free[c], b
	}
}

// uncutLocked takes the buffers of an idle slab of class c away.
func (p *Pool) uncutLocked(s *Slab, c int) {
	p.freeSize -= int64(p.slab)
	p.cut[c]--
	for at := &p.free[c]; *at != nil; {
		if b := *at; b.span.Slab == s {
			*at = b.next
		} else {
			at = &b.next
		}
	}
}

// registerLocked makes a provider know the pool's slabs. Where it has not the room for all, idle ones are given up: a pool that grew before
// the provider came, to what a peer made it hold once, would keep it out for good.
func (p *Pool) registerLocked(r Registrar) error {
	p.reclaimLocked()
	class := map[*Slab]int{}
	for c, l := range p.idleLocked() {
		for _, s := range l {
			class[s] = c
		}
	}
	var busy, idle []*Slab
	for _, s := range p.slabs {
		if _, ok := class[s]; ok {
			idle = append(idle, s)
		} else {
			busy = append(busy, s)
		}
	}
	all := slices.Concat(busy, idle)
	for i, s := range all {
		err := r.Register(s)
		if err == nil {
			continue
		}
		if i == 0 || i < len(busy) || !errors.Is(err, ErrNoRoom) {
			return errors.Join(err, unregister(r, all[:i]))
		}
		p.full, p.fullTill = err, time.Now().Add(fullTime)
		p.slabs = all[:i:i]
		var errs []error
		for _, s := range all[i:] {
			p.uncutLocked(s, class[s])
			p.mapped -= int64(p.slab)
			errs = append(errs, unmap(s, p.known))
		}
		if err := errors.Join(errs...); err != nil {
			return errors.Join(err, unregister(r, p.slabs))
		}
		return nil
	}
	return nil
}
