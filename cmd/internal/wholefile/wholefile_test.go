package wholefile

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestAFileIsThereWholeOrNotAtAll(t *testing.T) {
	dir := t.TempDir()
	path, link, away := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "sub/away")
	if err := errors.Join(os.WriteFile(path, []byte("old"), 0o640), os.Mkdir(filepath.Join(dir, "sub"), 0o700), os.Symlink("sub/away", link)); err != nil {
		t.Fatal(err)
	}
	write := func(path string, commit bool) {
		t.Helper()
		f, err := Create(path, 0o604)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = f.WriteString("new content"); err == nil && commit {
			err = f.Commit()
		}
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	check := func(path, want string, perm fs.FileMode) {
		t.Helper()
		b, err := os.ReadFile(path)
		fi, serr := os.Stat(path)
		if err != nil || serr != nil || !bytes.Equal(b, []byte(want)) || fi.Mode().Perm() != perm {
			t.Errorf("%s: %q %v %v %v", path, b, fi, err, serr)
		}
	}
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	write(path, false)
	check(path, "old", 0o640)
	write(path, true)
	check(path, "new content", 0o640)
	write(link, false)
	if _, err := os.Stat(away); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that was given up is there: %v", err)
	}
	write(link, true)
	check(away, "new content", 0o604)
	if to, err := os.Readlink(link); to != "sub/away" {
		t.Errorf("the link leads to %q (%v)", to, err)
	}
	if _, err := Create(dir, 0o600); !errors.Is(err, syscall.EISDIR) {
		t.Errorf("in place of a directory: %v", err)
	}
	for _, d := range []string{dir, filepath.Join(dir, "sub")} {
		l, err := filepath.Glob(filepath.Join(d, ".*sluice*"))
		if err != nil || len(l) != 0 {
			t.Errorf("left behind: %v %v", l, err)
		}
	}
}

// A name in a tree never leads out of the tree, whatever links are in it.
func TestAFileOfATreeStaysInTheTree(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	if err := errors.Join(os.Symlink(outside, filepath.Join(dir, "out")), os.Symlink(filepath.Join(outside, "victim"), filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, name := range []string{"../x", "out/x", "/tmp/x"} {
		if f, err := CreateIn(root, name, 0o600); err == nil {
			t.Errorf("%s was made", name)
			_ = f.Close()
		}
	}
	// The last element is replaced, not followed.
	f, err := CreateIn(root, "link", 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Commit(), f.Close()); err != nil {
		t.Error(err)
	}
	if l, err := os.ReadDir(outside); err != nil || len(l) != 0 {
		t.Errorf("outside is %v (%v)", l, err)
	}
}
