package shm

import (
	"sync/atomic"

	"github.com/sluice-storage/sluice/transport"
)

// Stats counts what a QP or a device did.
type Stats = transport.SharedStats

// add sums b into s.
func add(s *Stats, b Stats) {
	s.Records += b.Records
	s.Copied += b.Copied
	s.Bells += b.Bells
	s.Wakes += b.Wakes
	s.Refused += b.Refused
}

// counters are a QP's own: no cache line is shared between connections.
type counters struct{ records, copied, bells, wakes, refused atomic.Uint64 }

func (c *counters) load() Stats {
	return Stats{Records: c.records.Load(), Copied: c.copied.Load(), Bells: c.bells.Load(), Wakes: c.wakes.Load(), Refused: c.refused.Load()}
}

// Stats are the QP's counters so far.
func (q *QP) Stats() Stats { return q.cnt.load() }

// Stats sums the counters of all connections, past and present.
func (d *Device) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.past
	for q := range d.qps {
		add(&s, q.cnt.load())
	}
	return s
}

// Gauges counts what exists now: a connection that is gone has given back all of it.
func (d *Device) Gauges() transport.Gauges {
	qps := d.connections()
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
