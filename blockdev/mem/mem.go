// Package mem is a block device in memory: sparse, fast, gone with the process. Every request completes inside Submit.
package mem

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/internal/rangelock"
	"github.com/sluice-storage/sluice/mem"
)

const (
	chunkShift = 16 // 64 KiB a chunk: what one first write takes
	chunkSize  = 1 << chunkShift

	// maxSize bounds the table of chunks: 8 bytes each, 128 MiB for 1 TiB.
	maxSize = 1 << 40
)

// Options describe the device.
type Options struct {
	Size     int64 // bytes, a multiple of Logical
	Logical  int   // 512 by default
	Physical int   // Logical by default
	ReadOnly bool
}

// Device is the engine. Only Resize is beyond blockdev's interfaces.
type Device struct {
	geo   blockdev.Geometry // all but Size and Generation
	locks rangelock.Table

	mu     sync.RWMutex // held shared by every request, exclusively by Resize and Close
	size   int64
	gen    uint64
	chunks []atomic.Pointer[[chunkSize]byte]
	closed bool
}

var (
	_ blockdev.Device    = (*Device)(nil)
	_ blockdev.Capable   = (*Device)(nil)
	_ blockdev.Resizable = (*Device)(nil)
	_ blockdev.Explainer = (*Device)(nil)

	_ blockdev.LossReporter = (*Device)(nil)
)

// errVolatile is what became of the contents of an earlier device of the same name.
var errVolatile = fmt.Errorf("%w: memory holds nothing of what was written before the start", blockdev.ErrMedium)

// Open makes a device full of zeroes.
func Open(o Options) (*Device, error) {
	if o.Logical == 0 {
		o.Logical = 512
	}
	if o.Physical == 0 {
		o.Physical = o.Logical
	}
	if o.Size <= 0 || o.Size > maxSize || o.Size%int64(o.Logical) != 0 {
		return nil, fmt.Errorf("blockdev/mem: size of %d bytes; it must be a multiple of %d and at most 1 TiB", o.Size, o.Logical)
	}
	d := &Device{size: o.Size, geo: blockdev.Geometry{
		Logical: o.Logical, Physical: o.Physical, DiscardUnit: o.Logical, ReadOnly: o.ReadOnly, Thin: true, DiscardZeroes: true,
	}}
	d.locks.Shift = chunkShift
	d.chunks = make([]atomic.Pointer[[chunkSize]byte], chunksFor(o.Size))
	return d, nil
}

func chunksFor(size int64) int64 { return (size + chunkSize - 1) >> chunkShift }

// Geometry implements blockdev.Device.
func (d *Device) Geometry() blockdev.Geometry {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.geometryLocked()
}

func (d *Device) geometryLocked() blockdev.Geometry {
	g := d.geo
	g.Size, g.Generation = d.size, d.gen
	return g
}

// Can implements blockdev.Capable: everything.
func (d *Device) Can(op blockdev.Op) bool {
	return op >= blockdev.Read && op <= blockdev.Status
}

// Path implements blockdev.Explainer.
func (d *Device) Path() string { return "memory, inline" }

// Lost implements blockdev.LossReporter: a volume in memory begins empty each time.
func (d *Device) Lost() error { return errVolatile }

// TakeLoss implements blockdev.LossReporter. No flush fails for what it never had.
func (d *Device) TakeLoss(bool) {}

// Submit implements blockdev.Device.
func (d *Device) Submit(r *blockdev.Request) {
	d.mu.RLock()
	err := d.run(r)
	d.mu.RUnlock()
	r.Finish(err)
}

func (d *Device) run(r *blockdev.Request) error {
	if d.closed {
		return blockdev.ErrClosed
	}
	g := d.geometryLocked()
	if err := r.Check(&g); err != nil {
		return err
	}
	switch r.Op {
	case blockdev.Read:
		d.locks.RLock(r.Offset, r.Length)
		d.each(r, func(c *[chunkSize]byte, in, n, at int64) {
			if c == nil {
				for n > 0 {
					k := mem.Scatter(r.Data, at, zeroes[:min(n, chunkSize)])
					n, at = n-int64(k), at+int64(k)
				}
				return
			}
			mem.Scatter(r.Data, at, c[in:in+n])
		})
		d.locks.RUnlock(r.Offset, r.Length)
	case blockdev.Write:
		d.locks.Lock(r.Offset, r.Length)
		d.write(r)
		d.locks.Unlock(r.Offset, r.Length)
	case blockdev.Discard, blockdev.WriteZeroes:
		d.locks.Lock(r.Offset, r.Length)
		d.zero(r.Offset, r.Length)
		d.locks.Unlock(r.Offset, r.Length)
	case blockdev.CompareWrite:
		d.locks.Lock(r.Offset, r.Length)
		defer d.locks.Unlock(r.Offset, r.Length)
		if r.Miss = d.compare(r); r.Miss >= 0 {
			return blockdev.ErrMiscompare
		}
		r.Miss = 0
		d.write(r)
	case blockdev.Status:
		d.status(r)
	}
	return nil
}

var zeroes [chunkSize]byte

// each calls f for the part of r in every chunk: the chunk (nil for a hole), where in it, how long, and at which byte
// of the request.
func (d *Device) each(r *blockdev.Request, f func(c *[chunkSize]byte, in, n, at int64)) {
	for at := int64(0); at < r.Length; {
		off := r.Offset + at
		in := off & (chunkSize - 1)
		n := min(chunkSize-in, r.Length-at)
		f(d.chunks[off>>chunkShift].Load(), in, n, at)
		at += n
	}
}

func (d *Device) write(r *blockdev.Request) {
	for at := int64(0); at < r.Length; {
		off := r.Offset + at
		in := off & (chunkSize - 1)
		n := min(chunkSize-in, r.Length-at)
		p := &d.chunks[off>>chunkShift]
		c := p.Load()
		if c == nil {
			c = new([chunkSize]byte)
			p.Store(c)
		}
		mem.Gather(c[in:in+n], r.Data, at)
		at += n
	}
}

func (d *Device) compare(r *blockdev.Request) int64 {
	miss := int64(-1)
	d.each(r, func(c *[chunkSize]byte, in, n, at int64) {
		if c == nil {
			c = &zeroes
		}
		if i := mem.Differ(c[in:in+n], r.Compare, at); i >= 0 && miss < 0 {
			miss = at + int64(i)
		}
	})
	return miss
}

func (d *Device) zero(off, length int64) {
	for end := off + length; off < end; {
		in := off & (chunkSize - 1)
		n := min(chunkSize-in, end-off)
		p := &d.chunks[off>>chunkShift]
		switch c := p.Load(); {
		case c == nil:
		case n == chunkSize:
			p.Store(nil)
		default:
			clear(c[in : in+n])
		}
		off += n
	}
}

func (d *Device) status(r *blockdev.Request) {
	r.Extents = r.Extents[:0]
	end := r.Offset + r.Length
	for off := r.Offset; off < end; {
		n := min(chunkSize-off&(chunkSize-1), end-off)
		mapped := d.chunks[off>>chunkShift].Load() != nil
		if k := len(r.Extents); k > 0 && r.Extents[k-1].Mapped == mapped {
			r.Extents[k-1].Length += n
		} else if k == cap(r.Extents) {
			return
		} else {
			r.Extents = append(r.Extents, blockdev.Extent{Offset: off, Length: n, Mapped: mapped})
		}
		off += n
	}
}

// Resize changes the size; what is beyond the new end is lost.
func (d *Device) Resize(size int64) error {
	if size <= 0 || size > maxSize || size%int64(d.geo.Logical) != 0 {
		return fmt.Errorf("blockdev/mem: size of %d bytes; it must be a multiple of %d and at most 1 TiB", size, d.geo.Logical)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if size < d.size {
		d.zero(size, d.size-size)
	}
	chunks := make([]atomic.Pointer[[chunkSize]byte], chunksFor(size))
	for i := range min(len(chunks), len(d.chunks)) {
		chunks[i].Store(d.chunks[i].Load())
	}
	if d.size != size {
		d.gen++
	}
	d.chunks, d.size = chunks, size
	return nil
}

// Refresh implements blockdev.Resizable: the medium is the device itself, so nothing ever changed behind its back.
func (d *Device) Refresh() (bool, error) { return false, nil }

// Close implements blockdev.Device.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed, d.chunks = true, nil
	return nil
}
