package shm

import (
	"sync/atomic"
	"unsafe"

	"github.com/sluice-storage/sluice/mem"
)

// A region is what one side writes and the other reads: a page with the numbers below, and behind it the slots of a ring. The
// numbers lie in lines of their own, by who looks at them when.
const (
	atTail   = 0   // slots that have been put into this ring so far; its owner's
	atEnded  = 8   // how its owner has ended: an ending
	atHead   = 64  // slots that have been taken from the other ring so far; its taker's, who is this region's owner
	atParked = 128 // odd while the owner waits to be rung
	atWant   = 136 // the owner wants to be rung when the other side has taken that many slots of this ring
	atWords  = 256 // the owner's last words: layer, type, code, length, text
	pageLen  = 4096
)

// ending is what a region's owner says of its end, behind everything that it has put into the ring.
type ending uint32

const (
	living ending = iota
	closed        // in order
	broken        // for the reason in the last words
	cutOff        // and what the other side has not taken yet must not have an effect
)

// region is the mapping of one.
type region struct {
	b     []byte
	slots []byte
	mask  uint64 // slots, less one
	tail  *atomic.Uint64
	head  *atomic.Uint64
	want  *atomic.Uint64
	ended *atomic.Uint32
	park  *atomic.Uint32
}

// regionSize is how many bytes a region with so many slots has.
func regionSize(slots int) int { return pageLen + slots*slotSize }

func newRegion(b []byte) region {
	at64 := func(i int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&b[i])) }
	at32 := func(i int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&b[i])) }
	return region{b: b, slots: b[pageLen:], mask: uint64((len(b)-pageLen)/slotSize) - 1,
		tail: at64(atTail), head: at64(atHead), want: at64(atWant), ended: at32(atEnded), park: at32(atParked)}
}

// length is the number of slots.
func (r *region) length() uint64 { return r.mask + 1 }

// at is the memory of n slots from number i on, if they lie together.
func (r *region) at(i uint64, n int) ([]byte, bool) {
	from := int(i&r.mask) * slotSize
	if from+n*slotSize > len(r.slots) {
		return nil, false
	}
	return r.slots[from : from+n*slotSize], true
}

// copyOut copies the slots from number i on into b.
func (r *region) copyOut(b []byte, i uint64) {
	n := copy(b, r.slots[int(i&r.mask)*slotSize:])
	copy(b[n:], r.slots)
}

// copyIn copies b into the slots from number i on.
func (r *region) copyIn(i uint64, b []byte) {
	n := copy(r.slots[int(i&r.mask)*slotSize:], b)
	copy(r.slots, b[n:])
}

// ownRegion is a region of this side's, and the slab that it lies in.
func ownRegion(slots int) (region, *mem.Slab, error) {
	s, err := mem.Shared.NewSlab(regionSize(slots))
	if err != nil {
		return region{}, nil, err
	}
	r := newRegion(s.Bytes())
	r.want.Store(^uint64(0))
	return r, s, nil
}
