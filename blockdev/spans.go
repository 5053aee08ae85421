package blockdev

import (
	"bytes"

	"github.com/sluice-storage/sluice/mem"
)

func total(spans []mem.Span) (n int64) {
	for i := range spans {
		n += int64(spans[i].Len)
	}
	return n
}

// Scatter copies b into the spans from off bytes on, as far as both reach, and returns how many bytes that were.
func Scatter(spans []mem.Span, off int64, b []byte) (n int) {
	for i := range spans {
		if len(b) == 0 {
			break
		}
		if l := int64(spans[i].Len); off >= l {
			off -= l
			continue
		}
		c := copy(spans[i].Bytes()[off:], b)
		b, n, off = b[c:], n+c, 0
	}
	return n
}

// Gather copies from the spans into b, from off bytes on, as far as both reach, and returns how many bytes that were.
func Gather(b []byte, spans []mem.Span, off int64) (n int) {
	for i := range spans {
		if len(b) == 0 {
			break
		}
		if l := int64(spans[i].Len); off >= l {
			off -= l
			continue
		}
		c := copy(b, spans[i].Bytes()[off:])
		b, n, off = b[c:], n+c, 0
	}
	return n
}

// Differ compares b with the spans from off bytes on and returns the index in b of the first difference, or -1.
func Differ(b []byte, spans []mem.Span, off int64) int {
	at := 0
	for i := range spans {
		if at == len(b) {
			break
		}
		if l := int64(spans[i].Len); off >= l {
			off -= l
			continue
		}
		s := spans[i].Bytes()[off:]
		s = s[:min(len(s), len(b)-at)]
		if !bytes.Equal(s, b[at:at+len(s)]) {
			for j := range s {
				if s[j] != b[at+j] {
					return at + j
				}
			}
		}
		at, off = at+len(s), 0
	}
	return -1
}
