package gonfs

import (
	"bufio"
	"errors"
	"io"

	"github.com/sluice-storage/sluice/initiator/nfs"
)

// piece is how much io.Copy moves at a time, bytes.
const piece = 1 << 20

// File is an open file. It is used by one goroutine at a time.
type File struct {
	*Target
	f  *nfs.File
	fh []byte
	at int64
}

// Readlink gives the target of a symbolic link.
func (f *File) Readlink() (string, error) {
	ctx, end := f.ctx()
	defer end()
	s, err := f.caller.Readlink(ctx, f.fh)
	return s, refusal(err)
}

// Read reads at the file's position.
func (f *File) Read(p []byte) (int, error) {
	ctx, end := f.ctx()
	defer end()
	n, err := f.f.ReadAtContext(ctx, p, f.at)
	f.at += int64(n)
	if errors.Is(err, io.EOF) {
		return n, io.EOF
	}
	return n, refusal(err)
}

// Write writes at the file's position. The data is durable when it returns.
func (f *File) Write(p []byte) (int, error) {
	ctx, end := f.ctx()
	defer end()
	if _, err := f.f.WriteAtContext(ctx, p, f.at); err != nil {
		return 0, refusal(err)
	}
	if err := f.f.SyncContext(ctx); err != nil {
		return 0, refusal(err)
	}
	f.at += int64(len(p))
	return len(p), nil
}

// ReadFrom writes what r gives, in pieces of a megabyte: io.Copy calls it. The data is durable when it returns.
func (f *File) ReadFrom(r io.Reader) (int64, error) {
	start := f.at
	w := bufio.NewWriterSize(unsynced{f}, piece)
	_, err := w.ReadFrom(r)
	if ferr := w.Flush(); err == nil {
		err = ferr
	}
	if serr := f.Close(); serr != nil {
		return 0, serr
	}
	return f.at - start, err
}

// unsynced is a File whose data is not durable yet when Write returns.
type unsynced struct{ f *File }

func (u unsynced) Write(p []byte) (int, error) {
	ctx, end := u.f.ctx()
	defer end()
	n, err := u.f.f.WriteAtContext(ctx, p, u.f.at)
	u.f.at += int64(n)
	return n, refusal(err)
}

// WriteTo writes the rest of the file to w, in pieces of a megabyte: io.Copy calls it.
func (f *File) WriteTo(w io.Writer) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{f}, make([]byte, piece))
}

// Seek sets the position.
func (f *File) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset, whence = f.at+offset, io.SeekStart
	case io.SeekEnd:
		ctx, end := f.ctx()
		defer end()
		i, err := f.f.StatContext(ctx)
		if err != nil {
			return f.at, refusal(err)
		}
		offset, whence = i.Size()+offset, io.SeekStart
	}
	at, err := f.f.Seek(offset, whence)
	if err != nil {
		return f.at, refusal(err)
	}
	f.at = at
	return at, nil
}

// Close makes durable what was written. The Target stays open.
func (f *File) Close() error {
	ctx, end := f.ctx()
	defer end()
	return refusal(f.f.SyncContext(ctx))
}
