package scsi

import (
	"sync/atomic"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/target/hist"
)

// Stats are a logical unit's counters since it was made.
type Stats struct {
	Reads, Writes, Others   int64 // commands
	ReadBytes, WrittenBytes int64
	ReadErrors, WriteErrors int64
	Conflicts               int64 // commands that met the reservation of another nexus
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

// opKind says which histogram a command's latency belongs to.
type opKind uint8

const (
	kindOther opKind = iota
	kindRead
	kindWrite
	kinds
)

// Latency is how long a logical unit's commands took, from the session's handing over to the outcome: data moved both ways
// and the medium included. It counts every command, those that failed too.
type Latency struct{ Read, Write, Other hist.Snapshot }

// Latency sums the histograms over all I_T nexuses, past and present.
func (lu *LogicalUnit) Latency() Latency {
	lu.mu.Lock()
	defer lu.mu.Unlock()
	t := lu.goneLatency
	for i := range lu.itls {
		t.add(&i.stats)
	}
	return Latency{Read: t[kindRead], Write: t[kindWrite], Other: t[kindOther]}
}

type luLatency [kinds]hist.Snapshot

func (l *luLatency) add(s *stats) {
	for k := range l {
		l[k].Add(&s.latency[k])
	}
}

// InProgress is the number of commands of all nexuses that are in the task sets now.
func (lu *LogicalUnit) InProgress() int {
	lu.mu.Lock()
	sets := map[*taskSet]bool{&lu.tasks: true}
	for i := range lu.itls {
		sets[i.set()] = true
	}
	lu.mu.Unlock()
	n := 0
	for s := range sets {
		s.mu.Lock()
		n += s.n
		s.mu.Unlock()
	}
	return n
}

// stats counts what an I_T_L nexus did: no cache line is shared between sessions.
type stats struct {
	reads, writes, others   atomic.Int64
	readBytes, writtenBytes atomic.Int64
	readErrors, writeErrors atomic.Int64
	conflicts               atomic.Int64
	latency                 [kinds]hist.Hist
	sense                   [16]atomic.Int64 // CHECK CONDITIONs by sense key
}

// countSense counts sense data by its key: byte 2 of the fixed format, byte 1 of the descriptor format (SPC-4 section 4.5).
func (s *stats) countSense(b []byte) {
	switch {
	case len(b) < 3:
	case b[0]&0x7e == 0x72:
		s.sense[b[1]&15].Add(1)
	default:
		s.sense[b[2]&15].Add(1)
	}
}

// CheckConditions are the commands of all nexuses, past and present, that ended so, by sense key.
func (lu *LogicalUnit) CheckConditions() (n [16]int64) {
	lu.mu.Lock()
	defer lu.mu.Unlock()
	n = lu.goneSense
	for i := range lu.itls {
		for k := range n {
			n[k] += i.stats.sense[k].Load()
		}
	}
	return n
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
