package transport

// SharedStats counts what a device did, or a QP, that works through memory that both sides share.
type SharedStats struct {
	Records uint64 // messages taken from peers' rings
	Copied  uint64 // bytes of payload copied from peers' slabs; what lay in the ring is not counted
	Bells   uint64 // peers rung that waited
	Wakes   uint64 // parked owners woken by a local completion
	Refused uint64 // files of peers that were not sealed, or not whole
}

// Sharer is a device that works through shared memory.
type Sharer interface{ Stats() SharedStats }
