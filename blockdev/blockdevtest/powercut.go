package blockdevtest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/volatile"
	"github.com/sluice-storage/sluice/mem"
)

const (
	cutSectors = 192 // of the device that power cuts are tried on
	cutClients = 3
	cutOps     = 60 // of each client, at most
	cutSector  = 512

	// CutSize is what PowerCut writes to; CutSpare bytes behind it are the stack's own, for a log.
	CutSize  = cutSectors * cutSector
	CutSpare = 512 << 10
)

// PowerCut runs clients on stack(volatile device), cuts the power at a point that seed decides, in the middle of a
// flush as likely as not, and looks at what is left. The error names the first sector that went back behind what a
// flush or FUA had acknowledged, or that holds what was never written, or an atomic write of which a part is there. stack puts
// layers to be tested on the device, and does so again after the cut, as a restart would.
func PowerCut(t testing.TB, seed uint64, stack func(blockdev.Device) blockdev.Device) error {
	t.Helper()
	below, err := volatile.Open(volatile.Options{Size: CutSize + CutSpare})
	if err != nil {
		t.Fatal(err)
	}
	return PowerCutOf(t, seed, Plant{
		Dev: stack(below), Cut: below.Cut, CutAfter: below.CutAfter,
		IsOff: func(err error) bool { return errors.Is(err, volatile.ErrPower) },
		Again: func(testing.TB) blockdev.Device { return stack(below.Reopen()) },
	})
}

// Plant is a device that runs on something whose power can be cut.
type Plant struct {
	Dev      blockdev.Device // of CutSize bytes or more, full of zeroes
	Cut      func(seed uint64)
	CutAfter func(n int, seed uint64)         // in the middle of something: n is up to 400
	IsOff    func(err error) bool             // the error may be the power's
	Again    func(testing.TB) blockdev.Device // puts the power on and starts again
}

// PowerCutOf is PowerCut for what has its own way to lose power.
func PowerCutOf(t testing.TB, seed uint64, p Plant) error {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 0xc07))
	h := &history{dev: p.Dev, off: p.IsOff}
	clients := 1
	if seed%2 == 1 {
		clients = cutClients
	}
	cutAt := -1
	if rng.IntN(2) == 0 {
		p.CutAfter(rng.IntN(400), seed)
	} else {
		cutAt = rng.IntN(cutOps)
	}
	var wg sync.WaitGroup
	for c := range clients {
		m := NewMemory(t, 64<<10)
		own := rand.New(rand.NewPCG(seed, uint64(c)))
		wg.Go(func() {
			for op := range cutOps {
				if c == 0 && op == cutAt {
					p.Cut(seed)
				}
				if !h.step(t, m, own, c, clients) {
					return
				}
			}
		})
	}
	wg.Wait()
	p.Cut(seed)
	return h.check(t, p.Again(t))
}

// history is what was written and what was promised, by sector. A version is a number that only grows.
type history struct {
	dev blockdev.Device
	off func(error) bool

	mu        sync.Mutex
	version   uint64
	submitted [cutSectors]uint64 // the newest version that may be on the medium
	completed [cutSectors]uint64 // the newest that was acknowledged as written
	durable   [cutSectors]uint64 // what a cut must leave, or something newer
	atomics   []atomicWrite
}

// atomicWrite is a version that is on the medium in full or not at all.
type atomicWrite struct {
	version  uint64
	first, n int
}

// step does one thing and reports whether there was power to do it. Each client writes to sectors of its own, so that
// a sector's versions are on the medium in order.
func (h *history) step(t testing.TB, m *Memory, rng *rand.Rand, client, clients int) bool {
	if rng.IntN(8) == 0 {
		h.mu.Lock()
		promise := h.completed
		h.mu.Unlock()
		if !h.do(t, &blockdev.Request{Op: blockdev.Flush}) {
			return false
		}
		h.promise(promise)
		return true
	}
	each := cutSectors / clients
	first := client*each + rng.IntN(each)
	n := 1 + rng.IntN(min(24, (client+1)*each-first))
	data := m.All().Cut(0, n*cutSector)
	r := &blockdev.Request{Op: blockdev.Write, FUA: rng.IntN(6) == 0, Offset: int64(first * cutSector), Length: int64(n * cutSector), Data: []mem.Span{data}}
	if most := h.dev.Geometry().AtomicMax; most > 0 && rng.IntN(3) == 0 {
		n = min(n, int(most/cutSector))
		data = data.Cut(0, n*cutSector)
		r.Atomic, r.Length, r.Data = true, int64(n*cutSector), []mem.Span{data}
	}
	h.mu.Lock()
	h.version++
	v := h.version
	if r.Atomic {
		h.atomics = append(h.atomics, atomicWrite{v, first, n})
	}
	for s := first; s < first+n; s++ {
		h.submitted[s] = v
	}
	h.mu.Unlock()
	for s := range n {
		b := data.Bytes()[s*cutSector:][:cutSector]
		Fill(b, v<<16|uint64(first+s))
		binary.LittleEndian.PutUint64(b, v)
	}
	if !h.do(t, r) {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := first; s < first+n; s++ {
		h.completed[s] = v
		if r.FUA {
			h.durable[s] = v
		}
	}
	return true
}

func (h *history) promise(completed [cutSectors]uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s, v := range completed {
		h.durable[s] = max(h.durable[s], v)
	}
}

func (h *history) do(t testing.TB, r *blockdev.Request) bool {
	err := blockdev.Do(t.Context(), h.dev, r)
	if err != nil && !h.off(err) {
		t.Errorf("%v: %v", r.Op, err)
	}
	return err == nil
}

func (h *history) check(t testing.TB, d blockdev.Device) error {
	m := NewMemory(t, cutSectors*cutSector)
	got := Read(t, d, m, 0, cutSectors*cutSector)
	want := make([]byte, cutSector)
	for s := range cutSectors {
		b := got[s*cutSector:][:cutSector]
		v := binary.LittleEndian.Uint64(b)
		if v < h.durable[s] || v > h.submitted[s] {
			return fmt.Errorf("sector %d holds version %d; %d was acknowledged as durable, %d written last", s, v, h.durable[s], h.submitted[s])
		}
		clear(want)
		if v > 0 {
			Fill(want, v<<16|uint64(s))
			binary.LittleEndian.PutUint64(want, v)
		}
		if string(b) != string(want) {
			return fmt.Errorf("sector %d claims version %d and holds something else", s, v)
		}
	}
	return h.torn(got)
}

// torn looks for an atomic write of which one sector is there and another still holds what was before it.
func (h *history) torn(got []byte) error {
	for _, a := range h.atomics {
		there, missing := -1, -1
		for s := a.first; s < a.first+a.n; s++ {
			switch v := binary.LittleEndian.Uint64(got[s*cutSector:]); {
			case v == a.version:
				there = s
			case v < a.version:
				missing = s
			}
		}
		if there >= 0 && missing >= 0 {
			return fmt.Errorf("atomic write %d of sectors %d to %d is torn: sector %d has it, sector %d has not", a.version, a.first, a.first+a.n-1, there, missing)
		}
	}
	return nil
}
