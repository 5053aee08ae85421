package blockcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/sluice-storage/sluice/cmd/internal/wholefile"
	"github.com/sluice-storage/sluice/mem"
)

// file is a local file or block device as source or sink.
type file struct {
	f    *os.File
	n    int64
	made *wholefile.File // takes its name at the end, where it is not a device
}

// openSource opens a file to read; "-" is standard input.
func openSource(path string, stdin io.Reader) (source, io.Closer, error) {
	if path == "-" {
		return stream{r: stdin}, io.NopCloser(nil), nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	fi, err := f.Stat()
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	switch {
	case fi.Mode().IsRegular():
		return &file{f: f, n: fi.Size()}, f, nil
	case fi.Mode()&os.ModeDevice != 0 && fi.Mode()&os.ModeCharDevice == 0:
		n, err := f.Seek(0, io.SeekEnd)
		if err != nil {
			return nil, nil, errors.Join(err, f.Close())
		}
		return &file{f: f, n: n}, f, nil
	case fi.IsDir():
		return nil, nil, errors.Join(fmt.Errorf("%s is a directory", path), f.Close())
	}
	return stream{r: f}, f, nil
}

// openSink opens a file to write. A regular file takes its name when the copy is whole; a block device is written in place,
// "-" is standard output.
func openSink(path string, stdout io.Writer) (sink, io.Closer, error) {
	if path == "-" {
		return stream{w: stdout}, io.NopCloser(nil), nil
	}
	fi, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && (fi.Mode().IsRegular() || fi.IsDir()) {
		f, err := wholefile.Create(path, 0o600)
		if err != nil {
			return nil, nil, err
		}
		return &file{f: f.File, made: f}, f, nil
	}
	if err != nil {
		return nil, nil, err
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return nil, nil, err
	}
	if fi.Mode()&os.ModeDevice != 0 && fi.Mode()&os.ModeCharDevice == 0 {
		return &file{f: f}, f, nil
	}
	return stream{w: f}, f, nil
}

func (l *file) ranged() bool { return true }
func (l *file) size() int64  { return l.n }
func (l *file) skew() int64  { return 0 }

func (l *file) readAt(_ context.Context, p mem.Span, off int64) (int, error) {
	n, err := l.f.ReadAt(p.Bytes(), off)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

func (l *file) writeAt(_ context.Context, p mem.Span, off int64) error {
	_, err := l.f.WriteAt(p.Bytes(), off)
	return err
}

func (l *file) finish(_ context.Context, n int64) error {
	if l.made == nil {
		return l.f.Sync()
	}
	if err := l.f.Truncate(n); err != nil {
		return err
	}
	return l.made.Commit()
}
