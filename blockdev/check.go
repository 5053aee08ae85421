package blockdev

import (
	"math"

	"github.com/sluice-storage/sluice/mem"
)

// Check is what every engine asks first: the arguments of r against g. It answers nil, ErrRange, ErrReadOnly or
// ErrUnsupported for an operation that does not exist. Whether the engine has the operation is the engine's to say.
func (r *Request) Check(g *Geometry) error {
	switch r.Op {
	case Flush:
		return nil
	case Write, Discard, WriteZeroes, CompareWrite:
		if g.ReadOnly {
			return ErrReadOnly
		}
	case Read, Status:
	default:
		return ErrUnsupported
	}
	block := int64(g.Logical)
	if r.Offset < 0 || r.Length < 0 || r.Length > math.MaxInt64-r.Offset || r.Offset+r.Length > g.Size ||
		r.Offset%block != 0 || r.Length%block != 0 {
		return ErrRange
	}
	if r.Atomic {
		if g.AtomicMax == 0 || r.Op != Write {
			return ErrUnsupported
		}
		if unit := int64(g.AtomicUnit); r.Length > g.AtomicMax || r.Offset%unit != 0 || r.Length%unit != 0 {
			return ErrRange
		}
	}
	switch r.Op {
	case CompareWrite:
		if mem.Total(r.Compare) != r.Length {
			return ErrRange
		}
		fallthrough
	case Read, Write:
		if mem.Total(r.Data) != r.Length {
			return ErrRange
		}
	case Discard:
		if g.MaxDiscard > 0 && r.Length > g.MaxDiscard {
			return ErrRange
		}
	}
	return nil
}

// Finish sets the outcome, calls Done and flushes After.
func (r *Request) Finish(err error) {
	after := r.After // the request may be in use again behind its Done
	r.Err = err
	r.Done(r)
	if after != nil {
		after.Flush()
	}
}
