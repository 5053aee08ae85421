package verbs

import "github.com/sluice-storage/sluice/transport"

// Gauges counts what exists now: a connection that is gone has given back all of it.
func (d *Device) Gauges() transport.Gauges {
	g := transport.Gauges{}
	for _, q := range d.queuePairs() {
		if !q.hard() {
			continue
		}
		g.Connections++
		g.Sends += q.sq.out()
		g.Receives += int(q.rq.tail.Load() - q.rq.head.Load())
		g.ReadSinks += q.sq.reads.out()
		q.winMu.Lock()
		for _, w := range q.wins {
			if w.state != winFree {
				g.Windows++
			}
		}
		q.winMu.Unlock()
	}
	return g
}
