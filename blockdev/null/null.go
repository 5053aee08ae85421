// Package null is a block device that takes everything and keeps nothing: reads leave the buffer as it is. It measures
// what the layers above cost.
package null

import (
	"fmt"

	"github.com/sluice-storage/sluice/blockdev"
)

// Options describe the device.
type Options struct {
	Size    int64
	Logical int // 512 by default
}

// Device is the engine.
type Device struct{ geo blockdev.Geometry }

var (
	_ blockdev.Device    = (*Device)(nil)
	_ blockdev.Capable   = (*Device)(nil)
	_ blockdev.Explainer = (*Device)(nil)
)

// Open makes a device.
func Open(o Options) (*Device, error) {
	if o.Logical == 0 {
		o.Logical = 512
	}
	if o.Size <= 0 || o.Size%int64(o.Logical) != 0 {
		return nil, fmt.Errorf("blockdev/null: size of %d bytes; it must be a multiple of %d", o.Size, o.Logical)
	}
	return &Device{geo: blockdev.Geometry{Size: o.Size, Logical: o.Logical, Physical: o.Logical, DiscardUnit: o.Logical, DiscardZeroes: true}}, nil
}

// Geometry implements blockdev.Device.
func (d *Device) Geometry() blockdev.Geometry { return d.geo }

// Can implements blockdev.Capable. Comparing and mapping need data.
func (d *Device) Can(op blockdev.Op) bool {
	return op >= blockdev.Read && op <= blockdev.WriteZeroes
}

// Path implements blockdev.Explainer.
func (d *Device) Path() string { return "null: keeps nothing" }

// Submit implements blockdev.Device.
func (d *Device) Submit(r *blockdev.Request) {
	err := r.Check(&d.geo)
	if err == nil && !d.Can(r.Op) {
		err = blockdev.ErrUnsupported
	}
	r.Finish(err)
}

// Close implements blockdev.Device.
func (d *Device) Close() error { return nil }
