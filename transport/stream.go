package transport

// CopyBounds are the upper bounds, in bytes, of the size classes in which StreamStats counts copied payload, by the size of the
// buffer or message that it belongs to; the last class has no bound.
var CopyBounds = [...]int{512, 4 << 10, 8 << 10, 64 << 10, 128<<10 - 1}

// StreamStats counts what a device did, or a QP, that works over TCP streams.
type StreamStats struct {
	BytesIn, BytesOut   uint64 // of TCP stream
	FPDUsIn, FPDUsOut   uint64
	Reads, Writes       uint64                      // system calls that moved data or would have
	FlusherRuns         uint64                      // full sockets handed to the flusher
	Wakes               uint64                      // parked owners woken by a local completion
	Terminates          uint64                      // sent or received
	TakenBack           uint64                      // bytes that a guess put to a wrong place, moved before anything looked at them
	ReadsRefused        uint64                      // Read Requests beyond the depth of inbound reads
	CopiedIn, CopiedOut [len(CopyBounds) + 1]uint64 // payload bytes copied in the provider, by size class
}

// Streamer is a device that works over TCP streams: the software RNIC.
type Streamer interface{ Stats() StreamStats }
