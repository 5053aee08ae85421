package mem

import "sync/atomic"

// Drought is a shortage made by a test: what keeps to the contract of this package becomes slower by it and nothing else.
type Drought struct {
	// Max bounds each pool, whatever it was made for: 0 leaves it. No pool is smaller than the smallest that is legal.
	Max int64
	// Deny is asked before each buffer that a pool is to hand out. Where it says so the answer is ErrNoMemory, as if others
	// held everything. What was set aside for a waiter is not asked for: Wait promises it.
	Deny func(size int) bool
}

var drought atomic.Pointer[Drought]

// SetDrought puts d over the pools that are made from now on; nil ends that. Quotas of such pools cache nothing, so that each
// buffer is asked for. Only tests call it.
func SetDrought(d *Drought) { drought.Store(d) }

// dry puts the shortage of the day, if there is one, over a new pool.
func (p *Pool) dry() {
	d := drought.Load()
	if d == nil {
		return
	}
	if d.Max > 0 {
		p.max = max(min(p.max, d.Max/int64(p.slab)*int64(p.slab)), int64(len(classes)*p.slab))
	}
	if d.Deny != nil {
		p.deny = d.Deny
		p.starving.Store(1) // for good: as if there were always one more who waits
	}
}
