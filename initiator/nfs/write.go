package nfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-storage/sluice/initiator/rpcclient"
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/xdr"
)

// extent is data that the server has and may forget. It is kept to be sent again.
type extent struct {
	v    *FS // whose identity wrote it
	off  int64
	data []byte
	verf nfs3.Verf
}

// WriteAt writes like io.WriterAt. The data is durable after Sync.
func (f *File) WriteAt(p []byte, off int64) (int, error) {
	return f.WriteAtContext(context.Background(), p, off)
}

// WriteAtContext is WriteAt, which the context ends too.
func (f *File) WriteAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	if err := f.writeAt(ctx, f.v, p, off); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (f *File) writeAt(ctx context.Context, v *FS, p []byte, off int64) error {
	if off < 0 {
		return pathError("write", f.name, fs.ErrInvalid)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for from := 0; from < len(p); from += v.wsize {
		b := p[from:min(len(p), from+v.wsize)]
		g.Go(func() error {
			_, err := f.write(gctx, v, b, off+int64(from))
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return pathError("write", f.name, err)
	}
	return f.limitDirty(ctx)
}

// limitDirty syncs when more is kept than may be.
func (f *File) limitDirty(ctx context.Context) error {
	f.mu.Lock()
	full := f.size > maxDirty
	f.mu.Unlock()
	if full {
		return f.sync(ctx, f.v)
	}
	return nil
}

// write writes unstably and keeps what the server may forget.
func (f *File) write(ctx context.Context, v *FS, b []byte, off int64) (nfs3.Wcc, error) {
	if !f.writing.TryRLock() {
		if err := lock(ctx, f.writing.RLocker()); err != nil {
			return nfs3.Wcc{}, err
		}
	}
	defer f.writing.RUnlock()
	return f.writeKept(ctx, v, b, off)
}

func (f *File) writeKept(ctx context.Context, v *FS, b []byte, off int64) (nfs3.Wcc, error) {
	whole := len(b)
	var r nfs3.WriteRes
	for len(b) > 0 {
		var err error
		if r, err = f.writeOnce(ctx, v, b, off, nfs3.Unstable); err != nil {
			return nfs3.Wcc{}, err
		}
		n := int(r.Count)
		if r.Stable != nfs3.FileSync {
			f.mu.Lock()
			f.dirty = append(f.dirty, extent{v: v, off: off, data: append([]byte(nil), b[:n]...), verf: r.Verf})
			f.size += n
			f.end = max(f.end, off+int64(n))
			f.mu.Unlock()
		}
		b, off = b[n:], off+int64(n)
	}
	if int(r.Count) != whole {
		r.Wcc.BeforeSet = false // what was before is not what was before all of it
	}
	return r.Wcc, nil
}

func (f *File) writeOnce(ctx context.Context, v *FS, b []byte, off int64, how nfs3.Stable) (nfs3.WriteRes, error) {
	n := uint32(len(b))
	a := nfs3.WriteArgs{FH: f.fh, Offset: uint64(off), Count: n, Stable: how, Len: n}
	c := rpcclient.Call{Prog: nfs3.Prog, Vers: nfs3.Vers, Proc: uint32(nfs3.ProcWrite), Cred: v.cred, Args: a.Append(nil), Data: b}
	var r nfs3.WriteRes
	if err := v.do(ctx, &c); err != nil {
		return r, err
	}
	res := xdr.NewReader(c.Results)
	r.Parse(&res)
	if err := res.Err(); err != nil {
		return r, err
	}
	if r.Status != nfs3.OK {
		return r, status(r.Status)
	}
	if r.Count == 0 || r.Count > n {
		return r, fmt.Errorf("nfs: WRITE of %d bytes was answered with %d", n, r.Count)
	}
	return r, nil
}

// Sync returns when all that was written before is durable. What the server has forgotten meanwhile, as its verifier
// shows, is sent again (RFC 1813 section 3.3.21).
func (f *File) Sync() error { return f.sync(context.Background(), f.v) }

// SyncContext is Sync, which the context ends too: what was not made durable is still kept then, for another Sync.
func (f *File) SyncContext(ctx context.Context) error { return f.sync(ctx, f.v) }

func (f *File) sync(ctx context.Context, v *FS) error {
	if err := lock(ctx, &f.syncMu); err != nil {
		return pathError("sync", f.name, err)
	}
	defer f.syncMu.Unlock()
	for try := 0; ; try++ {
		l := f.takeDirty()
		if len(l) == 0 {
			f.durable() // also what was sent again, if the server wrote it durably
			return nil
		}
		verf, err := f.commit(ctx, v)
		if err != nil {
			f.keep(l)
			return pathError("sync", f.name, err)
		}
		first := 0
		for first < len(l) && l[first].verf == verf {
			first++
		}
		if first == len(l) {
			f.durable()
			return nil
		}
		if try == maxResend {
			f.keep(l[first:])
			return pathError("sync", f.name, errors.New("nfs: the server forgets what is written to it again and again"))
		}
		if err := f.resend(ctx, l[first:]); err != nil {
			return pathError("sync", f.name, err)
		}
	}
}

// takeDirty takes what is not committed.
func (f *File) takeDirty() []extent {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.dirty
	f.taken = max(f.taken, f.end)
	f.dirty, f.size, f.end = nil, 0, 0
	return l
}

// durable says that all that was taken is.
func (f *File) durable() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.taken = 0
}

// keptEnd is where the last of what the server may forget ends, 0 if there is nothing.
func (f *File) keptEnd() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return max(f.end, f.taken)
}

// attrs asks for the file's attributes. A file that ends before what the server took has lost data in a restart of the
// server, or was cut by another client: after a Sync, which sends the lost data again, the server knows the true size. Data
// appended at the lesser one would be overwritten by that Sync.
func (f *File) attrs(ctx context.Context, v *FS) (Attr, error) {
	kept := f.keptEnd() // before the call: what is written meanwhile may be missing in the answer
	a, err := v.getattr(ctx, f.fh)
	if err != nil || a.Size >= uint64(kept) {
		return a, err
	}
	if err := f.sync(ctx, v); err != nil {
		return a, err
	}
	return v.getattr(ctx, f.fh)
}

// resend writes again what the server forgot and all that was written after it, in order: the one may overlap the other.
func (f *File) resend(ctx context.Context, l []extent) error {
	if err := lock(ctx, &f.writing); err != nil {
		f.keep(l)
		return err
	}
	defer f.writing.Unlock()
	l = append(l, f.takeDirty()...)
	for i, e := range l {
		if _, err := f.writeKept(ctx, e.v, e.data, e.off); err != nil {
			f.keepAfter(l[i:])
			return err
		}
	}
	return nil
}

// keepAfter puts extents back behind those that were just sent again.
func (f *File) keepAfter(l []extent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dirty = append(f.dirty, l...)
	f.end, f.taken = max(f.end, f.taken), 0
	for _, e := range l {
		f.size += len(e.data)
	}
}

// keep puts extents back before those that were written since.
func (f *File) keep(l []extent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dirty = append(l, f.dirty...)
	f.end, f.taken = max(f.end, f.taken), 0
	for _, e := range l {
		f.size += len(e.data)
	}
}

func (f *File) commit(ctx context.Context, v *FS) (nfs3.Verf, error) {
	a := nfs3.RangeArgs{FH: f.fh}
	r := nfs3.WriteRes{Commit: true}
	if err := v.call(ctx, nfs3.ProcCommit, a.Append(nil), 0, r.Parse); err != nil {
		return r.Verf, err
	}
	if r.Status != nfs3.OK {
		return r.Verf, status(r.Status)
	}
	return r.Verf, nil
}
