package iwarp

import (
	"sync/atomic"
)

// copyClasses are the upper bounds of the size classes in which copied payload is counted, by the size of the buffer or
// message that it belongs to, in bytes; the last class has no bound.
var copyClasses = [...]int{512, 4 << 10, 8 << 10, 64 << 10, 128<<10 - 1}

// Stats counts what a QP or a device did.
type Stats struct {
	BytesIn, BytesOut   uint64 // of TCP stream
	FPDUsIn, FPDUsOut   uint64
	Reads, Writes       uint64                       // system calls that moved data or would have
	FlusherRuns         uint64                       // full sockets handed to the flusher
	Wakes               uint64                       // parked owners woken by a local completion
	Terminates          uint64                       // sent or received
	TakenBack           uint64                       // bytes that a guess put to a wrong place, moved before anything looked at them
	ReadsRefused        uint64                       // Read Requests beyond the depth of inbound reads
	CopiedIn, CopiedOut [len(copyClasses) + 1]uint64 // payload bytes copied in this package, by size class
}

// CopyClass is the index into CopiedIn and CopiedOut for a buffer or message of n bytes.
func CopyClass(n int) int {
	for i, c := range copyClasses {
		if n <= c {
			return i
		}
	}
	return len(copyClasses)
}

// add sums b into s.
func (s *Stats) add(b Stats) {
	s.BytesIn += b.BytesIn
	s.BytesOut += b.BytesOut
	s.FPDUsIn += b.FPDUsIn
	s.FPDUsOut += b.FPDUsOut
	s.Reads += b.Reads
	s.Writes += b.Writes
	s.FlusherRuns += b.FlusherRuns
	s.Wakes += b.Wakes
	s.Terminates += b.Terminates
	s.TakenBack += b.TakenBack
	s.ReadsRefused += b.ReadsRefused
	for i := range s.CopiedIn {
		s.CopiedIn[i] += b.CopiedIn[i]
		s.CopiedOut[i] += b.CopiedOut[i]
	}
}

// counters are a QP's own: no cache line is shared between connections.
type counters struct {
	bytesIn, bytesOut   atomic.Uint64
	fpdusIn, fpdusOut   atomic.Uint64
	reads, writes       atomic.Uint64
	flushes, wakes      atomic.Uint64
	terms, refused      atomic.Uint64
	takenBack           atomic.Uint64
	copiedIn, copiedOut [len(copyClasses) + 1]atomic.Uint64
}

func (c *counters) load() Stats {
	s := Stats{
		BytesIn: c.bytesIn.Load(), BytesOut: c.bytesOut.Load(), FPDUsIn: c.fpdusIn.Load(), FPDUsOut: c.fpdusOut.Load(),
		Reads: c.reads.Load(), Writes: c.writes.Load(), FlusherRuns: c.flushes.Load(), Wakes: c.wakes.Load(),
		Terminates: c.terms.Load(), ReadsRefused: c.refused.Load(), TakenBack: c.takenBack.Load(),
	}
	for i := range s.CopiedIn {
		s.CopiedIn[i], s.CopiedOut[i] = c.copiedIn[i].Load(), c.copiedOut[i].Load()
	}
	return s
}
