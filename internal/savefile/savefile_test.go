package savefile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// What is saved is there whole, what was there before is replaced or refused, and nothing else stays in the directory.
// test/nfs cuts the power under it.
func TestSave(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a/b/c")
	if err := MkdirAll(dir); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "f")
	for _, c := range []struct {
		save func(string, []byte) error
		b    string
		want error
		is   string
	}{{Create, "one", nil, "one"}, {Create, "two", fs.ErrExist, "one"}, {Replace, "three", nil, "three"}, {Replace, "", nil, ""}} {
		if err := c.save(path, []byte(c.b)); !errors.Is(err, c.want) {
			t.Fatalf("%q: %v", c.b, err)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != c.is {
			t.Fatalf("%q, %v; want %q", b, err, c.is)
		}
	}
	if l, err := os.ReadDir(dir); err != nil || len(l) != 1 {
		t.Fatalf("%v, %v", l, err)
	}
	if err := Replace(filepath.Join(dir, "gone", "f"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in a directory that is not there: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	if Replace(filepath.Join(dir, "d"), nil) == nil {
		t.Error("a directory was replaced")
	}
	if l, err := os.ReadDir(dir); err != nil || len(l) != 2 {
		t.Fatalf("after refusals: %v, %v", l, err)
	}
}
