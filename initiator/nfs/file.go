package nfs

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"sync"
)

// File is an open file. ReadAt, WriteAt, Sync, Stat and Truncate may be called by any goroutine; what moves the file's position
// (Read, Write, Seek, ReadFrom, WriteTo) and ReadDir by one at a time. A method without a context waits for a server that is away
// until it is back or the FS is closed.
type File struct {
	v      *FS
	name   string
	fh     []byte
	pos    int64
	append bool // Write finds the end of the file first

	dir  []fs.DirEntry // what ReadDir has not returned yet
	read bool          // the directory was read

	mu     sync.Mutex
	dirty  []extent // written and not committed, oldest first
	size   int      // bytes of dirty
	end    int64    // where the last of dirty ends in the file
	taken  int64    // where that ends which a Sync has taken from dirty and does not know to be durable yet
	syncMu sync.Mutex
	// writing is held by writes for reading, and for writing while what the server forgot is sent again: a write in
	// between would be undone by the older data.
	writing sync.RWMutex
}

// Open opens a file for reading and writing; the server checks rights at each call.
func (v *FS) Open(name string) (fs.File, error) {
	if !fs.ValidPath(name) {
		return nil, pathError("open", name, fs.ErrInvalid)
	}
	f, err := v.OpenFile(context.Background(), name, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// OpenFile opens a file. Of the flags, O_CREATE, O_EXCL, O_TRUNC and O_APPEND count: what may be read and written, the server
// checks at each call. O_APPEND lets Write find the end of the file, and is not atomic among clients: NFS version 3 has no
// append. The context is that of opening alone.
func (v *FS) OpenFile(ctx context.Context, name string, flag int, perm fs.FileMode) (*File, error) {
	o, err := v.walk(ctx, name, true)
	switch {
	case err == nil && flag&os.O_CREATE != 0 && flag&os.O_EXCL != 0:
		err = fs.ErrExist
	case err == nil && flag&os.O_TRUNC != 0:
		err = v.setattrOf(ctx, o.fh, SetAttr{SizeSet: true})
	case errors.Is(err, ErrNoEntry) && flag&os.O_CREATE != 0:
		o, err = v.create(ctx, name, flag, perm)
	}
	if err != nil {
		return nil, pathError("open", name, err)
	}
	return &File{v: v, name: name, fh: o.fh, append: flag&os.O_APPEND != 0}, nil
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
	attr := SetAttr{ModeSet: true, Mode: wireMode(perm)}
	if flag&os.O_EXCL == 0 {
		attr.SizeSet = flag&os.O_TRUNC != 0 // another may have made it since it was looked for
	}
	o, err := v.Self().Create(ctx, where.Dir, string(where.Name), attr, flag&os.O_EXCL != 0)
	return object{fh: o.FH, attr: o.Attr}, err
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
		return nil, pathError("read", name, ErrIsDir)
	}
	return f.readAll(uint64(i.Size()))
}

// readAll reads size bytes, or those that there are. The size is the server's word: memory is taken for no more than twice
// what the server did send.
func (f *File) readAll(size uint64) ([]byte, error) {
	b := make([]byte, min(size, readFirst))
	for done := 0; ; {
		n, err := f.ReadAt(b[done:], int64(done))
		done += n
		switch {
		case errors.Is(err, io.EOF):
			return b[:done], nil
		case err != nil, uint64(done) == size:
			return b[:done], err
		}
		b = append(b, make([]byte, min(size-uint64(done), uint64(done)))...)
	}
}

// Name is the name that the file was opened by.
func (f *File) Name() string { return f.name }

// Stat asks the server. Where the server's file ends before what this File wrote, Stat syncs first: see Sync.
func (f *File) Stat() (fs.FileInfo, error) {
	i, err := f.StatContext(context.Background())
	if err != nil {
		return nil, err
	}
	return i, nil
}

// StatContext is Stat, which the context ends too.
func (f *File) StatContext(ctx context.Context) (*Info, error) {
	a, err := f.attrs(ctx, f.v)
	if err != nil {
		return nil, pathError("stat", f.name, err)
	}
	return &Info{name: path.Base(f.name), attr: a, fh: f.fh}, nil
}

// Truncate sets the size. Unsynced data is made durable first: it must not come back beyond the new end.
func (f *File) Truncate(size int64) error {
	return f.TruncateContext(context.Background(), size)
}

// TruncateContext is Truncate, which the context ends too.
func (f *File) TruncateContext(ctx context.Context, size int64) error {
	if size < 0 {
		return pathError("truncate", f.name, fs.ErrInvalid)
	}
	if err := f.sync(ctx, f.v); err != nil {
		return err
	}
	return pathError("truncate", f.name, f.v.setattrOf(ctx, f.fh, SetAttr{SizeSet: true, Size: uint64(size)}))
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
	if err := f.toEnd(); err != nil {
		return 0, err
	}
	n, err := f.WriteAt(p, f.pos)
	f.pos += int64(n)
	return n, err
}

// toEnd moves the position to the end where the file was opened with O_APPEND.
func (f *File) toEnd() error {
	if !f.append {
		return nil
	}
	_, err := f.Seek(0, io.SeekEnd)
	return err
}

// Seek sets the position.
func (f *File) Seek(off int64, whence int) (int64, error) {
	switch whence {
	case io.SeekStart:
	case io.SeekCurrent:
		off += f.pos
	case io.SeekEnd:
		i, err := f.Stat()
		if err != nil {
			return 0, err
		}
		off += i.Size()
	default:
		return 0, pathError("seek", f.name, fs.ErrInvalid)
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
		l, err := f.v.sorted(context.Background(), f.fh)
		if err != nil {
			return nil, pathError("readdir", f.name, err)
		}
		f.dir, f.read = entries(l), true
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
