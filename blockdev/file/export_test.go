package file

import (
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/uring"
)

// Identity is what the redo log is bound to.
func Identity(d *Device) string { return d.id }

// Patience is how long Settle waits for its last step, until back is called.
func Patience(d time.Duration) (back func()) {
	old := commitPatience
	commitPatience = d
	return func() { commitPatience = old }
}

// RingDepth is how many requests the kernel has at a time.
const RingDepth = ringDepth

// Completion is one of the kernel's, on its way to the engine.
type Completion struct {
	g  *ringer
	op *uring.Op[ringWork]
}

// Request is what it is of.
func (c Completion) Request() *blockdev.Request { return c.op.V.r }

// Res is the kernel's answer, and what the engine will take for it: bytes, or the negative of an errno.
func (c Completion) Res() *int32 { return &c.op.Res }

// Deliver brings one to the engine that was withheld.
func (c Completion) Deliver() { c.g.q.Deliver(c.op) }

// Tamper has f see each completion of devices that are opened until back is called; it withholds those for which it reports false.
func Tamper(f func(Completion) bool) (back func()) {
	tamper = func(g *ringer, op *uring.Op[ringWork]) bool { return f(Completion{g, op}) }
	return func() { tamper = nil }
}

// Break has the device take no more writes, as an atomic write does that is left half done.
func Break(d *Device, why error) { _ = d.breaks(0, 0, why) }
