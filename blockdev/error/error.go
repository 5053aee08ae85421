// Package error is a block device that fails chosen requests and passes the rest to the device below: how the layers
// above are shown a failing medium.
package error

import (
	"sync/atomic"

	"github.com/sluice-storage/sluice/blockdev"
)

// Fault decides about one request, which is the n-th of the device, from 1. A non-nil error is its outcome, and it does
// not reach the device below. It may be called by several goroutines at a time.
type Fault func(n uint64, r *blockdev.Request) error

// Nth fails every request whose number is a multiple of n with err; 0 fails none.
func Nth(n uint64, err error) Fault {
	return func(i uint64, _ *blockdev.Request) error {
		if n == 0 || i%n != 0 {
			return nil
		}
		return err
	}
}

// On fails the requests of one operation that touch [off, off+length) with err; a length of 0 means any place.
func On(op blockdev.Op, off, length int64, err error) Fault {
	return func(_ uint64, r *blockdev.Request) error {
		if r.Op != op || length > 0 && (r.Offset >= off+length || r.Offset+r.Length <= off) {
			return nil
		}
		return err
	}
}

// Device is the engine. It takes over the device below.
type Device struct {
	blockdev.Filter
	n     atomic.Uint64
	fault atomic.Pointer[Fault]
}

var (
	_ blockdev.Device        = (*Device)(nil)
	_ blockdev.Capable       = (*Device)(nil)
	_ blockdev.Resizable     = (*Device)(nil)
	_ blockdev.Growable      = (*Device)(nil)
	_ blockdev.LossReporter  = (*Device)(nil)
	_ blockdev.Identified    = (*Device)(nil)
	_ blockdev.Settler       = (*Device)(nil)
	_ blockdev.Scrubber      = (*Device)(nil)
	_ blockdev.SpaceReporter = (*Device)(nil)
	_ blockdev.Explainer     = (*Device)(nil)
)

// Open puts f before below.
func Open(below blockdev.Device, f Fault) (*Device, error) {
	d := &Device{Filter: blockdev.Filter{Device: below}}
	d.Set(f)
	return d, nil
}

// Set replaces the fault; nil fails nothing.
func (d *Device) Set(f Fault) {
	if f == nil {
		d.fault.Store(nil)
		return
	}
	d.fault.Store(&f)
}

// Requests is how many requests there were.
func (d *Device) Requests() uint64 { return d.n.Load() }

// Path implements blockdev.Explainer.
func (d *Device) Path() string { return "error before " + blockdev.Path(d.Device) }

// Submit implements blockdev.Device.
func (d *Device) Submit(r *blockdev.Request) {
	n := d.n.Add(1)
	if f := d.fault.Load(); f != nil {
		if err := (*f)(n, r); err != nil {
			r.Finish(err)
			return
		}
	}
	d.Device.Submit(r)
}
