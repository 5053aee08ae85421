package faultfs

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// A cut leaves of each block of the unit one content or another, never parts of two; of smaller units it leaves parts.
func TestACutTearsNoBlock(t *testing.T) {
	const block, blocks = 4096, 32
	for _, unit := range []int64{block, sector} {
		f := Mount(t)
		f.Tear(unit)
		path := filepath.Join(f.Dir, "f")
		put := func(what byte, sync bool) {
			t.Helper()
			w, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			if _, err := w.Write(bytes.Repeat([]byte{what}, block*blocks)); err != nil {
				t.Fatal(err)
			}
			// A block is not always written as a whole.
			if _, err := w.WriteAt(bytes.Repeat([]byte{what + 0x10}, 1024), 1024); err != nil {
				t.Fatal(err)
			}
			if sync {
				if err := w.Sync(); err != nil {
					t.Fatal(err)
				}
			}
		}
		put(1, true)
		put(2, false)
		f.Cut(1)
		f.Restore()
		b, err := os.ReadFile(path)
		if err != nil || len(b) != block*blocks {
			t.Fatalf("%d bytes, %v", len(b), err)
		}
		seen, torn := map[byte]bool{}, 0
		for k := range blocks {
			p := b[k*block : (k+1)*block]
			seen[p[0]] = true
			mixed := bytes.IndexByte(p, 1) >= 0 && bytes.IndexByte(p, 2) >= 0
			if k == 0 { // in it one write lies on another
				mixed = mixed || bytes.IndexByte(p, 1) >= 0 && bytes.IndexByte(p, 0x12) >= 0 || bytes.IndexByte(p, 2) >= 0 && bytes.IndexByte(p, 0x11) >= 0
			}
			if mixed {
				torn++
			}
		}
		if len(seen) < 2 || (torn == 0) != (unit == block) {
			t.Errorf("blocks of %d bytes: contents %v, %d of %d blocks of %d bytes torn", unit, seen, torn, blocks, block)
		}
	}
}
