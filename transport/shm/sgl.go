package shm

import (
	"fmt"

	"github.com/sluice-storage/sluice/mem"
)

// part is a piece of memory of this process.
type part struct {
	b    []byte
	slab *mem.Slab
	off  int // of b in the slab
}

// sgl is a scatter/gather list of at most maxSGE parts, with a cursor.
type sgl struct {
	part  [maxSGE]part
	n     int // parts
	i     int // the part that the cursor is in
	off   int // bytes of it that are done
	total int // bytes of all parts
}

// set takes the spans. It panics where a span leaves its slab, as Span.Bytes does: a mistake of the caller's.
func (s *sgl) set(spans []mem.Span) error {
	if len(spans) > maxSGE {
		return fmt.Errorf("shm: %d pieces of local memory, at most %d are taken", len(spans), maxSGE)
	}
	s.n, s.i, s.off, s.total = 0, 0, 0, 0
	for _, sp := range spans {
		if sp.Len == 0 {
			continue
		}
		s.part[s.n] = part{sp.Bytes(), sp.Slab, sp.Off}
		s.n++
		s.total += sp.Len
	}
	if s.total > maxMessage {
		return fmt.Errorf("shm: a message of %d bytes, at most %d are taken", s.total, maxMessage)
	}
	return nil
}

// window makes s the n bytes that begin off bytes into from; the caller has checked the bounds.
func (s *sgl) window(from *sgl, off, n int) {
	s.n, s.i, s.off, s.total = 0, 0, 0, n
	for j := 0; n > 0; j++ {
		p := from.part[j]
		if off >= len(p.b) {
			off -= len(p.b)
			continue
		}
		k := min(len(p.b)-off, n)
		s.part[s.n] = part{p.b[off : off+k], p.slab, p.off + off}
		off = 0
		s.n++
		n -= k
	}
}

// only makes s the single part p, or nothing where p has no bytes.
func (s *sgl) only(p part) {
	s.n, s.i, s.off, s.total = 0, 0, 0, len(p.b)
	if len(p.b) > 0 {
		s.part[0], s.n = p, 1
	}
}

// put copies b to the cursor and moves past it. There must be room.
func (s *sgl) put(b []byte) {
	for len(b) > 0 {
		d := s.part[s.i].b[s.off:]
		if len(d) == 0 {
			s.i, s.off = s.i+1, 0
			continue
		}
		n := copy(d, b)
		s.off += n
		b = b[n:]
	}
}

// gather copies all bytes of s to b, which has room.
func (s *sgl) gather(b []byte) {
	for i := range s.n {
		b = b[copy(b, s.part[i].b):]
	}
}

// names reports whether a part lies in a slab.
func (s *sgl) names(slab *mem.Slab) bool {
	for i := range s.n {
		if s.part[i].slab == slab {
			return true
		}
	}
	return false
}
