package verbs

import (
	"fmt"
	"strings"

	"github.com/sluice-storage/sluice/transport"
)

// fullCaps is what this provider can do with an adapter that can do everything.
var fullCaps = transport.Caps{
	PerIOWindows: true, ExactWindows: true, RemoteInv: true, InOrder: true, OwnResponder: true,
	MaxSGE: maxSGE, MaxBindSGE: 1, MaxMessage: maxMessage, MaxReads: maxReads, MaxPrivate: maxPrivate,
}

// meet takes from c what a cannot do.
func (a *rnic) meet(c transport.Caps) transport.Caps {
	c.PerIOWindows = c.PerIOWindows && a.windows
	c.PaddedPrivate = c.PaddedPrivate || a.attr.Kind != kindIWARP
	c.ExactWindows = c.ExactWindows && a.exact
	c.InOrder = c.InOrder && !a.outOf
	c.MaxSGE = least(c.MaxSGE, a.attr.MaxSGE)
	c.MaxReads = least(c.MaxReads, min(a.attr.MaxReadIn, a.attr.MaxReadOut))
	for p := 1; p <= a.attr.Ports; p++ {
		if port, err := a.d.tab.Port(a.attr.Dev, p); err == nil {
			c.MaxMessage = least(c.MaxMessage, int(port.MaxMessage))
		}
	}
	return c
}

// settleCaps makes what all adapters can do the device's Caps. Upper protocols ask for them once, so they never change.
func (d *Device) settleCaps() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.caps = fullCaps
	for _, a := range d.adapters {
		d.caps = a.meet(d.caps)
	}
	d.settled = true
}

// fitsLocked refuses an adapter that comes later and cannot do what Caps promise; d.mu is held.
func (d *Device) fitsLocked(a *rnic) error {
	if !d.settled {
		return nil
	}
	if lacks := lacking(d.caps, a.meet(d.caps)); len(lacks) > 0 {
		return &LateError{Device: a.attr.Name, Lacks: lacks}
	}
	return nil
}

// lacking is what promised has and now has not, for people.
func lacking(promised, now transport.Caps) (lacks []string) {
	less := func(is bool, what string) {
		if is {
			lacks = append(lacks, what)
		}
	}
	fewer := func(promised, now int, what string) {
		less(now < promised, fmt.Sprintf("%d %s instead of %d", now, what, promised))
	}
	less(promised.PerIOWindows && !now.PerIOWindows, "no memory windows")
	less(promised.ExactWindows && !now.ExactWindows && now.PerIOWindows, "windows whose bounds it does not check")
	less(promised.InOrder && !now.InOrder, "completions out of order")
	less(!promised.PaddedPrivate && now.PaddedPrivate, "private data without a length")
	fewer(promised.MaxSGE, now.MaxSGE, "pieces of memory a request")
	fewer(promised.MaxReads, now.MaxReads, "RDMA Reads at a time")
	fewer(promised.MaxMessage, now.MaxMessage, "bytes a message")
	return lacks
}

// LateError is an adapter that came after the others were opened and can do less than those: what was promised of all would not be true.
type LateError struct {
	Device string
	Lacks  []string
}

func (e *LateError) Error() string {
	return fmt.Sprintf("verbs: the adapter %s came after the others were opened and can do less than they (%s): it is used when the program is started again",
		e.Device, strings.Join(e.Lacks, ", "))
}

// least is the smaller limit; an adapter that names none (0) has not got a say.
func least(a, b int) int {
	if b <= 0 {
		return a
	}
	return min(a, b)
}
