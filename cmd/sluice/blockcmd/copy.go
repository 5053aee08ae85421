package blockcmd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"sync"
	"time"

	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/mem"
)

// A copy moves pieces with several workers at a time; each worker holds one registered buffer, takes the next piece from
// the source, passes it through the checksum in its turn, and puts it into the sink.
const (
	pieceSize = 1 << 20 // bytes; the longest buffer there is
	workers   = 16      // pieces on their way at a time
)

// source yields pieces in order. A ranged source can be read at any place at any time; another is read in turn.
type source interface {
	// readAt fills p from off and returns how much there was; less than len(p) is the end.
	readAt(ctx context.Context, p mem.Span, off int64) (int, error)
	ranged() bool
	size() int64 // bytes, -1 if not known
}

// sink takes pieces. A ranged sink takes them in any order; another in turn.
type sink interface {
	writeAt(ctx context.Context, p mem.Span, off int64) error
	ranged() bool
	// finish makes durable what was written, n bytes in all.
	finish(ctx context.Context, n int64) error
	// skew makes the first piece shorter: pieces after it begin at a multiple of pieceSize of the sink's own places.
	skew() int64
}

// Result is what a copy did.
type Result struct {
	Bytes   int64         `json:"bytes"`
	SHA256  string        `json:"sha256"`
	Elapsed time.Duration `json:"elapsed_ns"`
}

// Rate is bytes a second.
func (r Result) Rate() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Bytes) / r.Elapsed.Seconds()
}

type copier struct {
	src      source
	dst      sink
	limit    int64 // bytes at most
	progress func(n int)

	mu   sync.Mutex // the next piece
	next int64
	done bool

	turn struct { // what happens in the order of the pieces
		sync.Mutex
		sync.Cond
		at   int64
		fail error
	}
	sum   hash.Hash
	total int64
}

// copyAll copies from src to dst until the source or limit ends.
func copyAll(ctx context.Context, pool *mem.Pool, src source, dst sink, limit int64, progress func(int)) (Result, error) {
	start := time.Now()
	c := &copier{src: src, dst: dst, limit: limit, progress: progress, sum: sha256.New()}
	c.turn.L = &c.turn.Mutex
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for range workers {
		buf, err := pool.Get(pieceSize)
		if err != nil {
			cancel(err)
			c.stop(err)
			break
		}
		wg.Go(func() {
			defer buf.Release()
			if err := c.work(ctx, buf.Span()); err != nil {
				c.stop(err)
				cancel(err)
			}
		})
	}
	wg.Wait()
	if c.turn.fail != nil {
		return Result{}, c.turn.fail
	}
	if err := dst.finish(ctx, c.total); err != nil {
		return Result{}, err
	}
	return Result{Bytes: c.total, SHA256: hex.EncodeToString(c.sum.Sum(nil)), Elapsed: time.Since(start)}, nil
}

// stop records the first failure and wakes the goroutines that wait for a turn that will not come.
func (c *copier) stop(err error) {
	c.turn.Lock()
	defer c.turn.Unlock()
	if c.turn.fail == nil {
		c.turn.fail = err
	}
	c.turn.Broadcast()
}

var errStopped = errors.New("stopped")

func (c *copier) work(ctx context.Context, buf mem.Span) error {
	for {
		p, off, err := c.take(ctx, buf)
		if err != nil || p.Len == 0 {
			return err
		}
		if err := c.inTurn(off, func() error {
			c.sum.Write(p.Bytes())
			c.total += int64(p.Len)
			if !c.dst.ranged() {
				return c.dst.writeAt(ctx, p, off)
			}
			return nil
		}); err != nil {
			if errors.Is(err, errStopped) {
				return nil
			}
			return err
		}
		if c.dst.ranged() {
			if err := c.dst.writeAt(ctx, p, off); err != nil {
				return err
			}
		}
		c.progress(p.Len)
	}
}

// take fills the buffer with the next piece; an empty one is the end.
func (c *copier) take(ctx context.Context, buf mem.Span) (mem.Span, int64, error) {
	c.mu.Lock()
	off := c.next
	n := min(int64(buf.Len), c.limit-off)
	if off == 0 {
		n = min(n, int64(buf.Len)-c.dst.skew())
	}
	if size := c.src.size(); size >= 0 {
		n = min(n, size-off)
	}
	if c.done || n <= 0 {
		c.mu.Unlock()
		return mem.Span{}, 0, nil
	}
	p := buf.Cut(0, int(n))
	if c.src.ranged() {
		c.next += n
		c.mu.Unlock()
		got, err := c.src.readAt(ctx, p, off)
		if err == nil && got < p.Len {
			err = fmt.Errorf("the source ended at %d, before its size", off+int64(got))
		}
		return p, off, err
	}
	defer c.mu.Unlock()
	got, err := c.src.readAt(ctx, p, off)
	if got < p.Len {
		c.done = true
	}
	c.next += int64(got)
	return p.Cut(0, got), off, err
}

// inTurn runs f when everything before off has had its turn.
func (c *copier) inTurn(off int64, f func() error) error {
	c.turn.Lock()
	defer c.turn.Unlock()
	for c.turn.at != off && c.turn.fail == nil {
		c.turn.Wait()
	}
	if c.turn.fail != nil {
		return errStopped
	}
	before := c.total
	err := f()
	c.turn.at += c.total - before
	c.turn.Broadcast()
	return err
}

// stream is a source or sink without places: standard input and output, a pipe.
type stream struct {
	r io.Reader
	w io.Writer
}

func (s stream) ranged() bool { return false }
func (s stream) skew() int64  { return 0 }
func (s stream) size() int64  { return -1 }

func (s stream) readAt(_ context.Context, p mem.Span, _ int64) (int, error) {
	n, err := io.ReadFull(s.r, p.Bytes())
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return n, err
}

func (s stream) writeAt(_ context.Context, p mem.Span, _ int64) error {
	_, err := s.w.Write(p.Bytes())
	return err
}

func (s stream) finish(context.Context, int64) error { return nil }

// Put copies a file to a volume.
func (c *Connection) Put(ctx context.Context, path, url string) (res Result, err error) {
	err = c.WithVolume(ctx, url, func(v *block.Volume) error {
		src, cl, err := openSource(path, nil)
		if err != nil {
			return err
		}
		res, err = copyAll(ctx, v.Memory(), src, &volume{v: v}, math.MaxInt64, func(int) {})
		return errors.Join(err, cl.Close())
	})
	return res, err
}

// Get copies the first n bytes of a volume to a file.
func (c *Connection) Get(ctx context.Context, url, path string, n int64) (res Result, err error) {
	err = c.WithVolume(ctx, url, func(v *block.Volume) error {
		dst, cl, err := openSink(path, nil)
		if err != nil {
			return err
		}
		res, err = copyAll(ctx, v.Memory(), &volume{v: v, n: n}, dst, n, func(int) {})
		return errors.Join(err, cl.Close())
	})
	return res, err
}
