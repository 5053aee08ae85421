// Package limit bounds the requests and bytes per second of the device below. What is over the limit waits in the order
// of its arrival; nothing is refused. Flushes always pass: durability is not what should wait in line.
package limit

import (
	"fmt"
	"math"
	"os"
	"sync"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
)

const (
	// defaultBurst is how much of a second's budget may be used at once after a pause: enough for a queue's depth of
	// requests at any sensible limit, too little to be felt as no limit.
	defaultBurst = 100 * time.Millisecond

	// maxRate keeps a request's cost at 1 ns or more, so that the account below never stands still.
	maxRate = int64(time.Second)
)

// Options are the limits. 0 means none.
type Options struct {
	IOPS      int64         // requests per second, at most 1,000,000,000
	Bandwidth int64         // bytes per second read and written
	Burst     time.Duration // what a pause saves up, 100 ms by default
}

func (o *Options) check() error {
	if o.IOPS < 0 || o.IOPS > maxRate || o.Bandwidth < 0 || o.Burst < 0 {
		return fmt.Errorf("blockdev/limit: %d requests and %d bytes per second with a burst of %v make no sense", o.IOPS, o.Bandwidth, o.Burst)
	}
	if o.Burst == 0 {
		o.Burst = defaultBurst
	}
	return nil
}

// Device is the engine. It takes over the device below.
type Device struct {
	blockdev.Filter

	mu         sync.Mutex
	o          Options
	requests   account
	bytes      account
	head, tail *blockdev.Request // over the limit, oldest first
	waiting    int
	timer      *time.Timer
	armed      bool
	closed     bool
	releasing  sync.WaitGroup // on their way to the device below
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

// account is a leaky bucket kept as the time at which everything granted so far is paid for.
type account struct{ paid time.Time }

// ready is when the next grant may be: as soon as the account is less than a burst ahead of the clock.
func (a *account) ready(burst time.Duration) time.Time { return a.paid.Add(-burst) }

func (a *account) charge(now time.Time, units, rate int64) {
	if rate == 0 {
		return
	}
	if a.paid.Before(now) {
		a.paid = now
	}
	cost := float64(units) / float64(rate) * float64(time.Second)
	a.paid = a.paid.Add(time.Duration(math.Ceil(min(cost, float64(24*time.Hour)))))
}

// Open puts limits before below.
func Open(below blockdev.Device, o Options) (*Device, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	return &Device{Filter: blockdev.Filter{Device: below}, o: o}, nil
}

// Set changes the limits; what waits goes by the new ones.
func (d *Device) Set(o Options) error {
	if err := o.check(); err != nil {
		return err
	}
	d.mu.Lock()
	d.o = o
	d.requests, d.bytes = account{}, account{}
	d.mu.Unlock()
	d.release()
	return nil
}

// Waiting is how many requests are over the limit at the moment.
func (d *Device) Waiting() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.waiting
}

// Clone implements blockdev.Cloner. Sharing blocks moves no bytes, so no limit is about it.
func (d *Device) Clone(dst *os.File) error {
	if c, ok := d.Device.(blockdev.Cloner); ok {
		return c.Clone(dst)
	}
	return blockdev.ErrUnsupported
}

// Path implements blockdev.Explainer.
func (d *Device) Path() string {
	d.mu.Lock()
	o := d.o
	d.mu.Unlock()
	s := "limited"
	if o.IOPS > 0 {
		s += fmt.Sprintf(" to %d requests/s", o.IOPS)
	}
	if o.Bandwidth > 0 {
		s += fmt.Sprintf(" to %d bytes/s", o.Bandwidth)
	}
	return s + ", " + blockdev.Path(d.Device)
}

// Submit implements blockdev.Device.
func (d *Device) Submit(r *blockdev.Request) {
	if r.Op == blockdev.Flush {
		d.Device.Submit(r)
		return
	}
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		r.Finish(blockdev.ErrClosed)
		return
	}
	if d.head == nil && d.grantLocked(r) {
		d.mu.Unlock()
		d.Device.Submit(r)
		return
	}
	r.Next = nil
	if d.tail == nil {
		d.head = r
	} else {
		d.tail.Next = r
	}
	d.tail = r
	d.waiting++
	d.armLocked()
	d.mu.Unlock()
}

// grantLocked charges r if it may go now.
func (d *Device) grantLocked(r *blockdev.Request) bool {
	if d.o.IOPS == 0 && d.o.Bandwidth == 0 {
		return true
	}
	now := time.Now()
	if d.whenLocked().After(now) {
		return false
	}
	d.requests.charge(now, 1, d.o.IOPS)
	switch r.Op {
	case blockdev.Read, blockdev.Write, blockdev.CompareWrite:
		d.bytes.charge(now, max(r.Length, 0), d.o.Bandwidth)
	}
	return true
}

func (d *Device) whenLocked() time.Time {
	at := d.requests.ready(d.o.Burst)
	if b := d.bytes.ready(d.o.Burst); b.After(at) {
		at = b
	}
	return at
}

func (d *Device) armLocked() {
	if d.armed {
		return
	}
	d.armed = true
	wait := max(time.Until(d.whenLocked()), 0)
	if d.timer == nil {
		d.timer = time.AfterFunc(wait, d.release)
		return
	}
	d.timer.Reset(wait)
}

// release submits what may go by now.
func (d *Device) release() {
	d.mu.Lock()
	d.armed = false
	var first, last *blockdev.Request
	for d.head != nil && d.grantLocked(d.head) {
		r := d.head
		if d.head = r.Next; d.head == nil {
			d.tail = nil
		}
		r.Next = nil
		if last == nil {
			first = r
		} else {
			last.Next = r
		}
		last = r
		d.waiting--
	}
	if d.head != nil {
		d.armLocked()
	}
	if first == nil {
		d.mu.Unlock()
		return
	}
	d.releasing.Add(1)
	defer d.releasing.Done()
	d.mu.Unlock()
	for first != nil {
		r := first
		first, r.Next = r.Next, nil
		d.Device.Submit(r)
	}
}

// Close implements blockdev.Device. What waits for its turn is done with ErrClosed.
func (d *Device) Close() error {
	d.mu.Lock()
	if d.timer != nil {
		d.timer.Stop()
	}
	r := d.head
	d.closed, d.head, d.tail, d.waiting = true, nil, nil, 0
	d.mu.Unlock()
	for r != nil {
		next := r.Next
		r.Next = nil
		r.Finish(blockdev.ErrClosed)
		r = next
	}
	d.releasing.Wait()
	return d.Device.Close()
}
