package block

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/source"
	"github.com/sluice-storage/sluice/mem"
)

// place is where a stream stands.
type place struct {
	v  *Volume
	at int64
}

// Seek implements io.Seeker; the end is that of the volume.
func (p *place) Seek(off int64, whence int) (int64, error) {
	switch whence {
	case io.SeekStart:
	case io.SeekCurrent:
		off += p.at
	case io.SeekEnd:
		off += p.v.Size()
	default:
		return 0, fmt.Errorf("%w: a seek from place %d", ErrBadRequest, whence)
	}
	if off < 0 {
		return 0, fmt.Errorf("%w: a seek to %d", blockdev.ErrRange, off)
	}
	p.at = off
	return off, nil
}

// Reader reads a Volume from a place on: an io.Reader, io.Seeker and io.WriterTo, so that io.Copy moves megabytes at a time.
// One goroutine at a time uses it.
type Reader struct {
	place
	ctx context.Context
}

// Reader reads v from its first byte on. The context is that of every read.
func (v *Volume) Reader(ctx context.Context) *Reader { return &Reader{place{v: v}, ctx} }

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	n, err := r.v.ReadAtContext(r.ctx, p, r.at)
	r.at += int64(n)
	if n > 0 && err == io.EOF { //nolint:errorlint // a wrapped one is a failure
		err = nil // the next read says it
	}
	return n, err
}

// WriteTo implements io.WriterTo. It reads ahead of what it writes.
func (r *Reader) WriteTo(w io.Writer) (n int64, err error) {
	f := newFlight(r.ctx, r.v.ReadAtContext)
	defer f.drain()
	next := r.at
	for {
		for size := r.v.Size(); next < size && len(f.out) < copyAhead; {
			p := f.piece(min(mem.MaxBuf-next%mem.MaxBuf, size-next))
			f.add(p, next)
			next += int64(len(p))
		}
		if len(f.out) == 0 {
			return n, nil
		}
		p, k, err := f.first()
		if err == io.EOF { //nolint:errorlint // a wrapped one is a failure
			err = nil // the volume has become shorter
		}
		if k > 0 {
			m, werr := w.Write(p[:k])
			if werr == nil && m < k {
				werr = io.ErrShortWrite
			}
			n += int64(m)
			r.at += int64(m)
			err = errors.Join(werr, err)
		}
		if err != nil {
			return n, err
		}
	}
}

// Writer writes a Volume from a place on: an io.Writer, io.Seeker and io.ReaderFrom, so that io.Copy moves megabytes at a
// time. What it has written is durable after Volume.Sync. One goroutine at a time uses it.
type Writer struct {
	place
	ctx context.Context
}

// Writer writes v from its first byte on. The context is that of every write.
func (v *Volume) Writer(ctx context.Context) *Writer { return &Writer{place{v: v}, ctx} }

// Write implements io.Writer. What does not fit is blockdev.ErrRange, and what fits of it is written.
func (w *Writer) Write(p []byte) (int, error) {
	var end error
	if left := max(w.v.Size()-w.at, 0); int64(len(p)) > left {
		end = fmt.Errorf("%w: %d bytes at %d of %d", blockdev.ErrRange, len(p), w.at, w.v.Size())
		p = p[:left]
	}
	n, err := w.v.WriteAtContext(w.ctx, p, min(w.at, w.v.Size()))
	w.at += int64(n)
	return n, errors.Join(err, end)
}

// ReadFrom implements io.ReaderFrom. It reads ahead of what is being written. What r gave before it failed is written.
func (w *Writer) ReadFrom(r io.Reader) (n int64, err error) {
	f := newFlight(w.ctx, w.v.WriteAtContext)
	defer f.drain()
	for next := w.at; ; {
		room := min(mem.MaxBuf-next%mem.MaxBuf, max(w.v.Size()-next, 0))
		p := f.piece(max(room, 1))
		k, rerr := source.Fill(r, p)
		end := rerr == io.EOF //nolint:errorlint // a wrapped one is a failure of r
		if end {
			rerr = nil
		}
		switch {
		case k > 0 && room == 0:
			rerr = fmt.Errorf("%w: the volume ends at %d", blockdev.ErrRange, w.v.Size())
		case k > 0:
			f.add(p[:k], next)
			next += int64(k)
		}
		for err == nil && len(f.out) > 0 && (end || rerr != nil || len(f.out) == copyAhead) {
			_, k, err = f.first()
			n += int64(k)
			w.at += int64(k)
		}
		if err != nil || rerr != nil || end {
			return n, errors.Join(err, rerr)
		}
	}
}

// flight is calls under way for one stream, in the order of their places. Its pieces lie in memory of the program: while a
// stream waits for its other end it holds none of the pool's, since that end may be a Volume that waits for just that.
type flight struct {
	ctx    context.Context
	cancel context.CancelFunc
	call   func(context.Context, []byte, int64) (int, error)
	out    []*piece
	free   [][]byte
	last   []byte // of the piece that first has returned
}

// piece is one of them.
type piece struct {
	data []byte
	n    int
	err  error
	done chan struct{}
}

func newFlight(ctx context.Context, call func(context.Context, []byte, int64) (int, error)) *flight {
	f := &flight{call: call}
	f.ctx, f.cancel = context.WithCancel(ctx)
	return f
}

// piece returns memory for a piece.
func (f *flight) piece(n int64) []byte {
	if k := len(f.free) - 1; k >= 0 && int64(cap(f.free[k])) >= n {
		p := f.free[k]
		f.free = f.free[:k]
		return p[:n]
	}
	return make([]byte, n)
}

// add begins to move p, which is the flight's from now on.
func (f *flight) add(p []byte, at int64) {
	c := &piece{data: p, done: make(chan struct{})}
	f.out = append(f.out, c)
	go func() {
		defer close(c.done)
		c.n, c.err = f.call(f.ctx, p, at)
	}()
}

// first waits for the oldest, and returns how many bytes of it have moved. Its memory is the caller's until the next call.
func (f *flight) first() ([]byte, int, error) {
	if f.last != nil {
		f.free, f.last = append(f.free, f.last), nil
	}
	p := f.out[0]
	f.out = f.out[1:]
	<-p.done
	f.last = p.data
	return p.data, p.n, p.err
}

// drain ends what is left.
func (f *flight) drain() {
	f.cancel()
	for _, p := range f.out {
		<-p.done
	}
	f.out = nil
}
