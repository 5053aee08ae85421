package scsi

import (
	"sync/atomic"

	"github.com/sluice-storage/sluice/blockdev"
)

// Stats are a logical unit's counters since it was made.
type Stats struct {
	Reads, Writes, Others   int64 // commands
	ReadBytes, WrittenBytes int64
	ReadErrors, WriteErrors int64
	Conflicts               int64 // commands that met somebody else's reservation
	Nexuses                 int
}

// Stats sums the counters over all I_T nexuses.
func (lu *LogicalUnit) Stats() Stats {
	lu.mu.Lock()
	defer lu.mu.Unlock()
	t := lu.gone
	for i := range lu.itls {
		t.add(&i.stats)
	}
	return Stats{Reads: t.reads, Writes: t.writes, Others: t.others, ReadBytes: t.readBytes, WrittenBytes: t.writtenBytes,
		ReadErrors: t.readErrors, WriteErrors: t.writeErrors, Conflicts: t.conflicts, Nexuses: len(lu.itls)}
}

// stats counts what an I_T_L nexus did: no cache line is shared between sessions.
type stats struct {
	reads, writes, others   atomic.Int64
	readBytes, writtenBytes atomic.Int64
	readErrors, writeErrors atomic.Int64
	conflicts               atomic.Int64
}

func (t *luTotals) add(s *stats) {
	t.reads += s.reads.Load()
	t.writes += s.writes.Load()
	t.others += s.others.Load()
	t.readBytes += s.readBytes.Load()
	t.writtenBytes += s.writtenBytes.Load()
	t.readErrors += s.readErrors.Load()
	t.writeErrors += s.writeErrors.Load()
	t.conflicts += s.conflicts.Load()
}

func (t *luTotals) sub(o luTotals) {
	t.reads -= o.reads
	t.writes -= o.writes
	t.others -= o.others
	t.readBytes -= o.readBytes
	t.writtenBytes -= o.writtenBytes
	t.readErrors -= o.readErrors
	t.writeErrors -= o.writeErrors
	t.conflicts -= o.conflicts
}

// totals are the counters since LOG SELECT last reset them.
func (lu *LogicalUnit) totals() luTotals {
	lu.mu.Lock()
	defer lu.mu.Unlock()
	t := lu.gone
	for i := range lu.itls {
		t.add(&i.stats)
	}
	t.sub(lu.base)
	return t
}

func (lu *LogicalUnit) resetTotals() {
	t := lu.totals()
	lu.mu.Lock()
	defer lu.mu.Unlock()
	b := &lu.base
	b.reads, b.writes, b.others = b.reads+t.reads, b.writes+t.writes, b.others+t.others
	b.readBytes, b.writtenBytes = b.readBytes+t.readBytes, b.writtenBytes+t.writtenBytes
	b.readErrors, b.writeErrors, b.conflicts = b.readErrors+t.readErrors, b.writeErrors+t.writeErrors, b.conflicts+t.conflicts
}

func (c *Command) countError(op blockdev.Op) {
	if op == blockdev.Read {
		c.x.itl.stats.readErrors.Add(1)
	} else {
		c.x.itl.stats.writeErrors.Add(1)
	}
}
