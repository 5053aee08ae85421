package block

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/sluice-storage/sluice/mem"
)

// Do submits a request and waits for it. When the context ends first, the commands are aborted and their end is waited
// for, so that the memory is the caller's again on return; the error is then the context's. Done is not called.
func (v *Volume) Do(ctx context.Context, r *Request) error {
	ch, _ := v.ini.waiters.Get().(chan struct{})
	r.begin()
	r.waiter = ch
	v.start(r)
	select {
	case <-ch:
	case <-ctx.Done():
		v.Cancel(r)
		<-ch
		switch {
		case errors.Is(r.Err, ErrOutcomeUnknown):
			r.Err = fmt.Errorf("%w: %w", context.Cause(ctx), r.Err)
		case errors.Is(r.Err, ErrCancelled):
			r.Err = context.Cause(ctx)
		}
	}
	v.ini.waiters.Put(ch)
	return r.Err
}

// ReadSpans reads len(data) bytes at off into registered memory.
func (v *Volume) ReadSpans(ctx context.Context, off int64, data ...mem.Span) error {
	return v.Do(ctx, &Request{Op: Read, Offset: off, Length: mem.Total(data), Data: data})
}

// WriteSpans writes registered memory at off; fua makes it durable.
func (v *Volume) WriteSpans(ctx context.Context, off int64, fua bool, data ...mem.Span) error {
	return v.Do(ctx, &Request{Op: Write, Offset: off, Length: mem.Total(data), Data: data, FUA: fua})
}

// ReadAt fills p from off; both are whole blocks. It copies: ReadSpans does not.
func (v *Volume) ReadAt(p []byte, off int64) (int, error) {
	return v.ReadAtContext(context.Background(), p, off)
}

// WriteAt writes p at off; both are whole blocks. It copies: WriteSpans does not.
func (v *Volume) WriteAt(p []byte, off int64) (int, error) {
	return v.WriteAtContext(context.Background(), p, off)
}

// ReadAtContext is ReadAt with a context.
func (v *Volume) ReadAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	return v.pieces(ctx, p, off, func(r *Request, b *mem.Buf, part []byte) error {
		r.Op = Read
		err := v.Do(ctx, r)
		if err == nil {
			copy(part, b.Bytes())
		}
		return err
	})
}

// WriteAtContext is WriteAt with a context.
func (v *Volume) WriteAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	return v.pieces(ctx, p, off, func(r *Request, b *mem.Buf, part []byte) error {
		r.Op = Write
		copy(b.Bytes(), part)
		return v.Do(ctx, r)
	})
}

// copyAhead is how many pieces of a copying call are under way.
const copyAhead = 4

// pieces runs f on parts of p, several at a time, and returns how many bytes from the start are done.
func (v *Volume) pieces(ctx context.Context, p []byte, off int64, f func(r *Request, b *mem.Buf, part []byte) error) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n := (len(p) + mem.MaxBuf - 1) / mem.MaxBuf
	errs := make([]error, n)
	part := func(k int) {
		end, size := min((k+1)*mem.MaxBuf, len(p)), mem.MaxBuf
		for at := k * mem.MaxBuf; at < end && errs[k] == nil; {
			q := p[at:min(at+size, end)]
			b, err := v.ini.get(ctx, len(q))
			if errors.Is(err, mem.ErrNoRoom) && size > mem.PageSize {
				size /= 4 // there are smaller buffers
				continue
			}
			if err != nil {
				errs[k] = err
				return
			}
			errs[k] = f(&Request{Offset: off + int64(at), Length: int64(len(q)), Data: []mem.Span{b.Span()}}, b, q)
			b.Release()
			at += len(q)
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
			return k * mem.MaxBuf, err
		}
	}
	return len(p), nil
}

// Flush makes every write that has completed durable.
func (v *Volume) Flush(ctx context.Context) error { return v.Do(ctx, &Request{Op: Flush}) }

// Discard tells the target that n bytes at off are not needed. What they read as then is the target's choice.
func (v *Volume) Discard(ctx context.Context, off, n int64) error {
	return v.Do(ctx, &Request{Op: Discard, Offset: off, Length: n})
}

// WriteZeroes makes n bytes at off read as zeroes; unmap lets the target give their space back.
func (v *Volume) WriteZeroes(ctx context.Context, off, n int64, unmap bool) error {
	return v.Do(ctx, &Request{Op: WriteZeroes, Offset: off, Length: n, Unmap: unmap})
}

// CompareAndWrite writes data at off if the volume holds compare there, atomically. Otherwise the error is ErrMiscompare
// and miss the offset of the first difference within compare, -1 where the target does not tell. It copies.
func (v *Volume) CompareAndWrite(ctx context.Context, off int64, compare, data []byte) (miss int64, err error) {
	if len(compare) != len(data) || len(data) == 0 || len(data) > mem.MaxBuf/2 {
		return 0, ErrBadRequest
	}
	b, err := v.ini.get(ctx, 2*len(data))
	if err != nil {
		return 0, err
	}
	defer b.Release()
	n := len(data)
	copy(b.Bytes(), compare)
	copy(b.Bytes()[n:], data)
	r := &Request{Op: CompareWrite, Offset: off, Length: int64(n), Compare: []mem.Span{b.Span().Cut(0, n)}, Data: []mem.Span{b.Span().Cut(n, n)}}
	err = v.Do(ctx, r)
	return r.Miss, err
}

// Status reports what is mapped of n bytes from off, at most as many extents as room has capacity for.
func (v *Volume) Status(ctx context.Context, off, n int64, room []Extent) ([]Extent, error) {
	r := &Request{Op: Status, Offset: off, Length: n, Extents: room}
	err := v.Do(ctx, r)
	return r.Extents, err
}

// Raw runs a command as it is. data is filled when in is set and sent otherwise; the number of bytes that moved is
// returned. CHECK CONDITION is a *SenseError. It is not sent again after a lost connection.
func (v *Volume) Raw(ctx context.Context, cdb, data []byte, in bool) (int, error) {
	r := &Request{Op: Raw, CDB: cdb, In: in}
	if len(data) > mem.MaxBuf {
		return 0, fmt.Errorf("%w: a raw command of %d bytes, where %d are the limit", ErrBadRequest, len(data), mem.MaxBuf)
	}
	if len(data) > 0 {
		b, err := v.ini.get(ctx, len(data))
		if err != nil {
			return 0, err
		}
		defer b.Release()
		if !in {
			copy(b.Bytes(), data)
		}
		r.Data = []mem.Span{b.Span()}
		err = v.Do(ctx, r)
		if in {
			copy(data, b.Bytes())
		}
		return int(r.Transferred), err
	}
	err := v.Do(ctx, r)
	return int(r.Transferred), err
}

// Inquiry reads standard INQUIRY data with page -1, otherwise a vital product data page.
func (v *Volume) Inquiry(ctx context.Context, page int) ([]byte, error) {
	cdb := []byte{opInquiry, 0, 0, 0, 255, 0}
	if page >= 0 {
		cdb[1], cdb[2] = 1, byte(page)
	}
	b := make([]byte, 255)
	n, err := v.Raw(ctx, cdb, b, true)
	return b[:n], err
}

// LUNs lists the logical units of the target by REPORT LUNS.
func (v *Volume) LUNs(ctx context.Context) ([]uint16, error) {
	cdb := make([]byte, 12)
	cdb[0] = opReportLUNs
	cdb[8] = 0x40 // 16 KiB
	b := make([]byte, 16<<10)
	n, err := v.Raw(ctx, cdb, b, true)
	if err != nil {
		return nil, err
	}
	var out []uint16
	for d := b[min(8, n):n]; len(d) >= 8; d = d[8:] {
		var x uint64
		for _, c := range d[:8] {
			x = x<<8 | uint64(c)
		}
		if lun, ok := decodeLUN(x); ok {
			out = append(out, lun)
		}
	}
	return out, nil
}
