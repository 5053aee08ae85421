// Package xdr encodes and decodes the external data representation of RFC 4506 by appending to and reading from byte
// slices. There is no reflection and no allocation but for what the caller asks: an attribute set costs nanoseconds.
//
// A Reader has a sticky error: read a whole structure, then look once. Every length is checked against the caller's
// limit and against what is there before anything is sliced.
package xdr

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrShort says that the data ended inside an item.
var ErrShort = errors.New("xdr: the data ends inside an item")

// LimitError says that a peer announced more than the protocol or this side allows.
type LimitError struct {
	Len, Max uint32
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("xdr: the peer announced %d bytes or items where %d are allowed", e.Len, e.Max)
}

// ValueError says that a bool, enum or discriminant holds a number without a meaning (RFC 4506 sections 4.3, 4.4, 4.15).
type ValueError struct {
	What  string
	Value uint32
}

func (e *ValueError) Error() string {
	return fmt.Sprintf("xdr: %d is no value of %s", e.Value, e.What)
}

// Pad is the number of zero bytes after n bytes of opaque data (RFC 4506 section 4.10).
func Pad(n int) int { return -n & 3 }

var zeroes [4]byte

// AppendUint32 appends an unsigned integer, enum or length (RFC 4506 section 4.2).
func AppendUint32(b []byte, v uint32) []byte { return binary.BigEndian.AppendUint32(b, v) }

// AppendUint64 appends an unsigned hyper integer (RFC 4506 section 4.5).
func AppendUint64(b []byte, v uint64) []byte { return binary.BigEndian.AppendUint64(b, v) }

// AppendBool appends a boolean (RFC 4506 section 4.4).
func AppendBool(b []byte, v bool) []byte {
	if v {
		return AppendUint32(b, 1)
	}
	return AppendUint32(b, 0)
}

// AppendFixed appends opaque data whose length both ends know, and its padding (RFC 4506 section 4.9).
func AppendFixed(b, v []byte) []byte { return AppendPad(append(b, v...), len(v)) }

// AppendOpaque appends a length, the data and its padding (RFC 4506 section 4.10).
func AppendOpaque(b, v []byte) []byte { return AppendFixed(AppendUint32(b, uint32(len(v))), v) }

// AppendString is AppendOpaque for a string (RFC 4506 section 4.11).
func AppendString(b []byte, v string) []byte {
	b = AppendUint32(b, uint32(len(v)))
	return AppendPad(append(b, v...), len(v))
}

// AppendPad appends the padding of n bytes of opaque data.
func AppendPad(b []byte, n int) []byte { return append(b, zeroes[:Pad(n)]...) }

// Reader takes items from a slice. What it returns as bytes aliases the slice. The zero Reader is empty.
type Reader struct {
	b   []byte
	off int
	err error
}

// NewReader returns a Reader of b.
func NewReader(b []byte) Reader { return Reader{b: b} }

// Reset makes r read b from the beginning.
func (r *Reader) Reset(b []byte) { *r = Reader{b: b} }

// Err is the first error, nil if everything so far was there and legal.
func (r *Reader) Err() error { return r.err }

// Fail makes err the sticky error unless there is one.
func (r *Reader) Fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// Offset is the position in bytes of the next item.
func (r *Reader) Offset() int { return r.off }

// Len is the number of bytes not read yet; 0 after an error.
func (r *Reader) Len() int {
	if r.err != nil {
		return 0
	}
	return len(r.b) - r.off
}

// Rest takes all that is left.
func (r *Reader) Rest() []byte { return r.take(r.Len()) }

func (r *Reader) take(n int) []byte {
	if r.err != nil {
		return nil
	}
	if n < 0 || n > len(r.b)-r.off {
		r.err = ErrShort
		return nil
	}
	v := r.b[r.off : r.off+n : r.off+n]
	r.off += n
	return v
}

// Uint32 takes an unsigned integer.
func (r *Reader) Uint32() uint32 {
	v := r.take(4)
	if v == nil {
		return 0
	}
	return binary.BigEndian.Uint32(v)
}

// Uint64 takes an unsigned hyper integer.
func (r *Reader) Uint64() uint64 {
	v := r.take(8)
	if v == nil {
		return 0
	}
	return binary.BigEndian.Uint64(v)
}

// Bool takes a boolean; only 0 and 1 are legal.
func (r *Reader) Bool() bool {
	switch v := r.Uint32(); v {
	case 0:
		return false
	case 1:
		return true
	default:
		r.Fail(&ValueError{What: "bool", Value: v})
		return false
	}
}

// Enum takes an enum of at most max.
func (r *Reader) Enum(what string, max uint32) uint32 {
	v := r.Uint32()
	if v > max {
		r.Fail(&ValueError{What: what, Value: v})
		return 0
	}
	return v
}

// Count takes the number of items that follow, at most max.
func (r *Reader) Count(max uint32) int {
	n := r.Uint32()
	if n > max {
		r.Fail(&LimitError{Len: n, Max: max})
		return 0
	}
	return int(n)
}

// Fixed takes n bytes of opaque data and skips their padding. Padding bytes are not looked at: peers leave rubbish there.
func (r *Reader) Fixed(n int) []byte {
	v := r.take(n)
	if p := Pad(n); p != 0 && r.err == nil {
		r.take(p)
	}
	if r.err != nil {
		return nil
	}
	return v
}

// Opaque takes variable-length opaque data of at most max bytes. It is never nil without an error.
func (r *Reader) Opaque(max int) []byte {
	n := r.Uint32()
	if r.err == nil && n > uint32(max) {
		r.Fail(&LimitError{Len: n, Max: uint32(max)})
	}
	if r.err != nil {
		return nil
	}
	return r.Fixed(int(n))
}

// String is Opaque as a string, which allocates.
func (r *Reader) String(max int) string { return string(r.Opaque(max)) }
