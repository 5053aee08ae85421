package iwarp

import (
	"fmt"

	"github.com/sluice-storage/sluice/mem"
)

// sgl is a scatter/gather list of at most maxSGE pieces, with a cursor.
type sgl struct {
	seg   [maxSGE][]byte
	n     int // pieces
	i     int // the piece the cursor is in
	off   int // bytes of it that are done
	total int // bytes of all pieces
}

// set takes the spans. It panics when a span leaves its slab, as Span.Bytes does: a mistake of the caller's.
func (s *sgl) set(spans []mem.Span) error {
	if len(spans) > maxSGE {
		return fmt.Errorf("iwarp: %d pieces of local memory, at most %d are taken", len(spans), maxSGE)
	}
	s.n, s.i, s.off, s.total = 0, 0, 0, 0
	for _, sp := range spans {
		if sp.Len == 0 {
			continue
		}
		s.seg[s.n] = sp.Bytes()
		s.n++
		s.total += sp.Len
	}
	if s.total > maxMessage {
		return fmt.Errorf("iwarp: a message of %d bytes, at most %d are taken", s.total, maxMessage)
	}
	return nil
}

// window makes s the n bytes that begin off bytes into from; the caller has checked the bounds.
func (s *sgl) window(from *sgl, off, n int) {
	s.n, s.i, s.off, s.total = 0, 0, 0, n
	for j := 0; n > 0; j++ {
		b := from.seg[j]
		if off >= len(b) {
			off -= len(b)
			continue
		}
		b = b[off:min(len(b), off+n)]
		off = 0
		s.seg[s.n] = b
		s.n++
		n -= len(b)
	}
}

// one makes s the single piece b.
func (s *sgl) one(b []byte) {
	s.n, s.i, s.off, s.total = 0, 0, 0, len(b)
	if len(b) > 0 {
		s.seg[0], s.n = b, 1
	}
}

// next returns at most n bytes at the cursor, contiguous, and moves past them. It returns nothing at the end.
func (s *sgl) next(n int) []byte {
	for s.i < s.n {
		b := s.seg[s.i][s.off:]
		if len(b) == 0 {
			s.i, s.off = s.i+1, 0
			continue
		}
		b = b[:min(n, len(b))]
		s.off += len(b)
		return b
	}
	return nil
}

// copyIn stores p at the cursor and moves past it.
func (s *sgl) copyIn(p []byte) {
	for len(p) > 0 {
		d := s.next(len(p))
		copy(d, p)
		p = p[len(d):]
	}
}

// skip moves past n bytes.
func (s *sgl) skip(n int) {
	for n > 0 {
		n -= len(s.next(n))
	}
}

// start is the byte at the cursor, nil at the end.
func (s *sgl) start() *byte {
	for i, off := s.i, s.off; i < s.n; i, off = i+1, 0 {
		if off < len(s.seg[i]) {
			return &s.seg[i][off]
		}
	}
	return nil
}
