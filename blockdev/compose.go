package blockdev

import (
	"context"
	"errors"
)

// Refresh is Resizable's, for a device that may have no such method.
func Refresh(d Device) (bool, error) {
	if r, ok := d.(Resizable); ok {
		return r.Refresh()
	}
	return false, nil
}

// OnChange is Notifier's, for a device that may have no such method: f is never called then.
func OnChange(d Device, f func()) {
	if n, ok := d.(Notifier); ok {
		n.OnChange(f)
	}
}

// Ungrow is Growable's, for a device that may have no such method.
func Ungrow(d Device) error {
	if g, ok := d.(Growable); ok {
		return g.Ungrow()
	}
	return nil
}

// SpaceOf is SpaceReporter's, for a device that may have no such method: ErrUnsupported then.
func SpaceOf(d Device) (Space, error) {
	if s, ok := d.(SpaceReporter); ok {
		return s.Space()
	}
	return Space{}, ErrUnsupported
}

// Grow is Growable's, for a device that may have no such method: ErrUnsupported then.
func Grow(d Device, size int64) error {
	if g, ok := d.(Growable); ok {
		return g.Grow(size)
	}
	return ErrUnsupported
}

// Lost is LossReporter's, for a device that may have no such method.
func Lost(d Device) error {
	if l, ok := d.(LossReporter); ok {
		return l.Lost()
	}
	return nil
}

// TakeLoss is LossReporter's, for a device that may have no such method.
func TakeLoss(d Device, noted bool) {
	if l, ok := d.(LossReporter); ok {
		l.TakeLoss(noted)
	}
}

// Identity is Identified's, for a device that may have no such method: empty then.
func Identity(d Device) (string, error) {
	if i, ok := d.(Identified); ok {
		return i.Identity()
	}
	return "", nil
}

// Distinct is Identified's, for a device that may have no such method: it is known by nothing then.
func Distinct(d Device) (bool, error) {
	if i, ok := d.(Identified); ok {
		return i.Distinct()
	}
	return false, nil
}

// Settle is Settler's, for a device that may have no such method: ErrUnsupported then.
func Settle(ctx context.Context, d Device) error {
	if s, ok := d.(Settler); ok {
		return s.Settle(ctx)
	}
	return ErrUnsupported
}

// Sync makes durable what was written, for who has written nothing: unlike Flush it takes from initiators no report of a loss that
// is owed to them.
func Sync(ctx context.Context, d Device) error {
	err := Settle(ctx, d)
	if errors.Is(err, ErrUnsupported) {
		return Do(ctx, d, &Request{Op: Flush})
	}
	return err
}

// Scrub is Scrubber's, for a device that may have no such method: it keeps no copies then.
func Scrub(d Device) error {
	if s, ok := d.(Scrubber); ok {
		return s.Scrub()
	}
	return nil
}

// QueueOf is QueueReporter's, for a device that may have no such method.
func QueueOf(d Device) (q Queue, some bool) {
	if r, ok := d.(QueueReporter); ok {
		return r.Queue()
	}
	return Queue{}, false
}

// Path is Explainer's, for a device that may have no such method.
func Path(d Device) string {
	if e, ok := d.(Explainer); ok {
		return e.Path()
	}
	return "a device that does not say"
}
