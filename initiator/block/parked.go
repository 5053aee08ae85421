package block

import (
	"fmt"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
)

// park keeps a request until a path is there, or ends it. tried are the paths that have refused it, nil for none: a session is over
// before its path is taken from those that commands go to, and would refuse it again and again until then.
func (v *Volume) park(r *request, tried *[]*path) {
	v.mu.Lock()
	switch {
	case r.cancelled.Load():
		r.Err = r.cancelError()
		if r.fence != nil {
			v.giveUpLocked(r.fence)
		}
	case v.closed:
		r.Err = blockdev.ErrClosed
	case v.failed != nil && r.fence == nil:
		r.Err = v.failed
	default:
		if r.fence != nil {
			r.to(fenced)
		} else {
			r.to(parked)
		}
		v.parked.insert(r)
		v.armLocked()
		active := v.active.Load()
		again := active != tried && len(*active) > 0 && r.life == parked && !v.waits(r)
		v.mu.Unlock()
		if again { // a path came up meanwhile
			v.dispatch()
		}
		return
	}
	v.mu.Unlock()
	r.endAlone()
}

// armLocked starts the reconnect limit while no path is up. The lock is held.
func (v *Volume) armLocked() {
	if v.limit == nil && v.ini.o.ReconnectLimit > 0 && v.parked.head != nil {
		v.limit = time.AfterFunc(v.ini.o.ReconnectLimit, v.expire)
	}
}

// expire fails what has waited for longer than the limit.
func (v *Volume) expire() {
	v.mu.Lock()
	v.limit = nil
	if v.closed {
		v.mu.Unlock()
		return
	}
	var cause error
	for _, p := range v.paths {
		if p.err != nil {
			cause = p.err
		}
	}
	err := fmt.Errorf("%w: it was away for longer than the limit of %v", ErrNoPath, v.ini.o.ReconnectLimit)
	if cause != nil {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	if len(*v.active.Load()) == 0 {
		v.failed = err
	}
	out := v.parked.take()
	for r := out.head; r != nil; r = r.next {
		r.Err = err
		if r.life == fenced || r.sent && !r.repeatable() {
			r.Err = fmt.Errorf("%w; %w", ErrUnsettled, err)
		}
		if r.life == fenced {
			v.giveUpLocked(r.fence)
		}
		r.to(ended)
	}
	v.mu.Unlock()
	out.complete()
}

// cancelError is the outcome of a cancelled request whose connection is gone.
func (r *request) cancelError() error {
	if r.fence != nil {
		return fmt.Errorf("%w: %w", ErrCancelled, ErrUnsettled)
	}
	return ErrCancelled
}

// dispatch sends what is parked and free to go.
func (v *Volume) dispatch() {
	v.mu.Lock()
	if len(*v.active.Load()) == 0 {
		v.mu.Unlock()
		return
	}
	all, go1 := v.parked.take(), reqList{}
	for r := all.pop(); r != nil; r = all.pop() {
		if r.life == fenced || v.waits(r) {
			v.parked.push(r)
		} else {
			r.to(routed)
			go1.push(r)
		}
	}
	if v.parked.head == nil && v.limit != nil {
		v.limit.Stop()
		v.limit = nil
	}
	v.mu.Unlock()
	for r := go1.pop(); r != nil; r = go1.pop() {
		r.reset()
		r.sent = false
		v.route(r)
	}
}
