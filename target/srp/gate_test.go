package srp

import (
	"sync"

	"github.com/sluice-storage/sluice/blockdev"
)

// gate is a device that holds requests back while it is shut.
type gate struct {
	blockdev.Device
	mu      sync.Mutex
	closed  bool
	held    []*blockdev.Request
	arrived chan struct{}
}

func (g *gate) Can(op blockdev.Op) bool { return blockdev.Can(g.Device, op) }

func (g *gate) Submit(r *blockdev.Request) {
	g.mu.Lock()
	if g.closed {
		g.held = append(g.held, r)
		g.mu.Unlock()
		g.arrived <- struct{}{}
		return
	}
	g.mu.Unlock()
	g.Device.Submit(r)
}

func (g *gate) shut() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
}

func (g *gate) open() {
	g.mu.Lock()
	held := g.held
	g.held, g.closed = nil, false
	g.mu.Unlock()
	for _, r := range held {
		g.Device.Submit(r)
	}
}
