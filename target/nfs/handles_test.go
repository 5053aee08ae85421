package nfs_test

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// Handles made of inode numbers are found again after renames, here and by others, and after a restart.
func TestFallbackHandles(t *testing.T) {
	state, dir := t.TempDir(), t.TempDir()
	e := nfs.Export{Rights: open, Async: true, Dir: dir, InodeHandles: true}
	must(t, os.MkdirAll(filepath.Join(dir, "a/b"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "a/b/f"), []byte("x"), 0o644))
	s := start(t, "tcp", nfs.Options{StateDir: state}, rpcserver.Options{}, e)
	r := s.raw(t, 0, 0)
	root, _ := r.mount("/data")
	fh := r.lookup(r.lookup(r.lookup(root, "a").FH, "b").FH, "f").FH
	if a := r.getattr(fh); a.Status != nfs3.OK || a.Attr.Size != 1 {
		t.Fatal(a.Status)
	}
	s.Stop()
	must(t, os.Rename(filepath.Join(dir, "a/b/f"), filepath.Join(dir, "g")))
	again := start(t, "tcp", nfs.Options{StateDir: state}, rpcserver.Options{}, e)
	r = again.raw(t, 0, 0)
	if a := r.getattr(fh); a.Status != nfs3.OK || a.Attr.Size != 1 {
		t.Fatalf("after a restart and a rename: %v", a.Status)
	}
	// Another file of the same name, and perhaps the same inode number, is another file.
	must(t, os.Remove(filepath.Join(dir, "g")))
	must(t, os.WriteFile(filepath.Join(dir, "g"), nil, 0o644))
	if a := r.getattr(fh); a.Status != nfs3.ErrStale {
		t.Fatalf("after removal: %v", a.Status)
	}
	v := again.mount(t)
	if l, err := v.ReadDir("."); err != nil || len(l) != 2 {
		t.Fatalf("%v, %v", l, err)
	}
}

// A file that is there is not said to be gone, however deep it lies: its client would drop what it has not yet written.
func TestADeepFileIsNotStale(t *testing.T) {
	state, dir := t.TempDir(), t.TempDir()
	e := nfs.Export{Rights: open, Async: true, Dir: dir, InodeHandles: true}
	const depth = 700
	at := dir
	for range depth {
		at += "/d"
	}
	must(t, os.MkdirAll(at, 0o755))
	must(t, os.WriteFile(at+"/f", []byte("x"), 0o644))
	s := start(t, "tcp", nfs.Options{StateDir: state}, rpcserver.Options{}, e)
	r := s.raw(t, 0, 0)
	fh, _ := r.mount("/data")
	for range depth {
		fh = r.lookup(fh, "d").FH
	}
	fh = r.lookup(fh, "f").FH
	s.Stop()
	s = start(t, "tcp", nfs.Options{StateDir: state}, rpcserver.Options{}, e)
	r = s.raw(t, 0, 0)
	for range 3 {
		if a := r.getattr(fh); a.Status != nfs3.OK || a.Attr.Size != 1 {
			t.Fatalf("after a restart: %v", a.Status)
		}
	}
	must(t, os.Rename(at+"/f", dir+"/g"))
	s.Stop()
	s = start(t, "tcp", nfs.Options{StateDir: state}, rpcserver.Options{}, e)
	r = s.raw(t, 0, 0)
	if a := r.getattr(fh); a.Status != nfs3.OK {
		t.Fatalf("after a restart and a move: %v", a.Status)
	}
	must(t, os.Remove(dir+"/g"))
	s.Stop()
	s = start(t, "tcp", nfs.Options{StateDir: state}, rpcserver.Options{}, e)
	r = s.raw(t, 0, 0)
	for range 3 {
		if a := r.getattr(fh); a.Status != nfs3.ErrStale {
			t.Fatalf("after removal: %v", a.Status)
		}
	}
}

// Handles of files that are gone, or moved under another server's eyes, are looked for together, and all are answered.
func TestManyHandlesAreLookedForAtOnce(t *testing.T) {
	state, dir := t.TempDir(), t.TempDir()
	e := nfs.Export{Rights: open, Async: true, Dir: dir, InodeHandles: true}
	s := start(t, "tcp", nfs.Options{StateDir: state}, rpcserver.Options{}, e)
	r := s.raw(t, 0, 0)
	root, _ := r.mount("/data")
	must(t, os.Mkdir(filepath.Join(dir, "d"), 0o755))
	const files = 100
	handles := make([][]byte, files)
	for i := range handles {
		name := "f" + string(rune('0'+i/10)) + string(rune('0'+i%10))
		must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o644))
		handles[i] = r.lookup(root, name).FH
		if i%2 == 0 {
			must(t, os.Rename(filepath.Join(dir, name), filepath.Join(dir, "d", name)))
		} else {
			must(t, os.Remove(filepath.Join(dir, name)))
		}
	}
	s.Stop()
	s = start(t, "tcp", nfs.Options{StateDir: state}, rpcserver.Options{}, e)
	r = s.raw(t, 0, 0)
	var wg sync.WaitGroup
	for i := range handles {
		wg.Go(func() {
			want := nfs3.OK
			if i%2 == 1 {
				want = nfs3.ErrStale
			}
			for limit := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
				st := r.getattr(handles[i]).Status
				if st == want || st != nfs3.ErrJukebox || time.Now().After(limit) {
					if st != want {
						t.Errorf("file %d: %v, not %v", i, st, want)
					}
					return
				}
			}
		})
	}
	wg.Wait()
}
