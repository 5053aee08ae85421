package nfs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/rpc"
)

// Handles made of inode numbers are found again after renames, here and by others, and after a restart.
func TestFallbackHandles(t *testing.T) {
	state, dir := t.TempDir(), t.TempDir()
	e := nfs.Export{Rights: open, Async: true, Dir: dir, InodeHandles: true}
	must(t, os.MkdirAll(filepath.Join(dir, "a/b"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "a/b/f"), []byte("x"), 0o644))
	s := start(t, "tcp", nfs.Options{StateDir: state}, rpc.Options{}, e)
	r := s.raw(t, 0, 0)
	root, _ := r.mount("/data")
	fh := r.lookup(r.lookup(r.lookup(root, "a").FH, "b").FH, "f").FH
	if a := r.getattr(fh); a.Status != nfs3.OK || a.Attr.Size != 1 {
		t.Fatal(a.Status)
	}
	s.stop(t)
	must(t, os.Rename(filepath.Join(dir, "a/b/f"), filepath.Join(dir, "g")))
	again := start(t, "tcp", nfs.Options{StateDir: state}, rpc.Options{}, e)
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
