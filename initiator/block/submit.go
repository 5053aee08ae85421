package block

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/iscsi"
)

// Submit implements blockdev.Device. It never blocks; Done is called once, maybe before Submit returns. Over iSER the memory
// of Data and Compare is from the Volume's Memory, or from slabs that the fabric knows.
func (v *Volume) Submit(b *blockdev.Request) {
	r := stateOf(b)
	r.begin()
	v.start(r)
}

// SubmitAll is Submit of several. They leave together where there is one path. The slice is the caller's again on return, as it was.
func (v *Volume) SubmitAll(rs []*blockdev.Request) {
	for _, b := range rs {
		stateOf(b).begin()
	}
	for len(rs) > 0 {
		n := 0
		for n < len(rs) && v.admit(stateOf(rs[n])) {
			n++
		}
		v.together(rs[:n])
		rs = rs[min(n+1, len(rs)):] // rs[n] has ended
	}
}

// together routes requests that have their places.
func (v *Volume) together(rs []*blockdev.Request) {
	if active := *v.active.Load(); len(active) == 1 && !v.held.Load() {
		if s := active[0].sess.Load(); s != nil && s.submitAll(rs) {
			return
		}
	}
	for _, b := range rs {
		v.route(stateOf(b))
	}
}

func (v *Volume) start(r *request) {
	if v.admit(r) {
		v.route(r)
	}
}

// admit gives a request its place in the order, or ends it when there is nothing to be asked of the target.
func (v *Volume) admit(r *request) bool {
	r.seq = v.seq.Add(1)
	r.Err = v.check(r)
	if r.Err != nil || r.empty() {
		r.endAlone()
		return false
	}
	if r.Op == blockdev.Flush {
		v.power.begin(r)
	}
	return true
}

// empty reports whether there is nothing to be done.
func (r *request) empty() bool {
	switch r.Op {
	case blockdev.Flush, rawCommand:
		return false
	case blockdev.Status:
		return r.Length == 0 || cap(r.Extents) == 0
	}
	return r.Length == 0
}

// route gives a request to a path, or parks it.
func (v *Volume) route(r *request) {
	if v.waits(r) {
		v.park(r, nil)
		return
	}
	tried := v.active.Load()
	active := *tried
	for range active {
		p := active[int(v.turn.Add(1))%len(active)]
		if s := p.sess.Load(); s != nil && s.submit(r) {
			return
		}
	}
	v.park(r, tried)
}

// check refuses what no target need be asked.
func (v *Volume) check(r *request) error {
	if r.Op == rawCommand {
		if len(r.cdb) < 6 || len(r.cdb) > iscsi.MaxCDBLen {
			return fmt.Errorf("%w: a CDB of %d bytes", ErrBadRequest, len(r.cdb))
		}
		return nil
	}
	u := v.unit.Load()
	switch err := r.Check(&u.Geometry); {
	case err == nil:
	case errors.Is(err, blockdev.ErrRange):
		return fmt.Errorf("%w: %d bytes at %d of %d", err, r.Length, r.Offset, u.Size)
	default:
		return err
	}
	switch {
	case r.Op == blockdev.Discard && u.MaxUnmap == 0:
		return fmt.Errorf("%w: it has no UNMAP", blockdev.ErrUnsupported)
	case r.Op == blockdev.CompareWrite && (u.MaxCompare == 0 || r.Length > u.MaxCompare):
		return fmt.Errorf("%w: COMPARE AND WRITE of %d bytes, where %d are the limit", blockdev.ErrUnsupported, r.Length, u.MaxCompare)
	}
	return nil
}

// Can implements blockdev.Capable. A target that has no GET LBA STATUS says so when it is asked for one.
func (v *Volume) Can(op blockdev.Op) bool {
	u := v.unit.Load()
	switch op {
	case blockdev.Discard:
		return u.MaxUnmap > 0
	case blockdev.CompareWrite:
		return u.MaxCompare > 0
	}
	return op >= blockdev.Read && op <= blockdev.Status
}

// Do submits a request and waits for it. When the context ends first, the commands are aborted and their end is waited
// for, so that the memory is the caller's again on return; the error is then the context's. Done is not called. Cancel is
// for requests that were submitted.
func (v *Volume) Do(ctx context.Context, b *blockdev.Request) error {
	r, _ := v.ini.requests.Get().(*request)
	r.Request = b
	err := v.do(ctx, r)
	r.Request = nil
	v.ini.requests.Put(r)
	return err
}

// do is Do for a request that has a channel to wait on.
func (v *Volume) do(ctx context.Context, r *request) error {
	r.begin()
	v.start(r)
	select {
	case <-r.waiter:
	case <-ctx.Done():
		v.end(r)
		<-r.waiter
		switch {
		case errors.Is(r.Err, ErrOutcomeUnknown), errors.Is(r.Err, ErrUnsettled):
			r.Err = fmt.Errorf("%w: %w", context.Cause(ctx), r.Err)
		case errors.Is(r.Err, ErrCancelled):
			r.Err = context.Cause(ctx)
		}
	}
	return r.Err
}

// Cancel ends a request that was submitted early: its Done is called, with ErrCancelled unless it was complete already, once
// nothing of it can touch its memory any more.
func (v *Volume) Cancel(b *blockdev.Request) {
	if r, ok := b.Priv.(*request); ok && r.Request == b {
		v.end(r)
	}
}

// end is Cancel.
func (v *Volume) end(r *request) {
	r.cancelled.Store(true)
	v.mu.Lock()
	found := v.parked.remove(r)
	if found && r.life == fenced {
		v.giveUpLocked(r.fence)
	}
	v.mu.Unlock()
	if found {
		r.Err = r.cancelError()
		r.endAlone()
		return
	}
	for _, p := range v.paths {
		if s := p.sess.Load(); s != nil {
			s.cancel(r)
		}
	}
}
