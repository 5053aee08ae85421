package blockdev

import "context"

// Filter is what a Device that stands before another one embeds: it passes on all that the other can, but for the copying of ranges
// and of files, past which the requests do not go. Submit is the filter's business, and Path says what it is.
type Filter struct{ Device }

var (
	_ Capable       = Filter{}
	_ Growable      = Filter{}
	_ Resizable     = Filter{}
	_ Notifier      = Filter{}
	_ LossReporter  = Filter{}
	_ Identified    = Filter{}
	_ Settler       = Filter{}
	_ Scrubber      = Filter{}
	_ SpaceReporter = Filter{}
	_ QueueReporter = Filter{}
)

// Can implements Capable.
func (f Filter) Can(op Op) bool { return Can(f.Device, op) }

// Refresh implements Resizable.
func (f Filter) Refresh() (bool, error) { return Refresh(f.Device) }

// OnChange implements Notifier.
func (f Filter) OnChange(c func()) { OnChange(f.Device, c) }

// Grow implements Growable.
func (f Filter) Grow(size int64) error { return Grow(f.Device, size) }

// Ungrow implements Growable.
func (f Filter) Ungrow() error { return Ungrow(f.Device) }

// Lost implements LossReporter.
func (f Filter) Lost() error { return Lost(f.Device) }

// TakeLoss implements LossReporter.
func (f Filter) TakeLoss(noted bool) { TakeLoss(f.Device, noted) }

// Identity implements Identified.
func (f Filter) Identity() (string, error) { return Identity(f.Device) }

// Distinct implements Identified.
func (f Filter) Distinct() (bool, error) { return Distinct(f.Device) }

// Settle implements Settler.
func (f Filter) Settle(ctx context.Context) error { return Settle(ctx, f.Device) }

// Scrub implements Scrubber.
func (f Filter) Scrub() error { return Scrub(f.Device) }

// Queue implements QueueReporter.
func (f Filter) Queue() (q Queue, some bool) { return QueueOf(f.Device) }

// Space implements SpaceReporter.
func (f Filter) Space() (Space, error) { return SpaceOf(f.Device) }
