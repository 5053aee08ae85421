// Package redo keeps short writes whole across a loss of power, on a medium that writes single sectors whole and nothing
// more: each goes to a log first.
//
// # One write
//
//  1. Begin writes the data with a hash to a slot of the log, durably. Power lost before its end leaves a slot whose hash
//     is wrong: nothing has happened.
//  2. The caller writes the data in place, durably. Power lost meanwhile leaves a slot that Recover writes again in full.
//  3. End wipes the slot, durably, and only then is the write acknowledged.
//
// From before Begin until after End no other writer touches the range: Recover would undo a newer write that was
// acknowledged as durable. A slot belongs to one writer at a time.
package redo

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/sluice-storage/sluice/mem"
)

const (
	// Max is the longest write in bytes. What databases call a page is 4 to 64 KiB; libiscsi's tests write 256 blocks.
	Max = 128 << 10
	// header begins a slot and takes a block of any disk, so that wiping it touches nothing else.
	header = 4096
	// SlotSize is what one slot takes of the store, and what Begin wants of scratch memory.
	SlotSize = header + Max

	sector = 512 // what is written whole or not at all; the magic and the hash lie in one
	fields = header - 16
	owner  = fields - sha256.Size // hash of the device's name
)

// magic begins a slot that is in use; its last byte is the version of the layout. Version 1 had no owner.
var (
	magic  = [8]byte{'S', 'l', 'R', 'e', 'd', 'o', 0, 2}
	magic1 = [8]byte{'S', 'l', 'R', 'e', 'd', 'o', 0, 1}
)

// ErrForeign is a record of a write to another device.
var ErrForeign = errors.New("the log holds a write that a crash interrupted on another device")

// Store is where the log lies.
type Store interface {
	io.ReaderAt
	// WriteDurably writes b at off; when it returns without an error that survives a loss of power.
	WriteDurably(b []byte, off int64) error
}

// Log is a number of slots on a Store. Different slots may be used by different goroutines at once.
type Log struct {
	store Store
	owner [sha256.Size]byte
}

// New makes a log of what store holds for the device of this name: a record of another one is never applied. Recover
// comes before the first Begin.
func New(store Store, device string) *Log {
	return &Log{store: store, owner: sha256.Sum256([]byte(device))}
}

// Begin writes data, meant for off, to a slot. scratch has SlotSize bytes. After an error, as after success, End is due.
func (l *Log) Begin(slot int, scratch []byte, off int64, data []mem.Span, n int) error {
	b := scratch[:header+n]
	clear(b[:header])
	binary.BigEndian.PutUint64(b[fields:], uint64(off))
	binary.BigEndian.PutUint64(b[fields+8:], uint64(n))
	mem.Gather(b[header:], data, 0)
	copy(b, magic[:])
	copy(b[owner:], l.owner[:])
	hash := sha256.Sum256(b[owner:])
	copy(b[len(magic):], hash[:])
	return l.store.WriteDurably(b, int64(slot)*SlotSize)
}

var zeroes [sector]byte

// End wipes a slot. After an error Recover may or may not find it: until it has run nothing may be written to the range
// any more that should last.
func (l *Log) End(slot int) error { return l.store.WriteDurably(zeroes[:], int64(slot)*SlotSize) }

// Scrub overwrites what is left in slots of writes that are over. No slot is in use meanwhile.
func (l *Log) Scrub(slots int) error {
	b := make([]byte, SlotSize)
	for slot := range slots {
		if err := l.store.WriteDurably(b, int64(slot)*SlotSize); err != nil {
			return err
		}
	}
	return nil
}

// read returns what slot holds, nil where that is no whole record.
func (l *Log) read(slot int, scratch []byte) (off int64, data []byte, err error) {
	at := int64(slot) * SlotSize
	if _, err := l.store.ReadAt(scratch[:header], at); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint64(scratch[fields+8:])
	first := owner
	switch [8]byte(scratch) {
	case magic:
	case magic1:
		first = fields
	default:
		return 0, nil, nil
	}
	if n == 0 || n > Max {
		return 0, nil, nil
	}
	if _, err := l.store.ReadAt(scratch[header:header+n], at+header); err != nil {
		return 0, nil, err
	}
	if sha256.Sum256(scratch[first:header+n]) != [32]byte(scratch[len(magic):]) {
		return 0, nil, nil
	}
	if first == owner && l.owner != [32]byte(scratch[owner:]) {
		return 0, nil, ErrForeign
	}
	return int64(binary.BigEndian.Uint64(scratch[fields:])), scratch[header : header+n], nil
}

// Recover gives every write that was under way to apply, which writes it in place durably, and wipes its slot. It returns
// how many there were. Power lost in the middle of it does no harm: it begins again.
func (l *Log) Recover(slots int, apply func(off int64, data []byte) error) (int, error) {
	scratch := make([]byte, SlotSize)
	found := 0
	for slot := range slots {
		off, data, err := l.read(slot, scratch)
		if err != nil {
			return found, fmt.Errorf("redo log, slot %d: %w", slot, err)
		}
		if data == nil {
			continue
		}
		if err := apply(off, data); err != nil {
			return found, fmt.Errorf("redo log, slot %d, %d bytes for %d: %w", slot, len(data), off, err)
		}
		if err := l.End(slot); err != nil {
			return found, fmt.Errorf("redo log, slot %d: %w", slot, err)
		}
		found++
	}
	return found, nil
}

// Owned reports whether there is a write that was made to this log's device and to no other.
func (l *Log) Owned(slots int) (bool, error) {
	scratch := make([]byte, SlotSize)
	for slot := range slots {
		switch _, data, err := l.read(slot, scratch); {
		case errors.Is(err, ErrForeign):
		case err != nil:
			return false, err
		case data != nil && [8]byte(scratch) == magic:
			return true, nil
		}
	}
	return false, nil
}

// Pending reports whether Recover would find something.
func (l *Log) Pending(slots int) (bool, error) {
	scratch := make([]byte, SlotSize)
	for slot := range slots {
		if _, data, err := l.read(slot, scratch); err != nil || data != nil {
			return data != nil, err
		}
	}
	return false, nil
}
