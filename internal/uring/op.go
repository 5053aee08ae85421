package uring

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/state"
)

// opState is the life of an Op. The lock of its Queue guards it.
//
//	free -> taken -> under way -> ended -> free
//	        taken -> free       its user has thought better of it
type opState uint8

const (
	// opFree: it is in the queue's list.
	opFree opState = iota
	// opTaken: its user fills it.
	opTaken
	// opUnderWay: its entry is written. The kernel may use the memory that it names.
	opUnderWay
	// opEnded: its completion is with the handler. The kernel has let go of the memory.
	opEnded
)

var opLife = state.New("an operation of a ring", []string{"free", "taken", "under way", "ended"}, state.Next[opState]{
	opFree:     {opTaken},
	opTaken:    {opUnderWay, opFree},
	opUnderWay: {opEnded},
	opEnded:    {opFree},
})

// Op is one operation. It belongs to its Queue; who has taken it may use it until it is freed. T is what the user remembers of it.
type Op[T any] struct {
	V T
	// IOV is the memory to read into or to write, until QueueLocked. The kernel has read the vector itself when the entry is taken.
	IOV [Spans]unix.Iovec
	// Res is the outcome of one that has ended: bytes, or the negative of an errno.
	Res int32

	entry sqe
	state opState
	slot  uint32
	next  *Op[T]
}

// Next is the next of the operations that ended together, nil behind the last.
func (o *Op[T]) Next() *Op[T] { return o.next }

// Errno is the outcome of an operation that has ended and failed, 0 of one that has not.
func (o *Op[T]) Errno() unix.Errno {
	if o.Res < 0 {
		return unix.Errno(-o.Res)
	}
	return 0
}

// Read makes it a read of the first n of IOV at off; flags are those of preadv2(2). The descriptor stays open until the entry is taken.
func (o *Op[T]) Read(fd, n int, off int64, flags int) { o.move(opRead, opReadv, fd, n, off, flags) }

// Write makes it a write, as Read does; flags are those of pwritev2(2).
func (o *Op[T]) Write(fd, n int, off int64, flags int) { o.move(opWrite, opWritev, fd, n, off, flags) }

// Nop makes it an operation that does nothing.
func (o *Op[T]) Nop() { o.entry = sqe{opcode: opNop} }

// move fills the entry. One piece of memory needs no vector, which the kernel would have to copy.
func (o *Op[T]) move(one, many uint8, fd, n int, off int64, flags int) {
	o.entry = sqe{opcode: many, fd: int32(fd), off: uint64(off), rwFlags: uint32(flags)}
	if n == 1 {
		o.entry.opcode = one
		o.entry.addr, o.entry.len = uint64(uintptr(unsafe.Pointer(o.IOV[0].Base))), uint32(o.IOV[0].Len)
		return
	}
	o.entry.addr, o.entry.len = uint64(uintptr(unsafe.Pointer(&o.IOV[0]))), uint32(n)
}
