// Package staged is a device that copies all payload once more than it need: a READ goes into memory of its own and from there into the
// request's, a WRITE the other way round. That is what a target does which cannot place what it moves (RFC 4297 section 2), and what
// Sluice is measured against (docs/measure.md). No configuration leads here: a daemon has it with the build tag staging only.
package staged

import (
	"errors"
	"sync"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
)

// Device stages the payload of the device below, which it takes over.
type Device struct {
	blockdev.Filter

	mu   sync.Mutex
	free *request // not under way, with their memory
}

var (
	_ blockdev.Device    = (*Device)(nil)
	_ blockdev.Explainer = (*Device)(nil)
)

// request is one of the device's own, with the memory that payload goes through.
type request struct {
	blockdev.Request
	d    *Device
	up   *blockdev.Request // whose it is
	slab *mem.Slab
	span [1]mem.Span
	next *request
}

// Open stages what goes to below and comes from there.
func Open(below blockdev.Device) *Device { return &Device{Filter: blockdev.Filter{Device: below}} }

// Path implements blockdev.Explainer.
func (d *Device) Path() string {
	return "with a copy of all payload for measurements, " + blockdev.Path(d.Device)
}

// Submit implements blockdev.Device.
func (d *Device) Submit(r *blockdev.Request) {
	g := d.Geometry()
	if r.Op != blockdev.Read && r.Op != blockdev.Write || r.Length == 0 || r.Check(&g) != nil {
		d.Device.Submit(r) // which says what is wrong with it
		return
	}
	s, err := d.take(int(r.Length))
	if err != nil {
		r.Err = err
		r.Done(r)
		return
	}
	s.up = r
	s.Op, s.FUA, s.Atomic, s.Offset, s.Length = r.Op, r.FUA, r.Atomic, r.Offset, r.Length
	s.Deferrer, s.After, s.Err, s.Miss = r.Deferrer, r.After, nil, 0
	s.Data = s.span[:]
	if r.Op == blockdev.Write {
		to := s.span[0].Bytes()
		for _, from := range r.Data {
			to = to[copy(to, from.Bytes()):]
		}
	}
	d.Device.Submit(&s.Request)
}

// done copies what was read and ends the request above.
func (s *request) done(*blockdev.Request) {
	r := s.up
	if r.Err = s.Err; s.Op == blockdev.Read && s.Err == nil {
		from := s.span[0].Bytes()
		for _, to := range r.Data {
			from = from[copy(to.Bytes(), from):]
		}
	}
	s.d.put(s)
	r.Done(r)
}

// take is a request with memory for n bytes.
func (d *Device) take(n int) (*request, error) {
	d.mu.Lock()
	s := d.free
	if s != nil {
		d.free = s.next
	}
	d.mu.Unlock()
	if s == nil {
		s = &request{d: d}
		s.Done = s.done
	}
	if s.slab == nil || len(s.slab.Bytes()) < n {
		m, err := mem.NewSlab(n)
		if err != nil {
			d.put(s)
			return nil, err
		}
		if s.slab != nil {
			if err := s.slab.Close(); err != nil {
				return nil, errors.Join(err, m.Close())
			}
		}
		s.slab = m
	}
	s.span[0] = mem.Span{Slab: s.slab, Len: n}
	return s, nil
}

func (d *Device) put(s *request) {
	s.up, s.Deferrer, s.After = nil, nil, nil
	d.mu.Lock()
	s.next, d.free = d.free, s
	d.mu.Unlock()
}

// Close implements blockdev.Device.
func (d *Device) Close() error {
	errs := []error{d.Device.Close()}
	for s := d.free; s != nil; s = s.next {
		if s.slab != nil {
			errs = append(errs, s.slab.Close())
		}
	}
	return errors.Join(errs...)
}
