package block

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/sluice-storage/sluice/blockdev"
)

// power keeps account of writes that are acknowledged and not flushed. A target that reports POWER ON, or a deferred error,
// has lost some of them; the next flush says so, once, and none claims them.
type power struct {
	dirty atomic.Bool // writes were acknowledged that no flush has begun after

	mu        sync.Mutex
	marks     uint32 // flushes that began with dirty set
	unflushed bool   // the last of them has not ended well
	epoch     uint32 // losses
	lostAt    uint32 // the last that lost a write
	lostDirty bool   // it lost writes that no flush had begun after
	lost      error  // a loss that no flush has told of
	looking   sync.Mutex
}

// begin marks the writes that a flush is to make durable.
func (p *power) begin(r *request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dirty.Swap(false) {
		p.unflushed = true
		p.marks++
	}
	r.mark, r.born = p.marks, p.epoch
}

// ended judges a request that the target has ended well; epoch counts the losses that its session knows.
func (p *power) ended(r *request, epoch uint32, writeThrough bool) error {
	if r.Op == blockdev.Read || r.Op == blockdev.Status {
		return nil
	}
	if r.Op == blockdev.Flush {
		p.mu.Lock()
		defer p.mu.Unlock()
		err := p.lost
		if err == nil && r.born < p.lostAt {
			err = ErrPowerLost // under way at the loss; another flush has told of it as well
		}
		if err == nil && r.mark == p.marks {
			p.unflushed = false
		}
		p.lost = nil
		return err
	}
	if r.FUA || writeThrough || r.Op == rawCommand && !writes(r.cdb[0]) {
		return nil
	}
	if r.epoch != epoch { // it cannot be done again, and may be among what was lost
		p.mu.Lock()
		p.lost, p.lostAt, p.lostDirty = ErrPowerLost, p.epoch, true
		p.mu.Unlock()
	}
	if !p.dirty.Load() {
		p.dirty.Store(true)
	}
	return nil
}

// writes: the commands of SBC-3 that change the medium.
func writes(op byte) bool {
	switch op {
	case 0x0a, 0x2a, 0xaa, 0x8a, 0x2e, 0xae, 0x8e, 0x41, 0x93, 0x42, 0x89, 0x83, 0x9c, 0x7f:
		return true
	}
	return false
}

// Unflushed reports whether a write was acknowledged that no flush has made durable, or a loss of such has not been told yet. While
// there is none, a volume can be given up without asking its target, which may be away.
func (v *Volume) Unflushed() bool {
	p := &v.power
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.unflushed || p.dirty.Load() || p.lost != nil
}

// risk reports whether there are writes to be lost.
func (p *power) risk() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.unflushed || p.dirty.Load()
}

// lose notes a loss of power and returns its number.
func (p *power) lose() uint32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.epoch++
	if dirty := p.dirty.Swap(false); dirty || p.unflushed {
		p.lost, p.lostAt, p.lostDirty, p.unflushed = ErrPowerLost, p.epoch, dirty, false
	}
	return p.epoch
}

// told takes a flush that the target has refused for its medium as the report of a loss, which has no other then: each target has
// its own way to tell, and Sluice has both.
func (p *power) told(r *request, err error) {
	var e *SenseError
	if !errors.As(err, &e) || e.Key != keyMedium && e.Key != keyHardware {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.born >= p.lostAt || !p.lostDirty && r.mark == p.marks { // every write that was lost is one that it was for
		p.lost = nil
	}
}

// failed notes a deferred error: a write that was acknowledged has failed since (SPC-4 section 4.5.7).
func (p *power) failed(e *SenseError) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.epoch++
	p.lostDirty = true
	p.lost, p.lostAt = fmt.Errorf("%w: the target reports it late: %w", blockdev.ErrMedium, e), p.epoch
}

// judge looks into the POWER ON that a path has reported: each path of a target reports each loss once, so that it is old
// news where another path to the same place has been up all along and knows of none. It is called while no command of the
// volume is under way on s.
func (v *Volume) judge(ctx context.Context, p *path, s *session) {
	v.power.looking.Lock()
	defer v.power.looking.Unlock()
	if p.powerOn.Load() {
		for _, q := range v.paths {
			if v.power.risk() && q != p && q.vouches(ctx, p, s) {
				v.tell(p, "target reports POWER ON, which another path knows to be old", nil)
				p.powerOn.Store(false)
				break
			}
		}
	}
	if p.powerOn.Load() {
		if v.power.risk() {
			v.tell(p, "target has lost its power and writes that were not flushed", ErrPowerLost)
		}
		epoch := v.power.lose()
		for _, q := range v.paths {
			if q.place() == p.place() {
				q.powerOn.Store(false) // what they have reported so far is the same loss
			}
			if o := q.sess.Load(); o != nil {
				o.mu.Lock()
				o.epoch = epoch
				o.mu.Unlock()
			}
		}
	}
	s.mu.Lock()
	s.epoch = v.power.losses()
	s.mu.Unlock()
}

func (p *power) losses() uint32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.epoch
}

// place is the device server that a path leads to: two machines that show one unit have a cache each.
func (p *path) place() string {
	t, _ := p.tpgt.Load().(string)
	return p.u.Target + "," + t + fmt.Sprint(",", p.u.LUN)
}

// vouches reports whether path p, which is up, leads to a target that has had its power for as long as any unflushed write
// is old, and that is the target of the path lost, whose session is s.
func (p *path) vouches(ctx context.Context, lost *path, s *session) bool {
	w := p.sess.Load()
	if w == nil || w == s || !w.witness || p.powerOn.Load() || p.place() != lost.place() {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, vouchTimeout)
	defer cancel()
	r := command(make([]byte, 6), false)
	err := w.do(ctx, r)
	return err == nil && !p.powerOn.Load()
}
