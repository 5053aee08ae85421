package redo_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/blockdevtest"
	"github.com/sluice-storage/sluice/blockdev/internal/rangelock"
	"github.com/sluice-storage/sluice/blockdev/internal/redo"
	"github.com/sluice-storage/sluice/blockdev/volatile"
	"github.com/sluice-storage/sluice/mem"
)

const (
	slots   = 3
	longest = 24 * 512
)

// sins are the steps that a careless engine leaves out.
type sins struct {
	noLog     bool // write in place at once
	lazyLog   bool // log without waiting for it
	lazyPlace bool // wipe the slot before the data is durable in place
	noWipe    bool // leave the slot in use
	lazyWipe  bool // acknowledge before the wipe is durable
}

// engine is atomic writes over a disk that tears them: the file engine's way, on the volatile device.
type engine struct {
	*volatile.Device
	t     testing.TB
	sins  sins
	log   *redo.Log
	locks rangelock.Table
	free  chan int
	mem   chan *blockdevtest.Memory
}

// store is the device's spare part.
type store struct{ e *engine }

func (s store) do(op blockdev.Op, b []byte, off int64, fua bool) error {
	m := <-s.e.mem
	defer func() { s.e.mem <- m }()
	span := m.All().Cut(0, len(b))
	copy(span.Bytes(), b)
	r := &blockdev.Request{Op: op, FUA: fua, Offset: off, Length: int64(len(b)), Data: []mem.Span{span}}
	err := blockdev.Do(s.e.t.Context(), s.e.Device, r)
	if op == blockdev.Read {
		copy(b, span.Bytes())
	}
	return err
}

func (s store) ReadAt(b []byte, off int64) (int, error) {
	return len(b), s.do(blockdev.Read, b, blockdevtest.CutSize+off, false)
}

func (s store) WriteDurably(b []byte, off int64) error {
	wipe := len(b) == 512
	if wipe && s.e.sins.noWipe {
		return nil
	}
	return s.do(blockdev.Write, b, blockdevtest.CutSize+off, !(wipe && s.e.sins.lazyWipe) && !(!wipe && s.e.sins.lazyLog))
}

func (e *engine) Geometry() blockdev.Geometry {
	g := e.Device.Geometry()
	g.Size, g.AtomicUnit, g.AtomicMax = blockdevtest.CutSize, 512, longest
	return g
}

func (e *engine) Submit(r *blockdev.Request) {
	if r.Op != blockdev.Write {
		e.Device.Submit(r)
		return
	}
	if !r.Atomic {
		e.locks.RLock(r.Offset, r.Length)
		defer e.locks.RUnlock(r.Offset, r.Length)
		e.Device.Submit(r) // inline
		return
	}
	e.locks.Lock(r.Offset, r.Length)
	defer e.locks.Unlock(r.Offset, r.Length)
	r.Finish(e.atomic(r))
}

func (e *engine) atomic(r *blockdev.Request) error {
	place := func() error {
		below := &blockdev.Request{Op: blockdev.Write, FUA: !e.sins.lazyPlace, Offset: r.Offset, Length: r.Length, Data: r.Data}
		return blockdev.Do(e.t.Context(), e.Device, below)
	}
	if e.sins.noLog {
		return place()
	}
	slot := <-e.free
	defer func() { e.free <- slot }()
	if err := e.log.Begin(slot, make([]byte, redo.SlotSize), r.Offset, r.Data, int(r.Length)); err != nil {
		return err
	}
	if err := place(); err != nil {
		return err
	}
	return e.log.End(slot)
}

// start makes the engine, as a process that starts does: with recovery.
func start(t testing.TB, d *volatile.Device, s sins) (*engine, error) {
	e := &engine{Device: d, t: t, sins: s, free: make(chan int, slots), mem: make(chan *blockdevtest.Memory, slots+1)}
	e.locks.Shift = 12
	for i := range slots {
		e.free <- i
	}
	for range cap(e.mem) {
		e.mem <- blockdevtest.NewMemory(t, redo.SlotSize)
	}
	e.log = redo.New(store{e}, "volatile")
	_, err := e.log.Recover(slots, func(off int64, data []byte) error {
		return store{e}.do(blockdev.Write, data, off, true)
	})
	return e, err
}

// stack opens the engine; the one after a cut loses power once more in the middle of its recovery.
func stack(t testing.TB, seed uint64, s sins) func(blockdev.Device) blockdev.Device {
	opened := false
	return func(d blockdev.Device) blockdev.Device {
		v := d.(*volatile.Device)
		if opened {
			v.CutAfter(rand.New(rand.NewPCG(seed, 1)).IntN(60), seed)
			if _, err := start(t, v, s); err != nil && !errors.Is(err, volatile.ErrPower) {
				t.Fatal(err)
			}
			v.Cut(seed)
			v = v.Reopen()
		}
		opened = true
		e, err := start(t, v, s)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
}

const cuts = 100

func TestAtomicWritesAreWholeAfterAnyCut(t *testing.T) {
	for seed := range uint64(cuts) {
		if err := blockdevtest.PowerCut(t, seed, stack(t, seed, sins{})); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// TestATornAtomicWriteIsCaught holds the check above against engines that leave out a step.
func TestATornAtomicWriteIsCaught(t *testing.T) {
	for name, s := range map[string]sins{
		"no log": {noLog: true}, "a log that nobody waits for": {lazyLog: true}, "a slot wiped too early": {lazyPlace: true},
		"a slot that stays": {noWipe: true}, "a wipe that nobody waits for": {lazyWipe: true},
	} {
		caught, tried := 0, uint64(0)
		for ; tried < cuts && caught < 2; tried++ {
			if blockdevtest.PowerCut(t, tried, stack(t, tried, s)) != nil {
				caught++
			}
		}
		if caught == 0 {
			t.Errorf("%s was seen in none of %d cuts", name, tried)
		} else {
			t.Logf("%s was seen in %d of %d cuts", name, caught, tried)
		}
	}
}

// fileStore is a log in memory.
type fileStore struct{ b []byte }

func (f *fileStore) ReadAt(b []byte, off int64) (int, error) {
	return bytes.NewReader(f.b).ReadAt(b, off)
}

func (f *fileStore) WriteDurably(b []byte, off int64) error {
	copy(f.b[off:], b)
	return nil
}

func TestAnySpoiledRecordIsIgnored(t *testing.T) {
	m := blockdevtest.NewMemory(t, 64<<10)
	data := m.All().Cut(0, 1024)
	blockdevtest.Fill(data.Bytes(), 5)
	f := &fileStore{b: make([]byte, 2*redo.SlotSize)}
	l := redo.New(f, "a")
	if err := l.Begin(1, make([]byte, redo.SlotSize), 4096, []mem.Span{data}, 1024); err != nil {
		t.Fatal(err)
	}
	whole := bytes.Clone(f.b)
	record := f.b[redo.SlotSize:]
	for _, at := range []int{0, 7, 8, 39, 4048, 4079, 4080, 4087, 4088, 4095, 4096, 4096 + 1023} {
		copy(f.b, whole)
		record[at] ^= 0x10
		if there, err := l.Pending(2); there || err != nil {
			t.Errorf("a record with byte %d spoiled counts: %v", at, err)
		}
	}
	copy(f.b, whole)
	n, err := l.Recover(2, func(off int64, b []byte) error {
		if off != 4096 || !bytes.Equal(b, data.Bytes()) {
			t.Errorf("%d bytes for %d", len(b), off)
		}
		return nil
	})
	if n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if there, err := l.Pending(2); there || err != nil {
		t.Error(there, err)
	}
	copy(f.b, whole)
	broken := errors.New("broken")
	if _, err := l.Recover(2, func(int64, []byte) error { return broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
	if there, _ := l.Pending(2); !there {
		t.Error("a record that could not be applied is gone")
	}
	if _, err := redo.New(&fileStore{b: make([]byte, 100)}, "a").Pending(1); !errors.Is(err, io.EOF) {
		t.Errorf("a log that is cut short: %v", err)
	}
}

// A record is applied to the device that it was made for and to no other; those of before records had an owner are
// applied as they were then.
func TestARecordIsOfItsDevice(t *testing.T) {
	m := blockdevtest.NewMemory(t, 4096)
	f := &fileStore{b: make([]byte, redo.SlotSize)}
	if err := redo.New(f, "a").Begin(0, make([]byte, redo.SlotSize), 0, []mem.Span{m.All()}, 4096); err != nil {
		t.Fatal(err)
	}
	applied := 0
	apply := func(int64, []byte) error { applied++; return nil }
	b := redo.New(f, "b")
	if _, err := b.Recover(1, apply); !errors.Is(err, redo.ErrForeign) || applied != 0 {
		t.Errorf("%d records of another device were applied: %v", applied, err)
	}
	if there, err := b.Pending(1); there || !errors.Is(err, redo.ErrForeign) {
		t.Errorf("%v, %v", there, err)
	}
	copy(f.b, "SlRedo\x00\x01")
	hash := sha256.Sum256(f.b[4080:8192])
	copy(f.b[8:], hash[:])
	if n, err := b.Recover(1, apply); n != 1 || applied != 1 || err != nil {
		t.Errorf("a record of the first version: %d, %v", n, err)
	}
}

func TestScrubLeavesNothing(t *testing.T) {
	m := blockdevtest.NewMemory(t, 4096)
	blockdevtest.Fill(m.All().Bytes(), 1)
	f := &fileStore{b: make([]byte, 2*redo.SlotSize)}
	l := redo.New(f, "a")
	if err := l.Begin(1, make([]byte, redo.SlotSize), 0, []mem.Span{m.All()}, 4096); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.End(1), l.Scrub(2)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(f.b, make([]byte, len(f.b))) {
		t.Error("data is left in the log")
	}
}

func FuzzRecover(f *testing.F) {
	f.Add([]byte("SlRedo\x00\x01"), uint64(0), uint64(512))
	f.Add([]byte("SlRedo\x00\x02"), uint64(0), uint64(512))
	f.Add([]byte{}, uint64(1<<63), uint64(1<<63))
	f.Fuzz(func(t *testing.T, head []byte, off, n uint64) {
		s := &fileStore{b: make([]byte, redo.SlotSize)}
		copy(s.b, head)
		for i := range 8 {
			s.b[4080+i], s.b[4088+i] = byte(off>>(56-8*i)), byte(n>>(56-8*i))
		}
		if _, err := redo.New(s, "a").Recover(1, func(int64, []byte) error { return nil }); err != nil {
			t.Fatal(err)
		}
	})
}
