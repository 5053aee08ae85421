package filelock

import (
	"math"
	"net/netip"

	"github.com/sluice-storage/sluice/target/filesystem"
)

// Client is one that has locks. Its name alone is not enough: containers and cloned machines share names, and two of them must not share locks.
type Client struct {
	Protocol string // that the name is of: clients of two protocols are never the same one
	Name     string // as it calls itself
	Addr     netip.Addr
}

// Owner is what ranges and shares belong to: those of one owner never conflict.
type Owner struct {
	Client Client
	Name   string // unique within the client; ranges and shares have names of their own
}

// Range is bytes of a file. End is the last one.
type Range struct{ Start, End uint64 }

// RangeOf is n bytes from off; n of 0, or one that wraps, is to the end.
func RangeOf(off, n uint64) Range {
	if n == 0 || off+n-1 < off {
		return Range{off, math.MaxUint64}
	}
	return Range{off, off + n - 1}
}

// Len is the number of bytes, 0 for a range to the end.
func (r Range) Len() uint64 {
	if r.End == math.MaxUint64 {
		return 0
	}
	return r.End - r.Start + 1
}

func (r Range) overlaps(o Range) bool { return r.Start <= o.End && o.Start <= r.End }

// Lock is one range that an owner has or wants.
type Lock struct {
	Owner Owner
	Range
	Exclusive bool
	// Privileged says that the client's root has asked for it; Drop on behalf of another user leaves it.
	Privileged bool
}

// same reports whether o is what l asks for, on whosever behalf.
func (l *Lock) same(o *Lock) bool {
	return l.Owner == o.Owner && l.Exclusive == o.Exclusive && l.Range == o.Range
}

// Share is a share reservation: what its owner does, and what it denies others. Both are bits, 1 for reading and 2 for writing (RFC 1813
// appendix II, fsh4_access and fsh4_mode; RFC 8881 section 9.7 has the same).
type Share struct {
	Owner        Owner
	Access, Deny uint32
	Privileged   bool // as a Lock's
}

// File is the file that a request is about.
type File struct {
	Key    filesystem.FileKey
	Handle []byte // as the client gives it; only read during the call
}
