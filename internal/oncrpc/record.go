package oncrpc

import (
	"encoding/binary"
	"fmt"
)

// MarkLen is the length in bytes of a record mark (RFC 5531 section 11).
const MarkLen = 4

// PutMark writes the mark of a fragment of n bytes, the last of its record if last.
func PutMark(b []byte, n int, last bool) {
	v := uint32(n)
	if last {
		v |= 1 << 31
	}
	binary.BigEndian.PutUint32(b, v)
}

// ParseMark reads a mark.
func ParseMark(b []byte) (n int, last bool) {
	v := binary.BigEndian.Uint32(b)
	return int(v &^ (1 << 31)), v>>31 == 1
}

// RecordError says that a stream's record cannot be taken: too long, or in endless empty fragments.
type RecordError struct{ Len, Max int }

func (e *RecordError) Error() string {
	return fmt.Sprintf("rpc: the peer sends a record of %d bytes or more; %d are allowed. Is something else talking to this port?", e.Len, e.Max)
}
