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

// While a new file is filled the one that it takes the place of may come back: until the end it has its identity.
func TestAFileThatIsAwayKeepsItsIdentityWhileAnotherIsFilled(t *testing.T) {
	d, _ := running(t, fileConfig)
	cfg := VolumeConfig{Name: "made", Engine: "file", Path: filepath.Join(d.stateDir, "made.img"), Size: 1 << 20}
	was := newIdentity()
	if err := writeJSON(beside(cfg.Path), was); err != nil {
		t.Fatal(err)
	}
	filled := false
	m, err := d.makeVolume(cfg, func(f *os.File) error {
		if id, err := readIdentity(beside(cfg.Path)); err != nil || id == nil || *id != *was {
			t.Errorf("while it is filled: %+v, %v", id, err)
		}
		filled = true
		return fillEmpty(1<<20, false)(f)
	})
	if err != nil || !filled {
		t.Fatalf("filled %v, %v", filled, err)
	}
	if id, err := readIdentity(beside(cfg.Path)); err != nil || id == nil || *id == *was {
		t.Errorf("in the end: %+v, %v", id, err)
	}
	if err := m.remove(); err != nil {
		t.Fatal(err)
	}
	if id, err := readIdentity(beside(cfg.Path)); err != nil || id == nil || *id != *was {
		t.Errorf("taken back: %+v, %v", id, err)
	}
}
