// Package sparse is a block engine of a program's own: it keeps what was written in a map of blocks. What was never written takes no
// room and reads as zeroes.
package sparse

import (
	"slices"
	"sync"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
)

const block = 512

// Disk implements blockdev.Device. Memory is its medium: a write is as durable as it will ever be when it completes, so that Flush has
// nothing to do.
type Disk struct {
	size int64

	mu     sync.RWMutex
	blocks map[int64][]byte // by offset
	closed bool
}

var _ blockdev.Device = (*Disk)(nil)

// New returns a disk of size bytes, a multiple of 512.
func New(size int64) *Disk { return &Disk{size: size, blocks: map[int64][]byte{}} }

// Geometry implements blockdev.Device.
func (d *Disk) Geometry() blockdev.Geometry {
	return blockdev.Geometry{Size: d.size, Logical: block, Physical: block, Thin: true, DiscardUnit: block, DiscardZeroes: true}
}

// Can implements blockdev.Capable: Discard and WriteZeroes are to be had beside what every engine does.
func (d *Disk) Can(op blockdev.Op) bool { return op >= blockdev.Read && op <= blockdev.WriteZeroes }

// Submit implements blockdev.Device. Nothing here blocks on a medium, so that every request is complete before it returns.
func (d *Disk) Submit(r *blockdev.Request) {
	r.Err = d.do(r)
	r.Done(r)
}

func (d *Disk) do(r *blockdev.Request) error {
	switch {
	case !d.Can(r.Op), r.Atomic:
		return blockdev.ErrUnsupported
	case r.Op != blockdev.Flush && (r.Offset < 0 || r.Length < 0 || r.Offset%block != 0 || r.Length%block != 0 || r.Offset > d.size-r.Length):
		return blockdev.ErrRange
	case (r.Op == blockdev.Read || r.Op == blockdev.Write) && length(r.Data) != r.Length:
		return blockdev.ErrRange
	}
	if r.Op == blockdev.Read {
		d.mu.RLock()
		defer d.mu.RUnlock()
	} else {
		d.mu.Lock()
		defer d.mu.Unlock()
	}
	if d.closed {
		return blockdev.ErrClosed
	}
	switch r.Op {
	case blockdev.Read:
		data := make([]byte, r.Length)
		for at := int64(0); at < r.Length; at += block {
			if b := d.blocks[r.Offset+at]; b != nil {
				copy(data[at:], b)
			}
		}
		for _, s := range r.Data {
			data = data[copy(s.Bytes(), data):]
		}
	case blockdev.Write:
		data := make([]byte, 0, r.Length)
		for _, s := range r.Data { // a span may end within a block
			data = append(data, s.Bytes()...)
		}
		for at := int64(0); at < r.Length; at += block {
			d.blocks[r.Offset+at] = slices.Clone(data[at : at+block])
		}
	case blockdev.Discard, blockdev.WriteZeroes:
		for at := int64(0); at < r.Length; at += block {
			delete(d.blocks, r.Offset+at)
		}
	}
	return nil
}

// length is the memory that a request brings.
func length(spans []mem.Span) (n int64) {
	for _, s := range spans {
		n += int64(s.Len)
	}
	return n
}

// Used is the room that is taken, in bytes.
func (d *Disk) Used() int64 {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return int64(len(d.blocks)) * block
}

// Close implements blockdev.Device.
func (d *Disk) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	return nil
}
