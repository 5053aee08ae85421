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
	"sync"
	"testing"
	"testing/fstest"
	"time"

	infs "github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

func each(t *testing.T, f func(t *testing.T, s *server)) {
	for _, how := range transports {
		t.Run(how, func(t *testing.T) {
			f(t, start(t, how, nfs.Options{}, rpcserver.Options{}, nfs.Export{Rights: open, Async: true}))
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func random(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = r.Read(b)
	return b
}

func TestFSConformance(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		v := s.mount(t)
		ctx := context.Background()
		must(t, v.Mkdir(ctx, "sub", 0o755))
		must(t, v.Mkdir(ctx, "sub/deep", 0o755))
		for name, n := range map[string]int{"empty": 0, "one": 1, "sub/odd": 123, "sub/deep/long": 300} {
			must(t, os.WriteFile(filepath.Join(s.dir, name), random(n, uint64(n)), 0o644))
		}
		if err := fstest.TestFS(v, "empty", "one", "sub/odd", "sub/deep/long"); err != nil {
			t.Fatal(err)
		}
	})
}

func TestReadAndWriteOfAllSizes(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		v := s.mount(t)
		ctx := context.Background()
		f, err := v.Create(ctx, "f", 0o600)
		must(t, err)
		shadow := make([]byte, 0)
		r := rand.New(rand.NewPCG(1, 2))
		for i, n := range []int{0, 1, 3, 4, 1000, 3500, 3900, 4096, 4097, 65535, 65536, 1 << 20, 1<<20 + 1, 5<<20 + 3} {
			off := r.IntN(1 << 20)
			p := random(n, uint64(i))
			_, err := f.WriteAt(p, int64(off))
			must(t, err)
			if need := off + n; need > len(shadow) && n > 0 {
				shadow = append(shadow, make([]byte, need-len(shadow))...)
			}
			copy(shadow[min(off, len(shadow)):], p)
			got := make([]byte, n)
			if k, err := f.ReadAt(got, int64(off)); err != nil && !errors.Is(err, io.EOF) || k != n {
				t.Fatalf("read %d at %d: %d, %v", n, off, k, err)
			}
			if !bytes.Equal(got, p) {
				t.Fatalf("read of %d bytes differs from what was written", n)
			}
		}
		must(t, f.Sync())
		disk, err := os.ReadFile(filepath.Join(s.dir, "f"))
		must(t, err)
		if !bytes.Equal(disk, shadow) {
			t.Fatal("the file on disk differs from what was written")
		}
		must(t, f.Truncate(10))
		if k, err := f.ReadAt(make([]byte, 20), 0); k != 10 || !errors.Is(err, io.EOF) {
			t.Fatalf("after truncation: %d, %v", k, err)
		}
		must(t, f.Close())
	})
}

func TestNamesLinksAndAttributes(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		v := s.mount(t)
		ctx := context.Background()
		long := strings.Repeat("n", 255)
		must(t, v.Mkdir(ctx, long, 0o751))
		f, err := v.Create(ctx, long+"/file", 0o640)
		must(t, err)
		_, err = f.Write([]byte("hello"))
		must(t, err)
		must(t, f.Close())
		must(t, v.Rename(ctx, long+"/file", "moved"))
		must(t, v.Link(ctx, "moved", "hard"))
		must(t, v.Symlink(ctx, "moved", "soft"))
		target := strings.Repeat("x/", 2000)
		must(t, v.Symlink(ctx, target, "longlink"))
		if got, err := v.ReadLink("longlink"); err != nil || got != target {
			t.Fatalf("readlink: %d bytes, %v", len(got), err)
		}
		b, err := v.ReadFile("soft")
		if err != nil || string(b) != "hello" {
			t.Fatalf("through the link: %q, %v", b, err)
		}
		i, err := v.StatContext(ctx, "hard")
		must(t, err)
		if i.Links() != 2 || i.Mode() != 0o640 || i.Size() != 5 {
			t.Fatalf("links %d, mode %v, size %d", i.Links(), i.Mode(), i.Size())
		}
		when := time.Unix(1234567890, 42)
		must(t, v.Chtimes(ctx, "hard", when, when))
		must(t, v.Chmod(ctx, "hard", fs.ModeSetuid|0o711))
		i, err = v.StatContext(ctx, "moved")
		must(t, err)
		if !i.ModTime().Equal(when) || i.Mode() != fs.ModeSetuid|0o711 {
			t.Fatalf("time %v, mode %v", i.ModTime(), i.Mode())
		}
		if err := v.Mkdir(ctx, strings.Repeat("n", 256), 0o755); err == nil {
			t.Fatal("a name of 256 bytes was taken")
		}
		if err := v.Remove(ctx, "nothing"); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("remove nothing: %v", err)
		}
		must(t, v.Mkdir(ctx, long+"/d", 0o755))
		if err := v.Remove(ctx, long); !errors.Is(err, fs.ErrExist) {
			t.Fatalf("remove of a full directory: %v", err)
		}
		must(t, v.Remove(ctx, long+"/d"))
		must(t, v.Remove(ctx, long))
		sp, err := v.Statfs(ctx)
		must(t, err)
		if sp.Total == 0 {
			t.Fatal("statfs says that there is no space at all")
		}
	})
}

func TestManyCallsInFlight(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		v := s.mount(t)
		ctx := context.Background()
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				name := "f" + itoa(uint16(i))
				want := random(300_000+i, uint64(i))
				f, err := v.Create(ctx, name, 0o600)
				if err == nil {
					_, err = f.Write(want)
				}
				if err == nil {
					err = f.Close()
				}
				var got []byte
				if err == nil {
					got, err = v.ReadFile(name)
				}
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("%s: %d bytes, %v", name, len(got), err)
				}
			})
		}
		wg.Wait()
	})
}

func TestListingWhileRenaming(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		const files = 1000
		for i := range files {
			must(t, os.WriteFile(filepath.Join(s.dir, "stay"+itoa(uint16(i))), nil, 0o600))
		}
		must(t, os.WriteFile(filepath.Join(s.dir, "moving"), nil, 0o600))
		v := s.mount(t)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			a, b := filepath.Join(s.dir, "moving"), filepath.Join(s.dir, "mooving")
			for {
				select {
				case <-stop:
					return
				default:
					if os.Rename(a, b) == nil {
						_ = os.Rename(b, a)
					}
				}
			}
		})
		for range 3 {
			l, err := v.ReadDirContext(context.Background(), ".")
			if err != nil {
				t.Error(err)
				break
			}
			seen := make(map[string]int)
			for _, e := range l {
				seen[e.Name()]++
			}
			for i := range files {
				if n := seen["stay"+itoa(uint16(i))]; n != 1 {
					t.Errorf("stay%d is listed %d times", i, n)
				}
			}
		}
		close(stop)
		wg.Wait()
	})
}

func TestMountOfAFile(t *testing.T) {
	s := start(t, "tcp", nfs.Options{}, rpcserver.Options{}, nfs.Export{Rights: open, Async: true})
	must(t, os.MkdirAll(filepath.Join(s.dir, "a/b"), 0o755))
	must(t, os.WriteFile(filepath.Join(s.dir, "a/b/c"), []byte("x"), 0o644))
	url := strings.Replace(s.url, "/data", "/data/a/b/c", 1)
	v, name, err := infs.Mount(context.Background(), url, s.opts)
	must(t, err)
	defer func() { must(t, v.Close()) }()
	b, err := v.ReadFile(name)
	if err != nil || string(b) != "x" {
		t.Fatalf("%q: %q, %v", name, b, err)
	}
}
