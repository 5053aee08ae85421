package scsi

import (
	"testing"

	"github.com/sluice-storage/sluice/mem"
)

// BenchmarkRead is what the device server costs a READ of one block, without a session and a medium.
func BenchmarkRead(b *testing.B) {
	r := newRig(b)
	c, m := &Command{}, &sink{}
	block := cdb("28 00 00 00 00 00 00 00 01 00")
	b.ReportAllocs()
	for b.Loop() {
		c.CDB, c.ExpectIn, c.Mover = block, 512, m
		r.n.Execute(c)
		if c.Status != StatusGood {
			b.Fatal(c.Status)
		}
		c.Reset()
	}
	r.disk.mu.Lock()
	defer r.disk.mu.Unlock()
	if m.moved != len(r.disk.log) {
		b.Errorf("%d moves, %d requests", m.moved, len(r.disk.log))
	}
}

// sink is a mover that takes everything at once.
type sink struct{ moved int }

func (s *sink) DataIn(c *Command, _ int, _ []mem.Span) {
	s.moved++
	c.Moved(nil)
}
func (s *sink) DataOut(c *Command, _ int, _ []mem.Span) { c.Moved(nil) }
func (s *sink) Complete(*Command)                       {}
