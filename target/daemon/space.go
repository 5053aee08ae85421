package daemon

import (
	"context"
	"time"
)

// spaceInterval is how often the file systems below thin volumes are asked for their room: a writer at 1 GB/s fills 10 GB
// in between, which is less than what any sensible threshold leaves.
const spaceInterval = 10 * time.Second

// watchSpace warns initiators of volumes with low_space.
func (d *Daemon) watchSpace(ctx context.Context) {
	t := time.NewTicker(spaceInterval)
	defer t.Stop()
	for {
		d.checkSpace()
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// checkSpace asks without the daemon's lock: a file system that hangs must not hang the daemon.
func (d *Daemon) checkSpace() {
	d.mu.Lock()
	var vs []*volume
	for _, v := range d.volumes {
		if v.cfg.LowSpace > 0 {
			vs = append(vs, v)
		}
	}
	d.mu.Unlock()
	for _, v := range vs {
		v.spaceMu.Lock()
		if !v.closed {
			v.lu.CheckSpace()
		}
		v.spaceMu.Unlock()
	}
}

// endSpace waits for a check under way; none follows.
func (v *volume) endSpace() {
	v.spaceMu.Lock()
	v.closed = true
	v.spaceMu.Unlock()
}
