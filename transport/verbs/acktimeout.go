package verbs

import (
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/sluice-storage/sluice/transport"
)

// An adapter sends again what was not acknowledged in 4.096 us times a power of two, five bits wide, of which 0 means never
// (InfiniBand Architecture 9.7.6.1.3); adapters may take up to four times that.
const (
	ackUnit    = 4096 * time.Nanosecond
	maxAckBits = 31
)

// MaxAckTimeout is the longest time that an adapter waits for an acknowledgement.
const MaxAckTimeout = ackUnit << maxAckBits

// AckTimeoutError is a time that is no adapter's, or one that this kernel lets no program set.
type AckTimeoutError struct {
	Asked time.Duration
	Err   error // the kernel's answer, nil where the time is at fault
}

func (e *AckTimeoutError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("an acknowledgement timeout of %s: adapters take from %s to %s", e.Asked, 2*ackUnit, MaxAckTimeout.Truncate(time.Second))
	}
	return fmt.Sprintf("verbs: an acknowledgement timeout of %s is asked for, and this kernel lets no program set one (Linux does since 5.1): leave it out, and the connection manager's holds: %s", e.Asked, e.Err)
}

func (e *AckTimeoutError) Unwrap() error { return e.Err }

// ackBits is the exponent of the shortest time of an adapter's that is not below d; 0 for 0, which leaves it to the provider.
func ackBits(d time.Duration) (uint8, error) {
	switch {
	case d == 0:
		return 0, nil
	case d < 0 || d > MaxAckTimeout:
		return 0, &AckTimeoutError{Asked: d}
	}
	units := uint64((d + ackUnit - 1) / ackUnit)
	return uint8(max(1, bits.Len64(units-1))), nil
}

// CheckAckTimeout finds a time that no adapter has. Its error is an *AckTimeoutError.
func CheckAckTimeout(d time.Duration) error {
	_, err := ackBits(d)
	return err
}

// timeAcks sets how long the adapter waits for acknowledgements on the connection of id, where Options say it: before the route is
// resolved, so that the request tells the peer's adapter too, or before the request is answered. iWARP leaves it to TCP.
//
// Else it is the connection manager's, 537 ms on RoCE with newer kernels and 2.1 s with Linux 6.1. A shorter one is no gain by itself:
// between two soft RoCE adapters of 6.1 that lose packets, half a second stopped connections for good more often than 2 s.
func (d *Device) timeAcks(id handle, a *rnic) error {
	if d.opt.AckTimeout == 0 || a.attr.Kind != kindIB {
		return nil
	}
	n, err := ackBits(d.opt.AckTimeout)
	if err != nil {
		return err
	}
	if err = d.tab.SetAckTimeout(id, n); errors.Is(err, errNotSupported) {
		return &AckTimeoutError{Asked: d.opt.AckTimeout, Err: err}
	}
	if err != nil {
		return fmt.Errorf("verbs: set the acknowledgement timeout: %w", err)
	}
	return nil
}

// timeRoute is timeAcks for a connection that is dialled, whose address is resolved. What else is wrong with the adapter is told of
// where the queue pair is made.
func (q *QP) timeRoute() error {
	if q.dev.opt.AckTimeout == 0 {
		return nil
	}
	w, err := q.dev.tab.Where(q.id)
	if err != nil {
		return fmt.Errorf("verbs: the way of a connection: %w", err)
	}
	a, err := q.dev.adapterOf(w.Dev)
	if err != nil {
		if errors.Is(err, transport.ErrClosed) {
			return err
		}
		return nil
	}
	return q.dev.timeAcks(q.id, a)
}

// tryAckTimeout finds out, where a time is configured, whether the kernel takes it: at once and not with each connection.
func (d *Device) tryAckTimeout() error {
	n, err := ackBits(d.opt.AckTimeout)
	if err != nil || n == 0 {
		return err
	}
	id, err := d.tab.CreateID(d.cm.ch)
	if err != nil {
		return fmt.Errorf("verbs: create a connection identifier: %w", err)
	}
	if err = d.tab.SetAckTimeout(id, n); errors.Is(err, errNotSupported) {
		err = &AckTimeoutError{Asked: d.opt.AckTimeout, Err: err}
	}
	d.warn("a connection identifier could not be destroyed", d.tab.DestroyID(id))
	return err
}
