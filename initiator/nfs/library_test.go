package nfs_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"testing/iotest"
	"time"

	infs "github.com/sluice-storage/sluice/initiator/nfs"
)

func random(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(n)})
	_, _ = r.Read(b)
	return b
}

// What fs.FS promises is kept by the standard library's own measure.
func TestAnExportIsAnFS(t *testing.T) {
	each(t, everything, func(t *testing.T, dir, url string) {
		must(t, os.MkdirAll(filepath.Join(dir, "a/b"), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, "empty"), nil, 0o600))
		must(t, os.WriteFile(filepath.Join(dir, "a/small"), []byte("small"), 0o640))
		must(t, os.WriteFile(filepath.Join(dir, "a/b/large"), random(301), 0o644))
		must(t, os.Symlink("small", filepath.Join(dir, "a/link")))
		v := open(t, url)
		must(t, fstest.TestFS(v, "empty", "a/small", "a/b/large", "a/link"))
		var sub fs.FS
		sub, err := fs.Sub(v, "a")
		must(t, err)
		must(t, fstest.TestFS(sub, "small", "b/large", "link"))
		if b, err := fs.ReadFile(sub, "link"); string(b) != "small" {
			t.Errorf("%q, %v by a link", b, err)
		}
		below := strings.Replace(url, "/data", "/data/a/b", 1)
		if b, err := fs.ReadFile(open(t, below), "large"); err != nil || len(b) != 301 {
			t.Errorf("%d bytes, %v from %s", len(b), err, below)
		}
		if _, err := infs.Open(t.Context(), strings.Replace(url, "/data", "/data/a/small", 1), infs.Options{}); !errors.Is(err, infs.ErrNotDirectory) {
			t.Errorf("a file was opened as a file system: %v", err)
		}
	})
}

func TestAFileIsAReaderAndAWriter(t *testing.T) {
	each(t, everything, func(t *testing.T, dir, url string) {
		v := open(t, url)
		data := random(9_000_003)
		f, err := v.Create(t.Context(), "f", 0o600)
		must(t, err)
		n, err := io.Copy(f, iotest.DataErrReader(bytes.NewReader(data))) // by ReadFrom
		if must(t, err); n != int64(len(data)) {
			t.Fatalf("%d bytes were copied", n)
		}
		must(t, f.Close())
		there, err := os.ReadFile(filepath.Join(dir, "f"))
		if must(t, err); !bytes.Equal(there, data) {
			t.Fatal("the server has other bytes")
		}
		opened, err := v.Open("f")
		must(t, err)
		var out bytes.Buffer
		n, err = io.Copy(&out, opened) // by WriteTo
		if must(t, err); n != int64(len(data)) || !bytes.Equal(out.Bytes(), data) {
			t.Fatalf("%d bytes came back", n)
		}
		must(t, opened.Close())
		must(t, v.WriteFile(t.Context(), "short", data[:301], 0o600))
		opened, err = v.Open("short")
		must(t, err)
		must(t, iotest.TestReader(opened, data[:301]))
		must(t, opened.Close())
	})
}

func TestWhatWasReadBeforeAnErrorIsWritten(t *testing.T) {
	each(t, everything, func(t *testing.T, dir, url string) {
		v := open(t, url)
		for _, want := range []error{errors.New("the source failed"), io.ErrUnexpectedEOF} {
			f, err := v.Create(t.Context(), "f", 0o600)
			must(t, err)
			n, err := f.ReadFrom(io.MultiReader(strings.NewReader("before"), iotest.ErrReader(want)))
			if n != 6 || !errors.Is(err, want) {
				t.Errorf("%d, %v", n, err)
			}
			must(t, f.Close())
			if b, _ := os.ReadFile(filepath.Join(dir, "f")); string(b) != "before" {
				t.Errorf("%q", b)
			}
		}
	})
}

func TestAFileOutlivesTheContextThatOpenedIt(t *testing.T) {
	each(t, everything, func(t *testing.T, _, url string) {
		v := open(t, url)
		ctx, cancel := context.WithCancel(t.Context())
		f, err := v.OpenFile(ctx, "f", os.O_CREATE, 0o600)
		must(t, err)
		cancel()
		_, err = f.Write([]byte("text"))
		must(t, err)
		must(t, f.Sync())
		if _, err := f.ReadAtContext(ctx, make([]byte, 4), 0); !errors.Is(err, context.Canceled) {
			t.Errorf("a context of the operation: %v", err)
		}
	})
}

func TestSeekAppendAndTruncate(t *testing.T) {
	each(t, everything, func(t *testing.T, dir, url string) {
		v := open(t, url)
		must(t, v.WriteFile(t.Context(), "f", []byte("one"), 0o600))
		f, err := v.OpenFile(t.Context(), "f", os.O_RDWR|os.O_APPEND, 0)
		must(t, err)
		_, err = io.WriteString(f, "two")
		must(t, err)
		if at, err := f.Seek(-2, io.SeekEnd); at != 4 || err != nil {
			t.Errorf("%d, %v", at, err)
		}
		if _, err := f.Seek(0, 9); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("whence 9: %v", err)
		}
		if _, err := f.Seek(-1, io.SeekStart); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("before the beginning: %v", err)
		}
		must(t, f.Truncate(5))
		if err := f.Truncate(-1); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("a negative size: %v", err)
		}
		must(t, f.Close())
		if b, _ := os.ReadFile(filepath.Join(dir, "f")); string(b) != "onetw" {
			t.Errorf("%q", b)
		}
	})
}

func TestErrorsAreToldApart(t *testing.T) {
	each(t, everything, func(t *testing.T, dir, url string) {
		ctx, v := t.Context(), open(t, url)
		must(t, v.MkdirAll(ctx, "d/e", 0o755))
		must(t, v.MkdirAll(ctx, "d/e", 0o755))
		must(t, v.WriteFile(ctx, "d/f", nil, 0o600))
		stale, err := v.OpenFile(ctx, "d/f", os.O_RDWR, 0)
		must(t, err)
		must(t, os.Remove(filepath.Join(dir, "d/f")))
		_, gone := stale.Stat()
		_, missing := v.Open("d/none")
		for what, c := range map[string]struct {
			err      error
			op, path string
			st       infs.Status
			same     error
		}{
			"no such file":      {missing, "open", "d/none", infs.ErrNoEntry, fs.ErrNotExist},
			"name is taken":     {v.Mkdir(ctx, "d/e", 0o755), "mkdir", "d/e", infs.ErrExists, fs.ErrExist},
			"not empty":         {v.Remove(ctx, "d"), "remove", "d", infs.ErrNotEmpty, fs.ErrExist},
			"file is gone":      {gone, "stat", "d/f", infs.ErrStale, infs.ErrStale},
			"name is too long":  {v.Mkdir(ctx, strings.Repeat("x", 256), 0o755), "mkdir", strings.Repeat("x", 256), infs.ErrNameTooLong, infs.ErrNameTooLong},
			"no way through it": {v.Rename(ctx, "d/none", "x"), "rename", "d/none", infs.ErrNoEntry, fs.ErrNotExist},
		} {
			var e *infs.Error
			var p *fs.PathError
			if !errors.As(c.err, &e) || e.Op != c.op || e.Path != c.path || e.Status != c.st || !errors.Is(c.err, c.st) || !errors.Is(c.err, c.same) {
				t.Errorf("%s: %v (%+v)", what, c.err, e)
			}
			if !errors.As(c.err, &p) || p.Op != c.op || p.Path != c.path {
				t.Errorf("%s: %+v is no PathError of it", what, c.err)
			}
			if errors.Is(c.err, infs.ErrNoSpace) {
				t.Errorf("%s is a full disk too", what)
			}
		}
		var refused *infs.MountError
		_, err = infs.Open(ctx, strings.Replace(url, "/data", "/other", 1), infs.Options{})
		if !errors.As(err, &refused) || refused.Path != "/other" || !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("an export that is not there: %v", err)
		}
		must(t, v.RemoveAll(ctx, "d"))
		must(t, v.RemoveAll(ctx, "d"))
		if _, err := os.Lstat(filepath.Join(dir, "d")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("it is there still: %v", err)
		}
	})
}

func TestAReadOnlyExportSaysSo(t *testing.T) {
	r := everything
	r.ReadOnly = true
	each(t, r, func(t *testing.T, _, url string) {
		err := open(t, url).Mkdir(t.Context(), "d", 0o755)
		if !errors.Is(err, infs.ErrReadOnly) || !errors.Is(err, fs.ErrPermission) || errors.Is(err, infs.ErrAccess) {
			t.Errorf("%v", err)
		}
	})
}

func TestTimesAndSizesThatNoFileCanHaveAreRefused(t *testing.T) {
	each(t, everything, func(t *testing.T, dir, url string) {
		ctx, v := t.Context(), open(t, url)
		must(t, v.WriteFile(ctx, "f", []byte("text"), 0o600))
		when := time.Unix(1_000_000_000, 7)
		must(t, v.Chtimes(ctx, "f", when, when))
		must(t, v.Chtimes(ctx, "f", time.Time{}, when.Add(time.Hour)))
		i, err := v.StatContext(ctx, "f")
		must(t, err)
		if a := i.Sys().(*infs.Attr); !a.Atime.Go().Equal(when) || !i.ModTime().Equal(when.Add(time.Hour)) {
			t.Errorf("%+v", a)
		}
		for what, err := range map[string]error{
			"before 1970":     v.Chtimes(ctx, "f", when, time.Unix(-1, 0)),
			"after 2106":      v.Chtimes(ctx, "f", time.Unix(1<<32, 0), when),
			"a negative size": v.Truncate(ctx, "f", -1),
		} {
			if !errors.Is(err, fs.ErrInvalid) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if b, _ := os.ReadFile(filepath.Join(dir, "f")); string(b) != "text" {
			t.Errorf("%q", b)
		}
	})
}

func TestAClosedFSSaysSo(t *testing.T) {
	each(t, everything, func(t *testing.T, _, url string) {
		v, err := infs.Open(t.Context(), url, infs.Options{})
		must(t, err)
		sub, err := v.SubContext(t.Context(), ".")
		must(t, err)
		must(t, sub.Close()) // which is not the connection's end
		_, err = v.Stat(".")
		must(t, err)
		must(t, v.Close())
		if _, err := sub.Stat("."); !errors.Is(err, fs.ErrClosed) || !errors.Is(err, infs.ErrClosed) {
			t.Errorf("%v", err)
		}
	})
}
