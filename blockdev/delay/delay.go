// Package delay is a block device that is slow: it holds each completion back for a time, in front of a device that is
// not. It shows what the layers above do while requests are under way.
package delay

import (
	"sync"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
)

// Clock is where the time comes from. The zero Options take the system's, which testing/synctest replaces.
type Clock interface {
	AfterFunc(d time.Duration, f func()) (stop func() bool)
}

type systemClock struct{}

func (systemClock) AfterFunc(d time.Duration, f func()) func() bool {
	return time.AfterFunc(d, f).Stop
}

// Options say how slow.
type Options struct {
	// For is the delay of one request; 0 or less completes at once. It may be called by several goroutines at a time.
	For func(*blockdev.Request) time.Duration
	// Before delays a request on its way to the medium instead of its completion on the way back.
	Before bool
	Clock  Clock
}

// Fixed delays every request by d.
func Fixed(d time.Duration) func(*blockdev.Request) time.Duration {
	return func(*blockdev.Request) time.Duration { return d }
}

// Device is the engine. It takes over the device below. Unlike the engines that ship it allocates per request.
type Device struct {
	blockdev.Filter
	o    Options
	held sync.WaitGroup
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

// Open puts a delay before below.
func Open(below blockdev.Device, o Options) (*Device, error) {
	if o.Clock == nil {
		o.Clock = systemClock{}
	}
	if o.For == nil {
		o.For = Fixed(0)
	}
	return &Device{Filter: blockdev.Filter{Device: below}, o: o}, nil
}

// Path implements blockdev.Explainer.
func (d *Device) Path() string { return "delay before " + blockdev.Path(d.Device) }

// Submit implements blockdev.Device.
func (d *Device) Submit(r *blockdev.Request) {
	wait := d.o.For(r)
	if wait <= 0 {
		d.Device.Submit(r)
		return
	}
	d.held.Add(1)
	if d.o.Before {
		d.o.Clock.AfterFunc(wait, func() {
			defer d.held.Done()
			d.Device.Submit(r)
		})
		return
	}
	done := r.Done
	r.Done = func(r *blockdev.Request) {
		r.Done = done
		d.o.Clock.AfterFunc(wait, func() {
			defer d.held.Done()
			done(r)
		})
	}
	d.Device.Submit(r)
}

// Close implements blockdev.Device.
func (d *Device) Close() error {
	d.held.Wait()
	return d.Device.Close()
}
