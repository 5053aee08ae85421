package daemon

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// A file is made whole or not at all, with unnamed files and without, and takes no place that is taken.
func TestAFileIsMadeWholeOrNotAtAll(t *testing.T) {
	for name, make := range map[string]func(string, func(*os.File) error) (*madeFile, error){"unnamed": makeUnnamed, "named": makeNamed} {
		dir := t.TempDir()
		path := filepath.Join(dir, "v.img")
		broken := errors.New("broken")
		if _, err := make(path, func(*os.File) error { return broken }); !errors.Is(err, broken) {
			t.Errorf("%s: %v", name, err)
		}
		m, err := make(path, fillEmpty(4096, true))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := make(path, fillEmpty(8192, false)); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s: over a file: %v", name, err)
		}
		if fi, err := os.Stat(path); err != nil || fi.Size() != 4096 || fi.Mode().Perm() != 0o600 {
			t.Errorf("%s: %+v, %v", name, fi, err)
		}
		// Another file in its place is not taken away.
		if err := errors.Join(os.Rename(path, path+".moved"), os.WriteFile(path, nil, 0o600), m.remove()); err != nil {
			t.Fatal(err)
		}
		left, err := os.ReadDir(dir)
		if err != nil || len(left) != 2 {
			t.Errorf("%s: left are %v, %v", name, left, err)
		}
	}
}
