package mem

import "bytes"

// A list of spans is one piece of data that lies in several places: the functions below treat it as the bytes one behind the other. None of
// them allocates but where it appends.

// Total is how many bytes the spans are.
func Total(spans []Span) (n int64) {
	for i := range spans {
		n += int64(spans[i].Len)
	}
	return n
}

// Cursor goes through spans in contiguous pieces. Its zero value is at the end of nothing.
type Cursor struct {
	spans []Span // that of the cursor first
	off   int    // bytes of it that are done
}

// At is a cursor off bytes into the spans.
func At(spans []Span, off int64) Cursor {
	for len(spans) > 0 && off >= int64(spans[0].Len) {
		off -= int64(spans[0].Len)
		spans = spans[1:]
	}
	return Cursor{spans: spans, off: int(off)}
}

// Next returns the next bytes that lie together, at most limit of them, and goes on behind them. It returns none at the end.
func (c *Cursor) Next(limit int) []byte {
	for len(c.spans) > 0 {
		s := &c.spans[0]
		n := min(s.Len-c.off, limit)
		if n == 0 && limit > 0 {
			c.spans, c.off = c.spans[1:], 0
			continue
		}
		b := s.Slab.b[s.Off+c.off : s.Off+c.off+n : s.Off+c.off+n]
		c.off += n
		return b
	}
	return nil
}

// Scatter copies b into the spans from off bytes on, as far as both reach, and returns how many bytes that were.
func Scatter(spans []Span, off int64, b []byte) (n int) {
	for c := At(spans, off); n < len(b); {
		p := c.Next(len(b) - n)
		if len(p) == 0 {
			break
		}
		n += copy(p, b[n:])
	}
	return n
}

// Gather copies from the spans into b, from off bytes on, as far as both reach, and returns how many bytes that were.
func Gather(b []byte, spans []Span, off int64) (n int) {
	for c := At(spans, off); n < len(b); {
		p := c.Next(len(b) - n)
		if len(p) == 0 {
			break
		}
		n += copy(b[n:], p)
	}
	return n
}

// Differ compares b with the spans from off bytes on, as far as both reach, and returns the index in b of the first difference, or -1.
func Differ(b []byte, spans []Span, off int64) int {
	at := 0
	for c := At(spans, off); at < len(b); {
		p := c.Next(len(b) - at)
		if len(p) == 0 {
			break
		}
		if i := firstDifference(p, b[at:at+len(p)]); i >= 0 {
			return at + i
		}
		at += len(p)
	}
	return -1
}

// DifferSpans compares two lists as far as both reach, and returns the index of the first byte that differs, or -1.
func DifferSpans(a, b []Span) int {
	at := 0
	for c := At(b, 0); ; {
		if len(a) == 0 {
			return -1
		}
		rest := a[0].Bytes()
		for len(rest) > 0 {
			p := c.Next(len(rest))
			if len(p) == 0 {
				return -1
			}
			if i := firstDifference(p, rest[:len(p)]); i >= 0 {
				return at + i
			}
			at += len(p)
			rest = rest[len(p):]
		}
		a = a[1:]
	}
}

// firstDifference compares two slices of one length.
func firstDifference(a, b []byte) int {
	if bytes.Equal(a, b) {
		return -1
	}
	i := 0
	for a[i] == b[i] {
		i++
	}
	return i
}

// Part appends to dst the spans of the n bytes that begin off bytes into spans, or of as many as there are.
func Part(dst, spans []Span, off, n int64) []Span {
	for i := range spans {
		l := int64(spans[i].Len)
		if off >= l {
			off -= l
			continue
		}
		k := min(l-off, n)
		if k == 0 {
			break
		}
		dst = append(dst, spans[i].Cut(int(off), int(k)))
		n, off = n-k, 0
	}
	return dst
}

// Chain appends to dst the spans of the n bytes that begin off bytes into a chain of buffers, or of as many as there are.
func Chain(dst []Span, bufs []*Buf, off, n int) []Span {
	for _, b := range bufs {
		s := b.Span()
		if off >= s.Len {
			off -= s.Len
			continue
		}
		k := min(s.Len-off, n)
		if k == 0 {
			break
		}
		dst = append(dst, s.Cut(off, k))
		n, off = n-k, 0
	}
	return dst
}

// Join appends a span to a list, as one piece with the last where it follows that in memory.
func Join(list []Span, s Span) []Span {
	if n := len(list); n > 0 && list[n-1].Slab == s.Slab && list[n-1].Off+list[n-1].Len == s.Off {
		list[n-1].Len += s.Len
		return list
	}
	return append(list, s)
}
