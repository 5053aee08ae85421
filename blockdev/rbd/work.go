package rbd

import (
	"context"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/ceph"
	"github.com/sluice-storage/sluice/mem"
)

// worker serves one request at a time and may block.
type worker struct {
	d      *Device
	wake   chan int64
	bounce *mem.Slab // taken at the first need
	runs   []ceph.Run
}

func (w *worker) run() {
	w.wake = make(chan int64, 1)
	for r := w.d.queue.Get(); r != nil; r = w.d.queue.Get() {
		r.Finish(w.do(r))
	}
	if w.bounce != nil {
		// Unmapping memory that only this worker knows cannot fail, and the device's callers have gone.
		_ = w.bounce.Close()
	}
}

func (w *worker) do(r *blockdev.Request) error {
	d := w.d
	switch r.Op {
	case blockdev.Read:
		return w.read(r)
	case blockdev.CompareWrite:
		return w.compareWrite(r)
	case blockdev.Status:
		return w.status(r)
	case blockdev.Flush:
		return w.ask(r, func(s *ceph.Slot[work]) { s.Flush() })
	}
	d.locks.RLock(r.Offset, r.Length)
	defer d.locks.RUnlock(r.Offset, r.Length)
	switch r.Op {
	case blockdev.Write:
		return w.write(r)
	case blockdev.Discard:
		return w.ask(r, func(s *ceph.Slot[work]) { s.Discard(r.Offset, r.Length) })
	case blockdev.WriteZeroes:
		return w.zero(r)
	}
	return blockdev.ErrUnsupported
}

// ask has the ring do one thing and waits for it.
func (w *worker) ask(r *blockdev.Request, fill func(*ceph.Slot[work])) error {
	_, err := w.result(r, fill)
	return err
}

func (w *worker) result(r *blockdev.Request, fill func(*ceph.Slot[work])) (int64, error) {
	if w.d.fenced.Load() {
		return 0, blockdev.ErrFenced
	}
	g := w.d.ring
	var s *ceph.Slot[work]
	for s == nil {
		g.Lock()
		if s = g.TakeLocked(); s == nil {
			g.Unlock()
			if err := w.d.pause(); err != nil {
				return 0, err
			}
		}
	}
	s.V = work{wake: w.wake}
	fill(s)
	g.QueueLocked(s)
	g.Unlock()
	g.Enter()
	n := <-w.wake
	if n < 0 {
		if n == -int64(unix.ESHUTDOWN) {
			w.d.fenced.Store(true)
		}
		return 0, failed(r, n)
	}
	return n, nil
}

// pause is for a worker that finds the ring full: a flush that joins what is there ends when some of it has.
func (d *Device) pause() error {
	return blockdev.Do(context.Background(), d, &blockdev.Request{Op: blockdev.Flush})
}

func (w *worker) buffer() ([]byte, error) {
	if w.bounce == nil {
		s, err := mem.NewSlab(bounceSize)
		if err != nil {
			return nil, err
		}
		w.bounce = s
	}
	return w.bounce.Bytes(), nil
}

// move reads or writes one piece of memory.
func (w *worker) move(r *blockdev.Request, write bool, b []byte, off int64) error {
	n, err := w.result(r, func(s *ceph.Slot[work]) {
		setIovec(&s.Vector()[0], b)
		if write {
			s.Write(1, off)
		} else {
			s.Read(1, off)
		}
	})
	if err == nil && !write && n != int64(len(b)) {
		return fmt.Errorf("%w: read of %d bytes at %d: %w", blockdev.ErrMedium, len(b), off, io.ErrUnexpectedEOF) // the image was cut short
	}
	return err
}

// pieces calls f for the pieces of r that the buffer holds.
func (w *worker) pieces(r *blockdev.Request, f func(b []byte, at int64) error) error {
	buf, err := w.buffer()
	if err != nil {
		return err
	}
	for at := int64(0); at < r.Length; {
		b := buf[:min(int64(len(buf)), r.Length-at)]
		if err := f(b, at); err != nil {
			return err
		}
		at += int64(len(b))
	}
	return nil
}

func (w *worker) read(r *blockdev.Request) error {
	d := w.d
	d.locks.RLock(r.Offset, r.Length) // no compare-and-write meanwhile
	defer d.locks.RUnlock(r.Offset, r.Length)
	return w.pieces(r, func(b []byte, at int64) error {
		if err := w.move(r, false, b, r.Offset+at); err != nil {
			return err
		}
		mem.Scatter(r.Data, at, b)
		return nil
	})
}

func (w *worker) write(r *blockdev.Request) error {
	err := w.pieces(r, func(b []byte, at int64) error {
		mem.Gather(b, r.Data, at)
		return w.move(r, true, b, r.Offset+at)
	})
	if err != nil {
		return err
	}
	return w.durable(r)
}

// durable is FUA's part.
func (w *worker) durable(r *blockdev.Request) error {
	if !r.FUA || !w.d.cache {
		return nil
	}
	return w.ask(r, func(s *ceph.Slot[work]) { s.Flush() })
}

func (w *worker) zero(r *blockdev.Request) error {
	for at := int64(0); at < r.Length; {
		n := min(maxDiscard, r.Length-at)
		if err := w.ask(r, func(s *ceph.Slot[work]) { s.Zero(r.Offset+at, n, !r.Unmap) }); err != nil {
			return err
		}
		at += n
	}
	return w.durable(r)
}

// compareWrite reads, compares and writes under the lock of its range. librbd's own is of one object alone.
func (w *worker) compareWrite(r *blockdev.Request) error {
	buf, err := w.buffer()
	if err != nil {
		return err
	}
	d := w.d
	d.locks.Lock(r.Offset, r.Length)
	defer d.locks.Unlock(r.Offset, r.Length)
	b := buf[:r.Length]
	if err := w.move(r, false, b, r.Offset); err != nil {
		return err
	}
	r.Miss = 0
	if i := mem.Differ(b, r.Compare, 0); i >= 0 {
		r.Miss = int64(i)
		return blockdev.ErrMiscompare
	}
	d.compares.started.Add(1)
	defer d.compares.finished.Add(1)
	mem.Gather(b, r.Data, 0)
	if err := w.move(r, true, b, r.Offset); err != nil {
		return err
	}
	return w.durable(r)
}

// status asks for what objects there are, and what of each.
func (w *worker) status(r *blockdev.Request) error {
	r.Extents = r.Extents[:0]
	room := cap(r.Extents)
	if room == 0 {
		return nil
	}
	if w.runs == nil {
		w.runs = make([]ceph.Run, maxRuns)
	}
	// One run more than is told: behind the last a hole may end.
	runs := w.runs[:min(room+1, len(w.runs))]
	n, err := w.d.image.Allocated(uint64(r.Offset), uint64(r.Length), runs)
	if err != nil {
		return wrap(err)
	}
	block := int64(w.d.geo.Logical)
	at, end := r.Offset, r.Offset+r.Length
	for _, run := range runs[:n] {
		from := max(int64(run.Offset)/block*block, at)
		to := min((int64(run.Offset+run.Length)+block-1)/block*block, end)
		if to <= from {
			continue
		}
		r.Extents = appendExtent(appendExtent(r.Extents, at, from, false), from, to, true)
		at = to
	}
	if n < len(runs) {
		r.Extents = appendExtent(r.Extents, at, end, false)
	}
	return nil
}

// maxRuns bounds what one question is answered with: GET LBA STATUS tells of as many as there is room for, and goes on behind them.
const maxRuns = 1024

// appendExtent never grows beyond the capacity: Status fills what it was given. Behind an extent that found no place comes none.
func appendExtent(es []blockdev.Extent, off, end int64, mapped bool) []blockdev.Extent {
	if end <= off {
		return es
	}
	if n := len(es); n > 0 {
		last := &es[n-1]
		if last.Offset+last.Length != off {
			return es
		}
		if last.Mapped == mapped {
			last.Length = end - last.Offset
			return es
		}
	}
	if len(es) == cap(es) {
		return es
	}
	return append(es, blockdev.Extent{Offset: off, Length: end - off, Mapped: mapped})
}

// readAt is for the device itself, before anything is submitted.
func (d *Device) readAt(b []byte, off int64) error {
	s, err := mem.NewSlab(len(b))
	if err != nil {
		return err
	}
	r := &blockdev.Request{Op: blockdev.Read, Offset: off, Length: int64(len(b)), Data: []mem.Span{{Slab: s, Len: len(b)}}}
	// It ends within the client's time-out, and keeps its memory until then.
	err = blockdev.Do(context.Background(), d, r)
	copy(b, s.Bytes())
	if cerr := s.Close(); err == nil {
		err = cerr
	}
	return err
}
