package shm

import (
	"encoding/binary"
	"fmt"
)

// A record is one message in a ring: a descriptor of 64 bytes, and behind it, in whole slots, what does not fit that. Numbers are
// little endian.
//
//	 0  operation
//	 1  flags
//	 2  pieces of memory that the payload lies in; 0 where it lies in the record
//	 3  slots of the record
//	 4  bytes of payload, 4 bytes
//	 8  STag, 4 bytes: of a Write or Read Request the one it names, of a Send with Invalidate the one that ends
//	12  zero, 4 bytes
//	16  tagged offset, 8 bytes
//	24  zero, 8 bytes
//	32  pieces of 16 bytes each, or payload
type record struct {
	op     uint8
	flags  uint8
	slots  uint8
	size   uint32
	stag   uint32
	off    uint64
	pieces []piece // of the sender's memory
	inline []byte  // or the payload
}

// piece is memory of the sender's.
type piece struct {
	slab uint32 // the number that the sender gave it
	n    uint32 // bytes, never 0
	off  uint64 // bytes from the start of the slab
}

// Operations.
const (
	opSend uint8 = iota + 1
	opSendInv
	opWrite
	opReadReq  // has no payload; size is what is asked for
	opReadResp // answers the oldest Read Request
	opMax
)

const flagSolicited = 1 // of a Send

const (
	headLen    = 32 // bytes of a descriptor before pieces or payload
	pieceLen   = 16
	maxRecord  = (headLen + max(inlineMax, maxSGE*pieceLen) + slotSize - 1) / slotSize // slots
	maxRecordB = maxRecord * slotSize
)

// slotsFor is how many slots a record with n bytes behind its head has.
func slotsFor(n int) int { return (headLen + n + slotSize - 1) / slotSize }

// put encodes a record's head and pieces into b, which has room for all its slots, and returns where its payload goes.
func (r *record) put(b []byte) []byte {
	_ = b[headLen-1]
	b[0], b[1], b[2], b[3] = r.op, r.flags, uint8(len(r.pieces)), r.slots
	binary.LittleEndian.PutUint32(b[4:], r.size)
	binary.LittleEndian.PutUint32(b[8:], r.stag)
	binary.LittleEndian.PutUint32(b[12:], 0)
	binary.LittleEndian.PutUint64(b[16:], r.off)
	binary.LittleEndian.PutUint64(b[24:], 0)
	for i := range r.pieces {
		p := b[headLen+i*pieceLen:]
		binary.LittleEndian.PutUint32(p, r.pieces[i].slab)
		binary.LittleEndian.PutUint32(p[4:], r.pieces[i].n)
		binary.LittleEndian.PutUint64(p[8:], r.pieces[i].off)
	}
	return b[headLen:]
}

// parse decodes a record that has been copied out of the ring: b is all of it, as long as its slots are. What it accepts is
// consistent in itself; whether the memory it names exists is for others to say.
func (r *record) parse(b []byte) error {
	if len(b) < slotSize {
		return fmt.Errorf("a record of %d bytes, which is no slot", len(b))
	}
	if len(b) > maxRecordB || len(b) != int(b[3])*slotSize {
		return fmt.Errorf("a record of %d slots in %d bytes", b[3], len(b))
	}
	r.op, r.flags, r.slots = b[0], b[1], b[3]
	n := int(b[2])
	r.size = binary.LittleEndian.Uint32(b[4:])
	r.stag = binary.LittleEndian.Uint32(b[8:])
	r.off = binary.LittleEndian.Uint64(b[16:])
	r.pieces, r.inline = r.pieces[:0], nil
	zero := binary.LittleEndian.Uint32(b[12:]) == 0 && binary.LittleEndian.Uint64(b[24:]) == 0
	body := 0
	switch {
	case r.op == 0 || r.op >= opMax:
		return fmt.Errorf("operation %d, which is none", r.op)
	case r.flags&^flagSolicited != 0 || !zero:
		return fmt.Errorf("a record with flags 0x%02x and unknown fields", r.flags)
	case n > maxSGE:
		return fmt.Errorf("payload in %d pieces, at most %d are taken", n, maxSGE)
	case r.size > maxMessage:
		return fmt.Errorf("a message of %d bytes, at most %d are taken", r.size, maxMessage)
	case r.op == opReadReq:
		if n != 0 {
			return fmt.Errorf("a Read Request with payload")
		}
	case n > 0:
		body = n * pieceLen
	case r.size > inlineMax:
		return fmt.Errorf("%d bytes of payload in a record, at most %d are taken", r.size, inlineMax)
	default:
		body = int(r.size)
	}
	if int(r.slots) != slotsFor(body) {
		return fmt.Errorf("a record of %d slots for %d bytes", r.slots, body)
	}
	if n == 0 {
		r.inline = b[headLen : headLen+body]
		return nil
	}
	left := int64(r.size)
	for i := range n {
		p := b[headLen+i*pieceLen:]
		q := piece{slab: binary.LittleEndian.Uint32(p), n: binary.LittleEndian.Uint32(p[4:]), off: binary.LittleEndian.Uint64(p[8:])}
		if q.n == 0 {
			return fmt.Errorf("a piece of no bytes")
		}
		left -= int64(q.n)
		r.pieces = append(r.pieces, q)
	}
	if left != 0 {
		return fmt.Errorf("%d bytes of payload in pieces of %d", r.size, int64(r.size)-left)
	}
	return nil
}
