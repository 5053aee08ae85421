package nfs

import (
	"context"
	"errors"
	"io"

	"github.com/sluice-storage/sluice/internal/source"
)

// ReadFrom writes what r gives at the file's position, until r ends, in pieces of megabytes: io.Copy calls it. What was read
// before r failed is written.
func (f *File) ReadFrom(r io.Reader) (int64, error) {
	if err := f.toEnd(); err != nil {
		return 0, err
	}
	var done int64
	buf := make([]byte, streamFirst)
	for {
		n, rerr := source.Fill(r, buf)
		if n > 0 {
			w, err := f.WriteAt(buf[:n], f.pos)
			f.pos, done = f.pos+int64(w), done+int64(w)
			if err != nil {
				return done, err
			}
		}
		if rerr != nil {
			if rerr == io.EOF { //nolint:errorlint // a wrapped one is a failure of r
				rerr = nil
			}
			return done, rerr
		}
		buf = f.larger(buf, f.v.wsize)
	}
}

// larger is the buffer for what follows a first piece: small files need no large one.
func (f *File) larger(buf []byte, transfer int) []byte {
	if n := transfer * streamDepth; len(buf) < n {
		return make([]byte, n)
	}
	return buf
}

// WriteTo writes the file from its position to its end to w, in pieces of megabytes: io.Copy calls it.
func (f *File) WriteTo(w io.Writer) (int64, error) {
	var done int64
	buf := make([]byte, streamFirst)
	for {
		n, err := f.readAt(context.Background(), f.v, buf, f.pos)
		if n > 0 {
			k, werr := w.Write(buf[:n])
			f.pos, done = f.pos+int64(k), done+int64(k)
			switch {
			case werr != nil:
				return done, werr
			case k < n:
				return done, io.ErrShortWrite
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return done, nil
		case err != nil:
			return done, err
		}
		buf = f.larger(buf, f.v.rsize)
	}
}
