package iwarp

import "github.com/sluice-storage/sluice/transport"

// Gauges counts what exists now: a connection that is gone has given back all of it.
func (d *Device) Gauges() transport.Gauges {
	d.mu.Lock()
	qps := make([]*QP, 0, len(d.qps))
	for q := range d.qps {
		qps = append(qps, q)
	}
	d.mu.Unlock()
	g := transport.Gauges{Connections: len(qps)}
	for _, q := range qps {
		q.stags.Lock()
		g.Windows += q.stags.tab.Len()
		if !q.life.dead() { // what is left of a dead one is named by no peer
			g.ReadSinks += q.stags.reads.Len()
		}
		q.stags.Unlock()
		g.Sends += int(q.sqUsed.Load())
		g.Receives += int(q.rqUsed.Load())
	}
	return g
}
