package block

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
)

// ReadSpans reads len(data) bytes at off into registered memory; both are whole blocks.
func (v *Volume) ReadSpans(ctx context.Context, off int64, data ...mem.Span) error {
	return v.Do(ctx, &blockdev.Request{Op: blockdev.Read, Offset: off, Length: mem.Total(data), Data: data})
}

// WriteSpans writes registered memory at off, both in whole blocks; fua makes it durable.
func (v *Volume) WriteSpans(ctx context.Context, off int64, fua bool, data ...mem.Span) error {
	return v.Do(ctx, &blockdev.Request{Op: blockdev.Write, Offset: off, Length: mem.Total(data), Data: data, FUA: fua})
}

// Size is the length of the volume in bytes. It may grow.
func (v *Volume) Size() int64 { return v.unit.Load().Size }

// Sync makes every write that has completed durable, as (*os.File).Sync does.
func (v *Volume) Sync() error { return v.Flush(context.Background()) }

// ReadAt implements io.ReaderAt for any offset and length: it gives io.EOF behind the end. It copies, and reads whole blocks:
// ReadSpans does neither.
func (v *Volume) ReadAt(p []byte, off int64) (int, error) {
	return v.ReadAtContext(context.Background(), p, off)
}

// WriteAt implements io.WriterAt for any offset and length; of what would go beyond the end nothing is written. Of a block
// that p covers in part the rest stays as it is, whatever else is written to it at the same time, by other hosts too, if the
// target has COMPARE AND WRITE. If it has not, that holds for the other calls of WriteAt of this Volume only. WriteAt
// copies: WriteSpans does not.
func (v *Volume) WriteAt(p []byte, off int64) (int, error) {
	return v.WriteAtContext(context.Background(), p, off)
}

// ReadAtContext is ReadAt with a context.
func (v *Volume) ReadAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	u := v.unit.Load()
	if off < 0 {
		return 0, fmt.Errorf("%w: a read at %d", blockdev.ErrRange, off)
	}
	if off >= u.Size {
		if len(p) == 0 {
			return 0, nil
		}
		return 0, io.EOF
	}
	var end error
	if left := u.Size - off; int64(len(p)) > left {
		p, end = p[:left], io.EOF
	}
	first, last := u.around(off, len(p))
	done, err := v.pieces(ctx, first, last, func(at int64, b *mem.Buf) error {
		err := v.ReadSpans(ctx, at, b.Span())
		if err == nil { // the part of the blocks that is in p
			from, to := max(at, off), min(at+int64(b.Len()), off+int64(len(p)))
			copy(p[from-off:to-off], b.Bytes()[from-at:])
		}
		return err
	})
	if err != nil {
		return int(min(max(first+done-off, 0), int64(len(p)))), err
	}
	return len(p), end
}

// WriteAtContext is WriteAt with a context.
func (v *Volume) WriteAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	u := v.unit.Load()
	if off < 0 || off > u.Size || int64(len(p)) > u.Size-off {
		return 0, fmt.Errorf("%w: %d bytes at %d of %d", blockdev.ErrRange, len(p), off, u.Size)
	}
	if u.ReadOnly {
		return 0, blockdev.ErrReadOnly
	}
	if len(p) == 0 {
		return 0, nil
	}
	done, block := 0, int64(u.Logical)
	// edge writes up to the end of the block that p[done:] begins in.
	edge := func() error {
		at := off + int64(done)
		n := min(int(block-at%block), len(p)-done)
		err := v.writeEdge(ctx, u, p[done:done+n], at)
		if err == nil {
			done += n
		}
		return err
	}
	if off%block != 0 {
		if err := edge(); err != nil {
			return done, err
		}
	}
	if whole := int64(len(p)-done) / block * block; whole > 0 {
		n, err := v.writeWhole(ctx, p[done:done+int(whole)], off+int64(done))
		if done += int(n); err != nil {
			return done, err
		}
	}
	if done < len(p) {
		if err := edge(); err != nil {
			return done, err
		}
	}
	return done, nil
}

func (v *Volume) writeWhole(ctx context.Context, p []byte, off int64) (int64, error) {
	return v.pieces(ctx, off, off+int64(len(p)), func(at int64, b *mem.Buf) error {
		copy(b.Bytes(), p[at-off:])
		v.edges.RLock() // with the memory at hand: those that wait for the lock hold theirs
		defer v.edges.RUnlock()
		return v.WriteSpans(ctx, at, false, b.Span())
	})
}

// writeEdge writes a part of one block.
func (v *Volume) writeEdge(ctx context.Context, u *Unit, part []byte, off int64) error {
	n := u.Logical
	b, err := v.get(ctx, 2*n)
	if err != nil {
		return err
	}
	defer v.put(b)
	at := off - off%int64(n)
	old, data := b.Span().Cut(0, n), b.Span().Cut(n, n)
	read := func() error {
		if err := v.ReadSpans(ctx, at, old); err != nil {
			return err
		}
		copy(data.Bytes(), old.Bytes())
		copy(data.Bytes()[off-at:], part)
		return nil
	}
	if u.MaxCompare >= int64(n) {
		// tgt names a limit for COMPARE AND WRITE, and refuses the command.
		if err := v.swapBlock(ctx, at, old, data, read); !errors.Is(err, blockdev.ErrUnsupported) {
			return err
		}
	}
	v.edges.Lock()
	defer v.edges.Unlock()
	if err := read(); err != nil {
		return err
	}
	return v.WriteSpans(ctx, at, false, data)
}

// swapBlock writes data over a block as read has made it from old, as soon as the block holds old still.
func (v *Volume) swapBlock(ctx context.Context, at int64, old, data mem.Span, read func() error) error {
	for range edgeTries {
		if err := read(); err != nil {
			return err
		}
		err := v.Do(ctx, &blockdev.Request{Op: blockdev.CompareWrite, Offset: at, Length: int64(old.Len), Compare: []mem.Span{old}, Data: []mem.Span{data}})
		switch {
		case err != nil && ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, blockdev.ErrMiscompare): // another write was faster
		case errors.Is(err, ErrOutcomeUnknown): // to do it once more is the same as once, as with any write
		default:
			return err
		}
	}
	return fmt.Errorf("%w: other writers change the block at %d all the time", ErrTimeout, at)
}

// around is what lies in whole blocks around n bytes at off.
func (u *Unit) around(off int64, n int) (first, last int64) {
	block := int64(u.Logical)
	return off / block * block, (off + int64(n) + block - 1) / block * block
}

// copyAhead is how many pieces of a copying call are under way.
const copyAhead = 4

// pieces runs f with memory for each part of the whole blocks from first to last, several at a time, and returns how many
// bytes from the start are done.
func (v *Volume) pieces(ctx context.Context, first, last int64, f func(at int64, b *mem.Buf) error) (int64, error) {
	if first == last {
		return 0, nil
	}
	n := int((last - first + mem.MaxBuf - 1) / mem.MaxBuf)
	errs := make([]error, n)
	part := func(k int) {
		at, size := first+int64(k)*mem.MaxBuf, int64(mem.MaxBuf)
		for end := min(at+mem.MaxBuf, last); at < end && errs[k] == nil; {
			b, err := v.get(ctx, int(min(size, end-at)))
			if errors.Is(err, mem.ErrNoRoom) && size > mem.PageSize {
				size /= 4 // there are smaller buffers
				continue
			}
			if err != nil {
				errs[k] = err
				return
			}
			errs[k] = f(at, b)
			at += int64(b.Len())
			v.put(b)
		}
	}
	if n == 1 {
		part(0)
	} else {
		next := make(chan int, n)
		for k := range n {
			next <- k
		}
		close(next)
		var wg sync.WaitGroup
		for range min(n, copyAhead) {
			wg.Go(func() {
				for k := range next {
					part(k)
				}
			})
		}
		wg.Wait()
	}
	for k, err := range errs {
		if err != nil {
			return int64(k) * mem.MaxBuf, err
		}
	}
	return last - first, nil
}

// Flush makes every write that has completed durable.
func (v *Volume) Flush(ctx context.Context) error {
	return v.Do(ctx, &blockdev.Request{Op: blockdev.Flush})
}

// Discard tells the target that n bytes at off are not needed. What they read as then is the target's choice.
func (v *Volume) Discard(ctx context.Context, off, n int64) error {
	return v.Do(ctx, &blockdev.Request{Op: blockdev.Discard, Offset: off, Length: n})
}

// WriteZeroes makes n bytes at off read as zeroes; unmap lets the target give their space back.
func (v *Volume) WriteZeroes(ctx context.Context, off, n int64, unmap bool) error {
	return v.Do(ctx, &blockdev.Request{Op: blockdev.WriteZeroes, Offset: off, Length: n, Unmap: unmap})
}

// CompareAndWrite writes data at off if the volume holds compare there, atomically. Otherwise the error is blockdev.ErrMiscompare
// and miss the offset of the first difference within compare, -1 where the target does not tell. It copies.
func (v *Volume) CompareAndWrite(ctx context.Context, off int64, compare, data []byte) (miss int64, err error) {
	if len(compare) != len(data) || len(data) == 0 || len(data) > mem.MaxBuf/2 {
		return 0, ErrBadRequest
	}
	b, err := v.get(ctx, 2*len(data))
	if err != nil {
		return 0, err
	}
	defer v.put(b)
	n := len(data)
	copy(b.Bytes(), compare)
	copy(b.Bytes()[n:], data)
	r := &blockdev.Request{Op: blockdev.CompareWrite, Offset: off, Length: int64(n), Compare: []mem.Span{b.Span().Cut(0, n)}, Data: []mem.Span{b.Span().Cut(n, n)}}
	err = v.Do(ctx, r)
	return r.Miss, err
}

// Status reports what is mapped of n bytes from off, at most as many extents as room has capacity for.
func (v *Volume) Status(ctx context.Context, off, n int64, room []blockdev.Extent) ([]blockdev.Extent, error) {
	r := &blockdev.Request{Op: blockdev.Status, Offset: off, Length: n, Extents: room}
	err := v.Do(ctx, r)
	return r.Extents, err
}
