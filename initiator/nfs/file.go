package nfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-storage/sluice/initiator/rpcclient"
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/mem"
)

// File is an open file. ReadAt, WriteAt, Sync and Truncate may be called by any goroutine, Read, Write and Seek by one
// at a time. It implements fs.File, io.ReaderAt, io.WriterAt, io.Seeker.
type File struct {
	v    *FS
	ctx  context.Context
	name string
	fh   []byte
	pos  int64

	dir  []fs.DirEntry // what ReadDir has not returned yet
	read bool          // the directory was read

	mu     sync.Mutex
	dirty  []extent // written and not committed, oldest first
	size   int      // bytes of dirty
	syncMu sync.Mutex
	// writing is held by writes for reading, and for writing while what the server forgot is sent again: a write in
	// between would be undone by the older data.
	writing sync.RWMutex
}

// extent is data that the server has and may forget. It is kept to be sent again.
type extent struct {
	v    *FS // whose identity wrote it
	off  int64
	data []byte
	verf nfs3.Verf
}

// Open opens a file for reading and writing; the server checks rights at each call.
func (v *FS) Open(name string) (fs.File, error) {
	if !fs.ValidPath(name) {
		return nil, pathError("open", name, fs.ErrInvalid)
	}
	return v.OpenFile(context.Background(), name, os.O_RDWR, 0)
}

// OpenFile opens a file. Of the flags, O_CREATE, O_EXCL and O_TRUNC count. The context bounds all calls of the File.
func (v *FS) OpenFile(ctx context.Context, name string, flag int, perm fs.FileMode) (*File, error) {
	o, err := v.walk(ctx, name, true)
	switch {
	case err == nil && flag&os.O_CREATE != 0 && flag&os.O_EXCL != 0:
		err = fs.ErrExist
	case err == nil && flag&os.O_TRUNC != 0:
		err = v.setattrOf(ctx, o.fh, nfs3.SetAttr{SizeSet: true})
	case errors.Is(err, nfs3.ErrNoent) && flag&os.O_CREATE != 0:
		o, err = v.create(ctx, name, flag, perm)
	}
	if err != nil {
		return nil, pathError("open", name, err)
	}
	return &File{v: v, ctx: ctx, name: name, fh: o.fh}, nil
}

// Create makes a file, or empties the one there is.
func (v *FS) Create(ctx context.Context, name string, perm fs.FileMode) (*File, error) {
	return v.OpenFile(ctx, name, os.O_CREATE|os.O_TRUNC, perm)
}

func (v *FS) create(ctx context.Context, name string, flag int, perm fs.FileMode) (object, error) {
	where, err := v.dirOf(ctx, name)
	if err != nil {
		return object{}, err
	}
	a := nfs3.CreateArgs{Where: where, Attr: nfs3.SetAttr{ModeSet: true, Mode: wireMode(perm)}}
	if flag&os.O_EXCL != 0 {
		a.How = nfs3.Guarded
	}
	return v.made(ctx, nfs3.ProcCreate, a.Append(nil), &where)
}

// ReadFile reads a whole file.
func (v *FS) ReadFile(name string) ([]byte, error) {
	if !fs.ValidPath(name) {
		return nil, pathError("read", name, fs.ErrInvalid)
	}
	f, err := v.OpenFile(context.Background(), name, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	i, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if i.IsDir() {
		return nil, pathError("read", name, nfs3.ErrIsdir)
	}
	b := make([]byte, i.Size())
	n, err := f.ReadAt(b, 0)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return b[:n], err
}

// Stat asks the server.
func (f *File) Stat() (fs.FileInfo, error) {
	a, err := f.v.getattr(f.ctx, f.fh)
	if err != nil {
		return nil, pathError("stat", f.name, err)
	}
	return &Info{name: path.Base(f.name), attr: a}, nil
}

// ReadAt reads like io.ReaderAt. Large reads go out in pieces, side by side.
func (f *File) ReadAt(p []byte, off int64) (int, error) { return f.readAt(f.ctx, f.v, p, off) }

func (f *File) readAt(ctx context.Context, v *FS, p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, pathError("read", f.name, fs.ErrInvalid)
	}
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
	r.Parse(&c.Res)
	if err := c.Res.Err(); err != nil {
		return 0, false, err
	}
	if r.Status != nfs3.OK {
		return 0, false, r.Status
	}
	if r.Len != r.Count || int64(r.Len) > int64(want) {
		return 0, false, fmt.Errorf("nfs: READ of %d bytes was answered with %d, said to be %d", want, r.Len, r.Count)
	}
	return int(r.Len), r.EOF, c.Result(int(r.Len))
}

// WriteAt writes like io.WriterAt. The data is durable after Sync.
func (f *File) WriteAt(p []byte, off int64) (int, error) {
	if err := f.writeAt(f.ctx, f.v, p, off); err != nil {
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
	f.writing.RLock()
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
	r.Parse(&c.Res)
	if err := c.Res.Err(); err != nil {
		return r, err
	}
	if r.Status != nfs3.OK {
		return r, r.Status
	}
	if r.Count == 0 || r.Count > n {
		return r, fmt.Errorf("nfs: WRITE of %d bytes was answered with %d", n, r.Count)
	}
	return r, nil
}

// Sync returns when all that was written before is durable. What the server has forgotten meanwhile, as its verifier
// shows, is sent again (RFC 1813 section 3.3.21).
func (f *File) Sync() error { return f.sync(f.ctx, f.v) }

func (f *File) sync(ctx context.Context, v *FS) error {
	f.syncMu.Lock()
	defer f.syncMu.Unlock()
	for try := 0; ; try++ {
		l := f.takeDirty()
		if len(l) == 0 {
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
	f.dirty, f.size = nil, 0
	return l
}

// resend writes again what the server forgot and all that was written after it, in order: the one may overlap the other.
func (f *File) resend(ctx context.Context, l []extent) error {
	f.writing.Lock()
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
	for _, e := range l {
		f.size += len(e.data)
	}
}

// keep puts extents back before those that were written since.
func (f *File) keep(l []extent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dirty = append(l, f.dirty...)
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
		return r.Verf, r.Status
	}
	return r.Verf, nil
}

// Truncate sets the size. Unsynced data is made durable first: it must not come back beyond the new end.
func (f *File) Truncate(size int64) error {
	if err := f.Sync(); err != nil {
		return err
	}
	return pathError("truncate", f.name, f.v.setattrOf(f.ctx, f.fh, nfs3.SetAttr{SizeSet: true, Size: uint64(size)}))
}

// Read reads at the file's position.
func (f *File) Read(p []byte) (int, error) {
	n, err := f.ReadAt(p, f.pos)
	f.pos += int64(n)
	if n > 0 && errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// Write writes at the file's position.
func (f *File) Write(p []byte) (int, error) {
	n, err := f.WriteAt(p, f.pos)
	f.pos += int64(n)
	return n, err
}

// Seek sets the position.
func (f *File) Seek(off int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		off += f.pos
	case io.SeekEnd:
		i, err := f.Stat()
		if err != nil {
			return 0, err
		}
		off += i.Size()
	}
	if off < 0 {
		return 0, pathError("seek", f.name, fs.ErrInvalid)
	}
	f.pos = off
	return off, nil
}

// ReadDir lists the directory that the file is, like fs.ReadDirFile.
func (f *File) ReadDir(n int) ([]fs.DirEntry, error) {
	if !f.read {
		l, err := f.v.ReadDir(f.name)
		if err != nil {
			return nil, err
		}
		f.dir, f.read = l, true
	}
	if n <= 0 {
		l := f.dir
		f.dir = nil
		return l, nil
	}
	if len(f.dir) == 0 {
		return nil, io.EOF
	}
	n = min(n, len(f.dir))
	l := f.dir[:n]
	f.dir = f.dir[n:]
	return l, nil
}

// Close syncs. NFS version 3 has no open files, so there is nothing else to close.
func (f *File) Close() error { return f.Sync() }
