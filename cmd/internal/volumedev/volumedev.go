// Package volumedev makes a remote volume a blockdev.Device: initiator and blockdev do not know one another, commands
// join them.
package volumedev

import (
	"errors"
	"fmt"
	"sync"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/initiator/block"
)

// Device is a volume in blockdev's terms. It keeps blockdev's rules; a request waits while the volume's target cannot be
// reached, as long as the initiator's limit says.
type Device struct {
	v    *block.Volume
	reqs sync.Pool // of *call
}

var (
	_ blockdev.Device  = (*Device)(nil)
	_ blockdev.Capable = (*Device)(nil)
)

// New wraps v. Close closes it.
func New(v *block.Volume) *Device { return &Device{v: v} }

// Volume is what the device stands for.
func (d *Device) Volume() *block.Volume { return d.v }

// Geometry translates the volume's.
func (d *Device) Geometry() blockdev.Geometry {
	g := d.v.Geometry()
	return blockdev.Geometry{Size: g.Size, Logical: g.Logical, Physical: g.Physical, OptimalIO: g.OptimalIO, DiscardUnit: int(g.DiscardUnit),
		ReadOnly: g.ReadOnly, Rotational: g.Rotational, Thin: g.Thin, Generation: uint64(g.Size)}
}

// Can reports what the target says it can do.
func (d *Device) Can(op blockdev.Op) bool {
	g := d.v.Geometry()
	switch op {
	case blockdev.Read:
		return true
	case blockdev.Write, blockdev.Flush, blockdev.WriteZeroes:
		return true
	case blockdev.Discard:
		return g.MaxDiscard > 0
	case blockdev.CompareWrite:
		return g.MaxCompare > 0
	case blockdev.Status:
		return g.Thin
	}
	return false
}

var ops = map[blockdev.Op]block.Op{blockdev.Read: block.Read, blockdev.Write: block.Write, blockdev.Flush: block.Flush,
	blockdev.Discard: block.Discard, blockdev.WriteZeroes: block.WriteZeroes, blockdev.CompareWrite: block.CompareWrite, blockdev.Status: block.Status}

// call is one request under way: the volume's and whose it is.
type call struct {
	block.Request
	d *Device
	r *blockdev.Request
}

// Submit hands a request to the volume.
func (d *Device) Submit(r *blockdev.Request) {
	op, ok := ops[r.Op]
	if !ok || r.Atomic { // the initiator has no WRITE ATOMIC, and the geometry does not promise any
		r.Err = fmt.Errorf("%w: %s, atomic: %t", blockdev.ErrUnsupported, r.Op, r.Atomic)
		r.Done(r)
		return
	}
	c, _ := d.reqs.Get().(*call)
	if c == nil {
		c = &call{d: d}
		c.Priv = c
		c.Done = done
	}
	c.r = r
	c.Op, c.FUA, c.Unmap, c.Offset, c.Length, c.Data, c.Compare = op, r.FUA, r.Unmap, r.Offset, r.Length, r.Data, r.Compare
	if r.Op == blockdev.Status {
		c.Extents = make([]block.Extent, 0, max(cap(r.Extents), 1))
	}
	d.v.Submit(&c.Request)
}

func done(b *block.Request) {
	c := b.Priv.(*call)
	r := c.r
	r.Err = translate(b.Err)
	r.Miss = max(b.Miss, 0)
	if r.Op == blockdev.Status {
		r.Extents = r.Extents[:0]
		for _, e := range b.Extents {
			if len(r.Extents) < cap(r.Extents) {
				r.Extents = append(r.Extents, blockdev.Extent(e))
			}
		}
	}
	c.r, c.Data, c.Compare, c.Extents = nil, nil, nil, nil
	c.d.reqs.Put(c)
	r.Done(r)
}

// translate gives an error the meaning that blockdev has for it, and keeps its words.
func translate(err error) error {
	if err == nil {
		return nil
	}
	for _, p := range [...]struct{ from, to error }{{block.ErrRange, blockdev.ErrRange}, {block.ErrBadRequest, blockdev.ErrRange},
		{block.ErrUnsupported, blockdev.ErrUnsupported},
		{block.ErrReadOnly, blockdev.ErrReadOnly}, {block.ErrMiscompare, blockdev.ErrMiscompare}, {block.ErrClosed, blockdev.ErrClosed},
		{block.ErrMedium, blockdev.ErrMedium}} {
		if errors.Is(err, p.from) {
			return fmt.Errorf("%w: %w", p.to, err)
		}
	}
	return err
}

// Close closes the volume.
func (d *Device) Close() error { return d.v.Close() }

// Path names the paths in use.
func (d *Device) Path() string {
	s := "remote"
	for _, p := range d.v.Paths() {
		if p.InUse {
			s += ", " + p.URL
		}
	}
	return s
}
