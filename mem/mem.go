// Package mem owns the memory that bulk data travels through: mmapped slabs that a fabric registers once, and
// buffer handles cut from them that block devices and movers fill and drain.
//
// It imports neither transport nor blockdev and neither of them imports the other: a handle is what they share
// (RFC 4297 section 4: data that is placed directly needs memory that both ends of the path agree on).
package mem

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
)

// PageSize is the alignment of every slab and of every buffer, so that O_DIRECT and memory registration take them
// as they are.
const PageSize = 4096

// ErrNoMemory is returned by Get when the pool or the quota has reached its bound. It is temporary: ask again
// from a Wait callback.
var ErrNoMemory = errors.New("mem: no registered buffer is free")

// ErrNoRoom is what the error of a Registrar's Register is where it has no room for more memory now (the limit of locked memory, as a
// rule): the pool does then with what it has.
var ErrNoRoom = errors.New("mem: no more memory can be registered")

// Slab is one mmapped region. Providers register a slab once and address it by ID.
type Slab struct {
	id uint32
	b  []byte
	fd int // of a Shared one; -1 otherwise
}

var slabIDs atomic.Uint32

// NewSlab maps size bytes of anonymous memory, rounded up to whole pages. The caller closes it.
func NewSlab(size int) (*Slab, error) {
	if size <= 0 {
		return nil, fmt.Errorf("mem: slab of %d bytes asked for", size)
	}
	size = (size + PageSize - 1) &^ (PageSize - 1)
	b, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("mem: map a slab of %d bytes: %w", size, err)
	}
	return &Slab{id: slabIDs.Add(1), b: b, fd: -1}, nil
}

// ID identifies the slab within the process; it is never 0 and never used again.
func (s *Slab) ID() uint32 { return s.id }

// Bytes is the whole region.
func (s *Slab) Bytes() []byte { return s.b }

// Close unmaps the slab. Nothing may refer to it any more. Another process that has mapped a Shared one keeps its pages.
func (s *Slab) Close() error {
	b, fd := s.b, s.fd
	s.b, s.fd = nil, -1
	err := syscall.Munmap(b)
	if fd >= 0 {
		err = errors.Join(err, syscall.Close(fd))
	}
	return err
}

// Span is a part of a slab: what a work request or a device request names.
type Span struct {
	Slab *Slab
	Off  int // bytes from the start of the slab
	Len  int // bytes
}

// Bytes is the memory of the span. It panics when the span leaves its slab: that is a mistake of ours, never of a peer.
func (s Span) Bytes() []byte { return s.Slab.b[s.Off : s.Off+s.Len : s.Off+s.Len] }

// Cut returns the n bytes of the span that begin off bytes into it.
func (s Span) Cut(off, n int) Span {
	if off < 0 || n < 0 || off+n > s.Len {
		panic(fmt.Sprintf("mem: cut [%d,%d) of a span of %d bytes", off, off+n, s.Len))
	}
	return Span{Slab: s.Slab, Off: s.Off + off, Len: n}
}

// Buf is the handle of one buffer. Exactly one owner holds it and calls Release once; a second Release panics.
type Buf struct {
	pool  *Pool
	quota *Quota
	span  Span // whole capacity of the class
	class int
	n     int // bytes asked for
	held  atomic.Bool
	next  *Buf
}

// hand makes b the caller's.
func (b *Buf) hand(n int, s *Quota) {
	b.n, b.quota = n, s
	b.held.Store(true)
}

// Span is the buffer's memory, as long as was asked for.
func (b *Buf) Span() Span {
	b.check()
	return Span{Slab: b.span.Slab, Off: b.span.Off, Len: b.n}
}

// Bytes is Span().Bytes().
func (b *Buf) Bytes() []byte { return b.Span().Bytes() }

// Len is the number of bytes asked for.
func (b *Buf) Len() int { return b.n }

func (b *Buf) check() {
	if !b.held.Load() {
		panic("mem: a buffer is used after its release")
	}
}

// Release gives the buffer back. Any goroutine may call it, once.
func (b *Buf) Release() {
	if !b.held.CompareAndSwap(true, false) {
		panic("mem: a buffer is released twice")
	}
	if s := b.quota; s != nil {
		s.put(b)
		return
	}
	b.pool.put(b)
}
