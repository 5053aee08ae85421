package block

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/sluice-storage/sluice/blockdev"
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
	if n > 0 && errors.Is(err, io.EOF) {
		err = nil // the next read says it
	}
	return n, err
}

// WriteTo implements io.WriterTo. It reads ahead of what it writes.
func (r *Reader) WriteTo(w io.Writer) (n int64, err error) {
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	size := r.v.Size()
	next := r.at
	f := newFlight(r.v, ctx)
	defer f.drain()
	for {
		for next < size && len(f.out) < copyAhead {
			b, err := f.get()
			if b == nil && err == nil {
				break // the oldest gives its memory back first
			}
			if err != nil {
				return n, err
			}
			to := min(next+f.size-next%f.size, size)
			f.add(next, to, blockdev.Read, b)
			next = to
		}
		if len(f.out) == 0 {
			return n, nil
		}
		p, err := f.first()
		if err == nil {
			var k int
			if k, err = w.Write(p.bytes()); err == nil && k < p.len() {
				err = io.ErrShortWrite
			}
			n += int64(k)
			r.at += int64(k)
		}
		p.b.Release()
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

// ReadFrom implements io.ReaderFrom. It reads ahead of what is being written.
func (w *Writer) ReadFrom(r io.Reader) (n int64, err error) {
	block := int64(w.v.unit.Load().Logical)
	f := newFlight(w.v, w.ctx)
	defer f.drain()
	settle := func() error { // the oldest write
		p, err := f.first()
		if err == nil {
			n += int64(p.len())
			w.at += int64(p.len())
		}
		p.b.Release()
		return err
	}
	for next := w.at; ; {
		b, err := f.get()
		for b == nil && err == nil { // the oldest gives its memory back first
			if err = settle(); err == nil {
				b, err = f.get()
			}
		}
		if err != nil {
			return n, err
		}
		room := min(f.size-next%f.size, max(w.v.Size()-next, 0))
		k, rerr := io.ReadFull(r, b.Bytes()[:max(room, 1)])
		end := errors.Is(rerr, io.EOF) || errors.Is(rerr, io.ErrUnexpectedEOF)
		if end {
			rerr = nil
		}
		switch {
		case k > 0 && room == 0:
			rerr = fmt.Errorf("%w: the volume ends at %d", blockdev.ErrRange, w.v.Size())
			fallthrough
		case k == 0:
			b.Release()
		case next%block != 0 || int64(k)%block != 0: // its edges need what is there
			part := slices.Clone(b.Bytes()[:k])
			b.Release() // WriteAt waits for memory of its own
			for len(f.out) > 0 && err == nil {
				err = settle()
			}
			if err == nil {
				var m int
				m, err = w.v.WriteAtContext(w.ctx, part, next)
				n, w.at, next = n+int64(m), w.at+int64(m), next+int64(m)
			}
		default:
			f.add(next, next+int64(k), blockdev.Write, b)
			next += int64(k)
		}
		for err == nil && len(f.out) > 0 && (end || rerr != nil || len(f.out) == copyAhead) {
			err = settle()
		}
		if err != nil || rerr != nil || end {
			return n, errors.Join(err, rerr)
		}
	}
}

// flight is requests under way for one stream, in the order of their places.
type flight struct {
	v    *Volume
	ctx  context.Context
	size int64 // of a piece
	out  []*piece
}

// piece is one of them: the bytes from lo to hi, and the whole blocks around them in a buffer.
type piece struct {
	lo, hi, at int64
	b          *mem.Buf
	req        blockdev.Request
	done       chan struct{}
}

func (p *piece) len() int      { return int(p.hi - p.lo) }
func (p *piece) bytes() []byte { return p.b.Bytes()[p.lo-p.at : p.hi-p.at] }

func newFlight(v *Volume, ctx context.Context) *flight {
	return &flight{v: v, ctx: ctx, size: mem.MaxBuf}
}

// get returns memory for a piece. It waits for memory only while the flight has none itself: streams that each hold some and
// wait for more would wait for each other. Otherwise it returns nothing where there is none. Pieces become shorter where an
// adapter has no room for such buffers.
func (f *flight) get() (*mem.Buf, error) {
	for {
		var b *mem.Buf
		var err error
		if len(f.out) == 0 {
			b, err = f.v.ini.get(f.ctx, int(f.size))
		} else if b, err = f.v.ini.pool.Get(int(f.size)); errors.Is(err, mem.ErrNoMemory) {
			return nil, nil
		}
		if !errors.Is(err, mem.ErrNoRoom) || f.size <= mem.PageSize {
			return b, err
		}
		f.size /= 4
	}
}

// add begins to move the bytes from lo to hi. The buffer is the flight's from now on.
func (f *flight) add(lo, hi int64, op blockdev.Op, b *mem.Buf) {
	at, last := f.v.unit.Load().around(lo, int(hi-lo))
	p := &piece{lo: lo, hi: hi, at: at, b: b, done: make(chan struct{})}
	p.req = blockdev.Request{Op: op, Offset: at, Length: last - at, Data: []mem.Span{b.Span().Cut(0, int(last-at))}}
	p.req.Done = func(*blockdev.Request) { close(p.done) }
	if op == blockdev.Write { // no write of a part of these blocks is under way meanwhile
		edges := &f.v.edges
		edges.RLock()
		p.req.Done = func(*blockdev.Request) {
			edges.RUnlock()
			close(p.done)
		}
	}
	f.out = append(f.out, p)
	f.v.Submit(&p.req)
}

// first waits for the oldest.
func (f *flight) first() (*piece, error) {
	p := f.out[0]
	f.out = f.out[1:]
	select {
	case <-p.done:
	case <-f.ctx.Done():
		f.v.Cancel(&p.req)
		<-p.done
		if errors.Is(p.req.Err, ErrCancelled) {
			return p, context.Cause(f.ctx)
		}
	}
	return p, p.req.Err
}

// drain ends what is left.
func (f *flight) drain() {
	for _, p := range f.out {
		f.v.Cancel(&p.req)
		<-p.done
		p.b.Release()
	}
	f.out = nil
}
