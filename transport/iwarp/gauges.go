package iwarp

// Gauges are what exists now, over all connections of a device.
type Gauges struct {
	Connections int
	Windows     int // STags of memory windows that a peer may name
	ReadSinks   int // STags of our outstanding RDMA Reads, which only their responses may name
	Sends       int // work requests whose completion has not been seen
	Receives    int // receives posted
}

// Gauges counts what exists now: a connection that is gone has given back all of it.
func (d *Device) Gauges() Gauges {
	d.mu.Lock()
	qps := make([]*QP, 0, len(d.qps))
	for q := range d.qps {
		qps = append(qps, q)
	}
	d.mu.Unlock()
	g := Gauges{Connections: len(qps)}
	for _, q := range qps {
		q.stags.Lock()
		g.Windows += q.stags.n
		if !q.dead.Load() { // what is left of a dead one answers to nobody
			g.ReadSinks += q.stags.reads.len()
		}
		q.stags.Unlock()
		g.Sends += int(q.sqUsed.Load())
		g.Receives += int(q.rqUsed.Load())
	}
	return g
}
