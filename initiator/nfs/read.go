package nfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-storage/sluice/initiator/rpcclient"
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/mem"
)

// ReadAt reads like io.ReaderAt. Large reads go out in pieces, side by side.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	return f.readAt(context.Background(), f.v, p, off)
}

// ReadAtContext is ReadAt, which the context ends too.
func (f *File) ReadAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	return f.readAt(ctx, f.v, p, off)
}

func (f *File) readAt(ctx context.Context, v *FS, p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, pathError("read", f.name, fs.ErrInvalid)
	}
	n, err := f.readThere(ctx, v, p, off)
	if err != nil && errors.Is(err, io.EOF) && f.keptEnd() > off+int64(n) {
		// What was written here lies behind this end. attrs brings it back if the server forgot it.
		if _, err := f.attrs(ctx, v); err != nil {
			return n, f.readError(err)
		}
		var more int
		more, err = f.readThere(ctx, v, p[n:], off+int64(n))
		n += more
	}
	return n, err
}

// readThere reads what the server has.
func (f *File) readThere(ctx context.Context, v *FS, p []byte, off int64) (int, error) {
	if len(p) <= f.v.rsize {
		n, err := f.readFull(ctx, v, p, off)
		return n, f.readError(err)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	pieces := (len(p) + f.v.rsize - 1) / f.v.rsize
	got := make([]int, pieces)
	for i := range pieces {
		from := i * f.v.rsize
		b := p[from:min(len(p), from+f.v.rsize)]
		g.Go(func() error {
			n, err := f.readFull(ctx, v, b, off+int64(from))
			got[i] = n
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		})
	}
	err := g.Wait()
	n := 0
	for i, k := range got {
		n += k
		if k < min(f.v.rsize, len(p)-i*f.v.rsize) {
			if err == nil {
				err = io.EOF
			}
			break
		}
	}
	return n, f.readError(err)
}

func (f *File) readError(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	return pathError("read", f.name, err)
}

// readFull reads until p is full or the file ends: a server may return less than was asked for.
func (f *File) readFull(ctx context.Context, v *FS, p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		n, eof, err := f.readOnce(ctx, v, rpcclient.Call{Sink: p[done:min(len(p), done+f.v.rsize)]}, off+int64(done))
		if err != nil {
			return done, err
		}
		done += n
		if eof && done < len(p) {
			return done, io.EOF
		}
		if n == 0 && !eof {
			return done, io.ErrNoProgress
		}
	}
	return done, nil
}

// ReadSpan reads into memory that came from FS.Memory, at most what one READ takes (FS.MaxRead): over RDMA the server
// places it there, and nothing is copied. It returns less than was asked for where the server does, and io.EOF with what
// is before the end of the file. The memory is the server's to write until ReadSpan returns, also when ctx ends it.
func (f *File) ReadSpan(ctx context.Context, s mem.Span, off int64) (int, error) {
	if off < 0 || s.Len > f.v.rsize {
		return 0, pathError("read", f.name, fs.ErrInvalid)
	}
	n, eof, err := f.readOnce(ctx, f.v, rpcclient.Call{SinkSpan: s}, off)
	if err == nil && eof && n < s.Len && f.keptEnd() > off+int64(n) {
		if _, err = f.attrs(ctx, f.v); err == nil { // as in readAt
			n, eof, err = f.readOnce(ctx, f.v, rpcclient.Call{SinkSpan: s}, off)
		}
	}
	if err == nil && eof && n < s.Len {
		err = io.EOF
	}
	return n, f.readError(err)
}

// MaxRead is how much one READ takes, bytes.
func (v *FS) MaxRead() int { return v.rsize }

func (f *File) readOnce(ctx context.Context, v *FS, c rpcclient.Call, off int64) (int, bool, error) {
	want := len(c.Sink) + c.SinkSpan.Len
	a := nfs3.RangeArgs{FH: f.fh, Offset: uint64(off), Count: uint32(want)}
	c.Prog, c.Vers, c.Proc, c.Cred, c.Args = nfs3.Prog, nfs3.Vers, uint32(nfs3.ProcRead), v.cred, a.Append(nil)
	if err := f.v.do(ctx, &c); err != nil {
		return 0, false, err
	}
	var r nfs3.ReadRes
	res := xdr.NewReader(c.Results)
	r.Parse(&res)
	if err := res.Err(); err != nil {
		return 0, false, err
	}
	if r.Status != nfs3.OK {
		return 0, false, status(r.Status)
	}
	if r.Len != r.Count || int64(r.Len) > int64(want) {
		return 0, false, fmt.Errorf("nfs: READ of %d bytes was answered with %d, said to be %d", want, r.Len, r.Count)
	}
	return int(r.Len), r.EOF, c.Result(res.Rest(), int(r.Len))
}
