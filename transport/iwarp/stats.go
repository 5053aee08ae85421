package iwarp

import (
	"sync/atomic"

	"github.com/sluice-storage/sluice/transport"
)

// Stats counts what a QP or a device did.
type Stats = transport.StreamStats

// copyClasses are the upper bounds of the size classes in which copied payload is counted.
var copyClasses = transport.CopyBounds

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
func add(s *Stats, b Stats) {
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
