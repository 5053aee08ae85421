package block

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/group"
	"github.com/sluice-storage/sluice/mem"
)

// Volume is one logical unit. All methods may be called by any goroutine; Close once, last.
type Volume struct {
	ini     *Initiator
	paths   []*path
	unit    atomic.Pointer[Unit]
	active  atomic.Pointer[[]*path] // where commands may go now
	turn    atomic.Uint32
	seq     atomic.Uint64
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	late    group.Group // those that take a request from a session, which has ended by the time it is waited for
	power   power
	edges   sync.RWMutex // held by writes of parts of blocks, where the target has no COMPARE AND WRITE for them
	copying sync.RWMutex // read by calls that have memory of the pool, locked by Close for good
	held    atomic.Bool  // a path is loose: what changes the medium waits
	events  events
	close   func() error // of what Open made for this volume alone; nil for nothing

	mu      sync.Mutex
	parked  reqList // wait for a path or for a fence, in the order of submission
	closed  bool
	failed  error // no path for longer than the limit
	limit   *time.Timer
	fencers map[*path]bool
}

// ports gives the ISIDs back, and the paths' memory, after the last session.
func (v *Volume) ports() {
	for _, p := range v.paths {
		p.port.close()
		p.kept.close()
	}
}

// Geometry implements blockdev.Device. Size may grow.
func (v *Volume) Geometry() blockdev.Geometry { return v.unit.Load().Geometry }

// Unit is what the logical unit said of itself last.
func (v *Volume) Unit() Unit { return *v.unit.Load() }

// Memory is where registered buffers come from.
func (v *Volume) Memory() *mem.Pool { return v.ini.pool }

func (v *Volume) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-v.ctx.Done():
		return false
	}
}

// Close logs out and ends every path. Requests still out end with blockdev.ErrClosed, and Close waits for the calls that copy.
func (v *Volume) Close() error {
	v.mu.Lock()
	if v.closed {
		v.mu.Unlock()
		return blockdev.ErrClosed
	}
	v.closed = true
	if v.limit != nil {
		v.limit.Stop()
	}
	parked := v.parked.take()
	v.mu.Unlock()
	v.cancel()
	for r := parked.head; r != nil; r = r.next {
		r.Err = blockdev.ErrClosed
		r.to(ended)
	}
	parked.complete()
	for _, p := range v.paths {
		if s := p.sess.Load(); s != nil {
			s.leave()
		}
	}
	v.wg.Wait()
	v.late.Wait()
	v.copying.Lock() // their requests have ended, and what they wait for too
	v.ports()
	if v.close != nil {
		return v.close()
	}
	return nil
}
