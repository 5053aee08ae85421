//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFile(t *testing.T) {
	for seed := uint64(1); seed <= 4; seed++ {
		f := fileTest{path: filepath.Join(t.TempDir(), "f"), seed: seed, ops: 400, max: 64 << 10}
		if what, err := f.run(); err != nil {
			t.Fatalf("seed %d: %s: %v", seed, what, err)
		}
	}
}

// A byte that changes behind its back is found.
func TestSpoiledFileIsFound(t *testing.T) {
	f := fileTest{path: filepath.Join(t.TempDir(), "f"), seed: 1, ops: 400, max: 64 << 10, noTruncate: true, noPunch: true}
	f.after = func(n int) {
		if n != 200 {
			return
		}
		h, err := os.OpenFile(f.path, os.O_RDWR, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer h.Close()
		b := make([]byte, 1)
		for i := range int64(len(f.model)) { // one byte is soon overwritten
			_, _ = h.ReadAt(b, i)
			b[0] ^= 1
			_, _ = h.WriteAt(b, i)
		}
	}
	if _, err := f.run(); err == nil || !strings.Contains(err.Error(), "differ") {
		t.Fatalf("a spoiled file passes: %v", err)
	}
}

func TestChurnKnowsItsTree(t *testing.T) {
	c := churn{dir: t.TempDir(), seed: 7, ops: 600}
	if err := os.Mkdir(filepath.Join(c.dir, "common"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := c.work(); err != nil {
		t.Fatal(err)
	}
	c.tree["never made"] = thing{dir: true}
	if err := os.Mkdir(c.own, 0o755); err != nil {
		t.Fatal(err)
	}
	if c.check() == nil {
		t.Fatal("a missing name is not noticed")
	}
	c.tree = map[string]thing{"": {dir: true}}
	if err := os.WriteFile(c.at("surplus"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if c.check() == nil {
		t.Fatal("a surplus name is not noticed")
	}
}

func TestListingWantsEveryFileOnce(t *testing.T) {
	l := listing{files: 20}
	d := t.TempDir()
	for _, n := range []string{"01", "02", "03", "04", "05", "06", "07", "08", "09", "11", "12", "13", "14", "15", "16", "17", "18", "19"} {
		if err := os.WriteFile(filepath.Join(d, "stay-0000"+n), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.once(d); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(d, "stay-000013")); err != nil {
		t.Fatal(err)
	}
	if l.once(d) == nil {
		t.Fatal("a missing file is not noticed")
	}
}
