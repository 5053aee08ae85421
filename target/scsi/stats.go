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

// SpaceReporter is a thin device that knows how much space it uses and how much it could still get, in bytes.
type SpaceReporter interface {
	Space() (used, available int64)
}

// provisioning is the space of a thin unit, in threshold sets of 1<<Unit bytes.
type provisioning struct {
	Used, Available int64
	Unit            uint
}

// thresholdExponent gives threshold sets of 1 MiB (VPD B2h, THRESHOLD EXPONENT counts in blocks).
const thresholdShift = 20

func (lu *LogicalUnit) provisioned() provisioning {
	p := provisioning{Unit: thresholdShift}
	if s, ok := lu.dev.(SpaceReporter); ok {
		p.Used, p.Available = s.Space()
	} else {
		p.Used = lu.geo.Load().Size
	}
	return p
}

// CheckSpace compares the space left with LUOptions.ThinThreshold and warns every nexus, once for each time it falls
// below (SBC-3 section 4.7.3.7). The daemon calls it from time to time.
func (lu *LogicalUnit) CheckSpace() {
	if lu.opt.ThinThreshold <= 0 || !lu.thin() {
		return
	}
	p := lu.provisioned()
	if p.Available <= 0 && p.Used <= 0 {
		return
	}
	low := p.Available < lu.opt.ThinThreshold
	if lu.low.Swap(low) != low && low {
		lu.attention(ASCThinThreshold, nil)
	}
}

func (c *Command) countError(op blockdev.Op) {
	if op == blockdev.Read {
		c.x.itl.stats.readErrors.Add(1)
	} else {
		c.x.itl.stats.writeErrors.Add(1)
	}
}
