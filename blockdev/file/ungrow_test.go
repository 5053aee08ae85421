package file_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/file"
	"github.com/sluice-storage/sluice/blockdev/limit"
)

// Growth that is taken back leaves the file as it was, the bytes behind its last whole block included; without growth
// nothing is taken.
func TestGrowthIsTakenBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "v")
	was := bytes.Repeat([]byte{'x'}, 1<<20+100)
	if err := os.WriteFile(path, was, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := file.Open(path, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	d, err := limit.Open(f, limit.Options{IOPS: 1000})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, size := range []int64{0, 2 << 20, 4 << 20} {
		if size > 0 {
			if err := blockdev.Grow(d, size); err != nil {
				t.Fatal(err)
			}
		}
		if err := blockdev.Ungrow(d); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, was) || d.Geometry().Size != 1<<20 {
			t.Errorf("from %d: %d bytes, the device has %d, %v", size, len(b), d.Geometry().Size, err)
		}
	}
}
