package nfs_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-storage/sluice/internal/mount3"
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// With subtree_check a handle is good as long as its file lies below the export, also when a restart has left the kernel
// without a name for it.
func TestSubtreeCheck(t *testing.T) {
	for mkfs, args := range map[string][]string{"mkfs.ext4": {"-F", "-q"}, "mkfs.xfs": {"-q"}} {
		t.Run(mkfs, func(t *testing.T) {
			d := newDisk(t, mkfs, args...)
			state, at := t.TempDir(), func(name string) string { return filepath.Join(d.dir, name) }
			must(t, os.MkdirAll(at("export/a/b"), 0o755))
			must(t, os.Mkdir(at("outside"), 0o755))
			names := []string{"f", "moved within", "moved out", "in a directory that moves out/f"}
			must(t, os.Mkdir(at("export/a/b/in a directory that moves out"), 0o755))
			for _, name := range names {
				must(t, os.WriteFile(at("export/a/b/"+name), []byte("x"), 0o644))
			}
			x := nfs.Export{Rights: open, Dir: at("export"), SubtreeCheck: true}
			s := start(t, "tcp", nfs.Options{StateDir: state}, rpcserver.Options{}, x)
			handles := map[string][]byte{}
			r := s.raw(t, 0, 0)
			root, st := r.mount("/data")
			if st != mount3.OK {
				t.Fatal(st)
			}
			b := r.lookup(r.lookup(root, "a").FH, "b").FH
			for _, name := range names {
				dir := b
				if filepath.Dir(name) != "." {
					dir = r.lookup(b, filepath.Dir(name)).FH
				}
				handles[name] = r.lookup(dir, filepath.Base(name)).FH
			}
			check := func(when string, want map[string]nfs3.Status) {
				t.Helper()
				for _, name := range names {
					if g := r.getattr(handles[name]); g.Status != want[name] || g.Status == nfs3.OK && g.Attr.Size != 1 {
						t.Errorf("%s, %q: %v, not %v", when, name, g.Status, want[name])
					}
				}
			}
			restart := func() {
				s.Stop()
				d.umount()
				d.mount()
				s = start(t, "tcp", nfs.Options{StateDir: state}, rpcserver.Options{}, x)
				r = s.raw(t, 0, 0)
			}
			all := map[string]nfs3.Status{}
			check("at once", all)
			restart()
			check("after a restart", all)
			must(t, os.Rename(at("export/a/b/moved within"), at("export/g")))
			must(t, os.Rename(at("export/a/b/moved out"), at("outside/f")))
			must(t, os.Rename(at("export/a/b/in a directory that moves out"), at("outside/d")))
			some := map[string]nfs3.Status{"moved out": nfs3.ErrStale, "in a directory that moves out/f": nfs3.ErrStale}
			check("after moves", some)
			restart()
			check("after moves and a restart", some)
			s.Stop()
		})
	}
}
