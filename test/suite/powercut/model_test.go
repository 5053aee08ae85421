package powercut

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"

	"github.com/sluice-storage/sluice/initiator/block"
)

// place is what a sector may hold: the write that was made durable last, or any that was begun after it.
type place struct {
	durable uint64
	newer   []uint64
	acked   uint64 // the last of newer that was acknowledged, 0 for none
}

// writer is one host with places of its own on the volume.
type writer struct {
	name   string
	first  int64 // sector
	places []place
	step   uint64
	rng    *rand.Rand
	bytes  func(step uint64) []byte // what a write leaves in its sector

	heard, silent int // losses that a flush has told of, and flushes after a cut that had nothing to tell
}

func newWriter(name string, first int64, n int, seed uint64) *writer {
	return &writer{name: name, first: first, places: make([]place, n), rng: rand.New(rand.NewPCG(seed, uint64(first))), bytes: content}
}

// content repeats the number of the write.
func content(step uint64) []byte {
	b := make([]byte, sector)
	for i := 0; i < sector; i += 8 {
		binary.BigEndian.PutUint64(b[i:], step)
	}
	return b
}

// settle notes that what is acknowledged is durable.
func (w *writer) settle() {
	for k := range w.places {
		w.places[k].settle()
	}
}

func (p *place) settle() {
	if p.acked == 0 {
		return
	}
	p.newer = slices.Clone(p.newer[slices.Index(p.newer, p.acked)+1:])
	p.durable, p.acked = p.acked, 0
}

// told notes that a flush has failed: of what it was for nothing is promised any more.
func (w *writer) told() {
	for k := range w.places {
		w.places[k].acked = 0
	}
}

// work writes and flushes until a call fails, or enough is done.
func (w *writer) work(ctx context.Context, v *block.Volume, stop *atomic.Bool) {
	for !stop.Load() {
		if w.rng.IntN(6) == 0 {
			if v.Flush(ctx) != nil {
				w.told()
				return
			}
			w.settle()
			continue
		}
		if !w.batch(ctx, v) {
			return
		}
	}
}

// batch has some writes under way at once, to different places.
func (w *writer) batch(ctx context.Context, v *block.Volume) bool {
	type write struct {
		place int
		step  uint64
		fua   bool
		err   error
	}
	var ws []write
	done := make(chan int, len(w.places))
	for _, k := range w.rng.Perm(len(w.places))[:1+w.rng.IntN(8)] {
		w.step++
		w.places[k].newer = append(w.places[k].newer, w.step)
		ws = append(ws, write{place: k, step: w.step, fua: w.rng.IntN(5) == 0})
	}
	for i := range ws {
		go func() {
			ws[i].err = one(ctx, v, (w.first+int64(ws[i].place))*sector, ws[i].step, ws[i].fua)
			done <- i
		}()
	}
	ok := true
	for range ws {
		i := <-done
		p := &w.places[ws[i].place]
		if ws[i].err != nil {
			ok = false
			continue
		}
		if p.acked = ws[i].step; ws[i].fua {
			p.settle()
		}
	}
	return ok
}

func one(ctx context.Context, v *block.Volume, off int64, step uint64, fua bool) error {
	b, err := v.Memory().Get(sector)
	if err != nil {
		return err
	}
	defer b.Release()
	copy(b.Bytes(), content(step))
	return v.WriteSpans(ctx, off, fua, b.Span())
}

// judge flushes after the power is back and compares. Whether the flush fails is the initiator's to know: what it claims has to
// be there.
func (w *writer) judge(ctx context.Context, v *block.Volume) error {
	switch err := v.Flush(ctx); {
	case err == nil:
		w.settle()
		w.silent++
	default:
		w.told()
		w.heard++
		if second := v.Flush(ctx); second != nil {
			return fmt.Errorf("%s: two flushes fail for one loss: %w; %w", w.name, err, second)
		}
	}
	b := make([]byte, len(w.places)*sector)
	if _, err := v.ReadAt(b, w.first*sector); err != nil {
		return fmt.Errorf("%s: reading after the loss: %w", w.name, err)
	}
	return w.compare(b)
}

// compare holds what is there against what may be, and goes on from there: what survived a cut is durable.
func (w *writer) compare(b []byte) error {
	for k := range w.places {
		p, got := &w.places[k], b[k*sector:(k+1)*sector]
		is := func(step uint64) bool { return bytes.Equal(got, w.bytes(step)) }
		if !is(p.durable) {
			i := slices.IndexFunc(p.newer, is)
			if i < 0 {
				return &lost{fmt.Sprintf("%s: sector %d holds %x, write %d was said to be durable", w.name, w.first+int64(k), got[:16], p.durable)}
			}
			p.durable = p.newer[i]
		}
		*p = place{durable: p.durable}
	}
	return nil
}

// lost is a broken promise, as opposed to what kept the test from looking.
type lost struct{ what string }

func (l *lost) Error() string { return l.what }
