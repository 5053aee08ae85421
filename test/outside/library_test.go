package outside_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/initiator/nfs/gonfs"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport/iwarp"
	"sluice.example/outside/sparse"
)

// What docs/library.md shows is in this file and in serve_test.go, word by word; a test of the repository compares them.

func useVolume(ctx context.Context, url string) error {
	v, err := block.Open(ctx, url, block.Options{})
	if err != nil {
		return err
	}
	defer v.Close()
	if _, err := v.WriteAt([]byte("hello"), 1000); err != nil {
		return err
	}
	return v.Sync()
}

func copyImage(ctx context.Context, v *block.Volume, image io.Reader) error {
	if _, err := io.Copy(v.Writer(ctx), image); err != nil {
		return err
	}
	return v.Sync()
}

func withoutCopies(ctx context.Context, v *block.Volume) error {
	buf, err := v.Memory().Get(64 << 10)
	if err != nil {
		return err
	}
	defer buf.Release()
	return v.Do(ctx, &blockdev.Request{Op: blockdev.Write, FUA: true, Offset: 1 << 20, Length: 64 << 10, Data: []mem.Span{buf.Span()}})
}

func useFiles(ctx context.Context, url string) error {
	fsys, err := nfs.Open(ctx, url, nfs.Options{})
	if err != nil {
		return err
	}
	defer fsys.Close()
	if err := fsys.WriteFile(ctx, "greeting", []byte("hello"), 0o644); err != nil {
		return err
	}
	return fs.WalkDir(fsys, ".", func(path string, _ fs.DirEntry, err error) error {
		fmt.Println(path)
		return err
	})
}

func upload(ctx context.Context, fsys *nfs.FS, from io.Reader) error {
	f, err := fsys.Create(ctx, "copy", 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}

func why(err error) string {
	var sense *block.SenseError
	var refusal *nfs.Error
	switch {
	case errors.Is(err, block.ErrAuth):
		return "the secret is wrong"
	case errors.Is(err, block.ErrNoTarget):
		return "there is no such target"
	case errors.Is(err, block.ErrNoPath):
		return "the host cannot be reached"
	case errors.Is(err, fs.ErrNotExist):
		return "there is no such file"
	case errors.Is(err, nfs.ErrNoSpace), errors.Is(err, blockdev.ErrNoSpace):
		return "the server's disk is full"
	case errors.As(err, &sense):
		return fmt.Sprintf("sense key %x, code %02x/%02x", sense.Key, sense.ASC, sense.ASCQ)
	case errors.As(err, &refusal):
		return refusal.Status.Name()
	}
	return err.Error()
}

func logged(ctx context.Context, url string) (*block.Volume, error) {
	logger := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	return block.Open(ctx, url, block.Options{Log: logger})
}

func two(ctx context.Context, first, second string) (err error) {
	pool, dev := mem.NewPool(64<<20), iwarp.New(iwarp.Options{})
	defer func() { err = errors.Join(err, pool.Close(), dev.Close()) }()
	i, err := block.New(block.Options{Memory: pool, Device: dev})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, i.Close()) }()
	a, err := i.Open(ctx, first)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	b, err := i.Open(ctx, second)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	// ...
	return nil
}

func oldProgram(ctx context.Context, url string) error {
	v, err := gonfs.Open(ctx, url, nfs.Options{}) // was: mount.Mount("/export", auth.Auth())
	if err != nil {
		return err
	}
	defer v.Close()
	entries, err := v.ReadDirPlus("/")
	for _, e := range entries {
		fmt.Println(e.Name(), e.Size())
	}
	return err
}

// volume serves an engine of this module over the software RNIC for one test.
func volume(t *testing.T) (url string, disk *sparse.Disk) {
	t.Helper()
	disk = sparse.New(16 << 20)
	dev := iwarp.New(iwarp.Options{})
	d, err := serveBlocks(disk, dev, slog.DiscardHandler)
	must(t, err)
	addr, err := d.listen()
	must(t, err)
	t.Cleanup(func() { must(t, errors.Join(d.close(), dev.Close(), disk.Close())) })
	return "iser://" + addr + "/" + target + "/0", disk
}

// export serves a directory over the software RNIC for one test.
func export(t *testing.T) (url, dir string) {
	t.Helper()
	dir = t.TempDir()
	f, err := serveFiles(dir, slog.DiscardHandler)
	must(t, err)
	dev := iwarp.New(iwarp.Options{})
	url, err = f.listenOn(dev)
	must(t, err)
	t.Cleanup(func() { must(t, errors.Join(f.close(), dev.Close())) })
	return url, dir
}

func TestWhatThePageShowsOfVolumes(t *testing.T) {
	url, disk := volume(t)
	for _, scheme := range []string{"iser", "iscsi"} {
		u := scheme + strings.TrimPrefix(url, "iser")
		must(t, useVolume(t.Context(), u))
		v, err := logged(t.Context(), u)
		must(t, err)
		must(t, copyImage(t.Context(), v, strings.NewReader(strings.Repeat("0123456789", 300_000))))
		must(t, withoutCopies(t.Context(), v))
		b := make([]byte, 20)
		_, err = v.ReadAt(b, 2_999_990)
		must(t, err)
		if string(b[:10]) != "0123456789" || b[10] != 0 || v.Size() != 16<<20 || disk.Used() < 3_000_000 {
			t.Errorf("%q of %d bytes, %d in use", b, v.Size(), disk.Used())
		}
		if _, err := v.ReadAt(b, 16<<20-5); !errors.Is(err, io.EOF) {
			t.Errorf("a read across the end: %v", err)
		}
		must(t, v.Close())
	}
	must(t, two(t.Context(), url, url))
	_, err := block.Open(t.Context(), strings.Replace(url, ":disk", ":none", 1), block.Options{})
	if w := why(err); w != "there is no such target" {
		t.Error(w)
	}
}

func TestWhatThePageShowsOfFiles(t *testing.T) {
	url, dir := export(t)
	must(t, useFiles(t.Context(), url))
	must(t, oldProgram(t.Context(), url))
	fsys, err := nfs.Open(t.Context(), url, nfs.Options{})
	must(t, err)
	must(t, upload(t.Context(), fsys, strings.NewReader(strings.Repeat("0123456789", 300_000))))
	if b, err := os.ReadFile(filepath.Join(dir, "copy")); err != nil || len(b) != 3_000_000 {
		t.Errorf("%d bytes are there, %v", len(b), err)
	}
	_, err = fsys.Open("none")
	if w := why(err); w != "there is no such file" {
		t.Error(w)
	}
	must(t, fsys.Close())
}
