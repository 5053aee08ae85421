// Package blockdevtest runs the rules of package blockdev as cases on an engine.
package blockdevtest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
)

// Patience is how long a case waits for a completion: long enough for a machine that does ten other things.
const Patience = 2 * time.Minute

// Options say how to get at an engine and what it cannot keep by design.
type Options struct {
	// Open returns a new device full of zeroes, of at least 2 MiB. The case closes it.
	Open func(t testing.TB) blockdev.Device
	// Reopen closes a device and opens the same medium again. Nil skips nothing that a medium-less engine has.
	Reopen func(t testing.TB, d blockdev.Device) blockdev.Device
	// ReadOnly opens a device read-only. Optional.
	ReadOnly func(t testing.TB) blockdev.Device
	// Resize changes the size of d's medium; the case calls Refresh. Optional.
	Resize func(t testing.TB, d blockdev.Device, size int64)
	// Forgets is set for engines that keep no data (null): cases then check completions only.
	Forgets bool
	// Registrar is told of the memory that requests name, where the engine is reached through a fabric. Optional.
	Registrar mem.Registrar
	// Cheap allows the case that counts allocations: Submit and completion must allocate nothing.
	Cheap bool
}

// Run runs all cases.
func Run(t *testing.T, o Options) {
	t.Run("Geometry", func(t *testing.T) { geometry(t, o) })
	t.Run("Range", func(t *testing.T) { ranges(t, o) })
	t.Run("Unsupported", func(t *testing.T) { unsupported(t, o) })
	t.Run("ReadWrite", func(t *testing.T) { readWrite(t, o) })
	t.Run("Spans", func(t *testing.T) { spans(t, o) })
	t.Run("DoneOnce", func(t *testing.T) { doneOnce(t, o) })
	t.Run("Concurrent", func(t *testing.T) { concurrent(t, o) })
	t.Run("Zeroes", func(t *testing.T) { zeroes(t, o) })
	t.Run("CompareWrite", func(t *testing.T) { compareWrite(t, o) })
	t.Run("CompareWriteAtomic", func(t *testing.T) { compareWriteAtomic(t, o) })
	t.Run("Atomic", func(t *testing.T) { atomicWrites(t, o) })
	t.Run("Status", func(t *testing.T) { status(t, o) })
	t.Run("Flushes", func(t *testing.T) { flushes(t, o) })
	t.Run("Model", func(t *testing.T) { model(t, o) })
	if o.Reopen != nil {
		t.Run("Reopen", func(t *testing.T) { reopen(t, o) })
	}
	if o.ReadOnly != nil {
		t.Run("ReadOnly", func(t *testing.T) { readOnly(t, o) })
	}
	if o.Resize != nil {
		t.Run("Resize", func(t *testing.T) { resize(t, o) })
	}
	if o.Cheap {
		t.Run("Allocations", func(t *testing.T) { allocations(t, o) })
	}
}

// Memory is a slab for the buffers of one test, unmapped at its end.
type Memory struct {
	slab *mem.Slab
	used int
}

// memory is NewMemory that the engine's fabric knows.
func (o *Options) memory(t testing.TB, size int) *Memory {
	t.Helper()
	m := NewMemory(t, size)
	if o.Registrar != nil {
		if err := o.Registrar.Register(m.slab); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := o.Registrar.Unregister(m.slab); err != nil {
				t.Error(err)
			}
		})
	}
	return m
}

// NewMemory maps size bytes.
func NewMemory(t testing.TB, size int) *Memory {
	t.Helper()
	s, err := mem.NewSlab(size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return &Memory{slab: s}
}

// Span returns n bytes that no other span has; it panics when the slab is used up.
func (m *Memory) Span(n int) mem.Span {
	s := mem.Span{Slab: m.slab, Off: m.used, Len: n}
	m.used += n
	_ = s.Bytes()
	return s
}

// All is the whole slab.
func (m *Memory) All() mem.Span { return mem.Span{Slab: m.slab, Len: len(m.slab.Bytes())} }

// Fill writes a pattern that depends on seed.
func Fill(b []byte, seed uint64) {
	r := rand.NewPCG(seed, 0x5eed)
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, r.Uint64())
	}
	for i := range b {
		b[i] = byte(r.Uint64())
	}
}

// Do submits r, waits and returns the outcome.
func Do(t testing.TB, d blockdev.Device, r *blockdev.Request) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	err := blockdev.Do(ctx, d, r)
	if errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%v of %d bytes at %d was never done", r.Op, r.Length, r.Offset)
	}
	return err
}

// Write writes b at off through memory of m.
func Write(t testing.TB, d blockdev.Device, m *Memory, off int64, b []byte, fua bool) {
	t.Helper()
	s := m.All().Cut(0, len(b))
	copy(s.Bytes(), b)
	r := &blockdev.Request{Op: blockdev.Write, FUA: fua, Offset: off, Length: int64(len(b)), Data: []mem.Span{s}}
	if err := Do(t, d, r); err != nil {
		t.Fatalf("write of %d bytes at %d: %v", len(b), off, err)
	}
}

// Read reads n bytes at off through memory of m. The result is valid until m is used again.
func Read(t testing.TB, d blockdev.Device, m *Memory, off int64, n int) []byte {
	t.Helper()
	s := m.All().Cut(0, n)
	Fill(s.Bytes(), 0xee) // so that a read that moves nothing shows
	r := &blockdev.Request{Op: blockdev.Read, Offset: off, Length: int64(n), Data: []mem.Span{s}}
	if err := Do(t, d, r); err != nil {
		t.Fatalf("read of %d bytes at %d: %v", n, off, err)
	}
	return s.Bytes()
}

// Flush flushes d.
func Flush(t testing.TB, d blockdev.Device) {
	t.Helper()
	if err := Do(t, d, &blockdev.Request{Op: blockdev.Flush}); err != nil {
		t.Fatalf("flush: %v", err)
	}
}

// Close closes d.
func Close(t testing.TB, d blockdev.Device) {
	t.Helper()
	if err := d.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

// expect fails when got and want differ, and says where.
func expect(t testing.TB, what string, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	if len(got) != len(want) {
		t.Fatalf("%s: %d bytes, want %d", what, len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("%s: byte %d is %#02x, want %#02x", what, i, got[i], want[i])
		}
	}
}
