package rpcrdma

import "encoding/binary"

// Private is the private message of RFC 8797 section 4.
type Private struct {
	RemoteInv bool // the sender of the message can be sent remote invalidations
	SendSize  int  // bytes, the largest inline message its sender sends
	RecvSize  int  // bytes, the largest inline message its sender takes
}

const (
	privateMagic = 0xf6ab0e18
	// PrivateLen is the length of the private message in bytes.
	PrivateLen = 8
)

// Append appends the message. Sizes are rounded down to 1024 bytes, at least 1024.
func (p Private) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, privateMagic)
	var flags byte
	if p.RemoteInv {
		flags = 1
	}
	return append(b, 1, flags, sizeCode(p.SendSize), sizeCode(p.RecvSize))
}

func sizeCode(n int) byte { return byte(min(max(n/1024, 1), 256) - 1) }

// ParsePrivate reads a peer's private data. Without a message in it, both sizes are DefaultInline and remote
// invalidation is off (RFC 8797 section 4.1). A message of another version counts as none.
func ParsePrivate(b []byte) (p Private, found bool) {
	if len(b) < PrivateLen || binary.BigEndian.Uint32(b) != privateMagic || b[4] != 1 {
		return Private{SendSize: DefaultInline, RecvSize: DefaultInline}, false
	}
	return Private{RemoteInv: b[5]&1 != 0, SendSize: (int(b[6]) + 1) * 1024, RecvSize: (int(b[7]) + 1) * 1024}, true
}
