// Package rping speaks the protocol of librdmacm's rping program, so that a fabric can be tried against any machine
// that has one. A ping takes six steps:
//
//  1. The client makes a line of text and sends where it is: address, key, size.
//  2. The server fetches it by RDMA Read and sends an empty go-ahead.
//  3. The client sends where it wants the line back.
//  4. The server places it there by RDMA Write, sends another go-ahead, and the client compares.
package rping

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strconv"

	"github.com/sluice-storage/sluice/transport"
)

const (
	// MinSize leaves room for the prefix and the largest 32-bit number.
	MinSize = 26
	// MaxSize is the program's own bound.
	MaxSize = 65535

	// DefaultPort is the program's.
	DefaultPort = "7174"

	infoLen = 16
)

// info is the one message there is: {address be64, key be32, size be32}.
type info struct {
	at   transport.Remote
	size int
}

func (i info) put(b []byte) {
	binary.BigEndian.PutUint64(b, i.at.Off)
	binary.BigEndian.PutUint32(b[8:], i.at.STag)
	binary.BigEndian.PutUint32(b[12:], uint32(i.size))
}

func parseInfo(b []byte) (info, error) {
	if len(b) != infoLen {
		return info{}, fmt.Errorf("rping: the peer's message has %d bytes, not %d", len(b), infoLen)
	}
	n := binary.BigEndian.Uint32(b[12:])
	if n == 0 || n > MaxSize {
		return info{}, fmt.Errorf("rping: the peer names %d bytes, not 1 to %d", n, MaxSize)
	}
	return info{transport.Remote{STag: binary.BigEndian.Uint32(b[8:]), Off: binary.BigEndian.Uint64(b)}, int(n)}, nil
}

const (
	prefix    = "rdma-ping-"
	firstChar = 'A'
	lastChar  = 'z'
)

// fill writes the text of ping n: prefix, number, and the characters A to z in turn, which begin one later each ping.
// The last byte is 0.
func fill(b []byte, n int) {
	text := append(strconv.AppendInt(append(make([]byte, 0, MinSize), prefix...), int64(n), 10), ": "...)
	at := copy(b, text)
	const chars = lastChar - firstChar + 1
	for i := at; i < len(b); i++ {
		b[i] = firstChar + byte((n+i-at)%chars)
	}
	b[len(b)-1] = 0
}

// check says where b differs from the text of ping n.
func check(b []byte, n int) error {
	want := make([]byte, len(b))
	fill(want, n)
	return differ(n, b, want)
}

func differ(n int, got, want []byte) error {
	if bytes.Equal(got, want) {
		return nil
	}
	for i := range want {
		if got[i] != want[i] {
			return &DataError{Ping: n, Size: len(want), At: i, Got: got[i], Want: want[i]}
		}
	}
	return nil
}

// DataError is a ping that came back, or arrived, with other bytes.
type DataError struct {
	Ping, Size, At int
	Got, Want      byte
}

func (e *DataError) Error() string {
	return fmt.Sprintf("rping: byte %d of %d in ping %d is %02x and should be %02x", e.At, e.Size, e.Ping, e.Got, e.Want)
}
