package file_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/blockdevtest"
	"github.com/sluice-storage/sluice/blockdev/file"
	"github.com/sluice-storage/sluice/test/lib/disk"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB, path string, o file.Options) *file.Device {
	t.Helper()
	d, err := file.Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestConformance(t *testing.T) {
	variants := map[string]file.Options{
		"buffered":  {Size: 3<<20 + 512},
		"4096":      {Size: 4 << 20, Logical: 4096},
		"by worker": {Size: 4 << 20, NoInline: true, NoRing: true, Workers: 1},
		"uncached":  {Size: 4 << 20, NoInline: true, Workers: 1},
		"direct":    {Size: 4 << 20, Logical: 4096, Direct: true},
		"no ring":   {Size: 4 << 20, Logical: 4096, Direct: true, NoRing: true},
		"atomic":    {Size: 4 << 20, Workers: 3, Atomic: true},
		"both":      {Size: 4 << 20, Logical: 4096, Direct: true, Atomic: true},
	}
	for name, o := range variants {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if o.Direct {
				dir = directDir(t)
			}
			paths := map[blockdev.Device]string{}
			fresh := func(t testing.TB, o file.Options) blockdev.Device {
				f, err := os.CreateTemp(dir, "volume")
				if err == nil {
					err = f.Close()
				}
				if err != nil {
					t.Fatal(err)
				}
				d := open(t, f.Name(), o)
				paths[d] = f.Name()
				return d
			}
			blockdevtest.Run(t, blockdevtest.Options{
				Open: func(t testing.TB) blockdev.Device { return fresh(t, o) },
				Reopen: func(t testing.TB, d blockdev.Device) blockdev.Device {
					blockdevtest.Close(t, d)
					again := open(t, paths[d], o)
					paths[again] = paths[d]
					return again
				},
				ReadOnly: func(t testing.TB) blockdev.Device {
					d := fresh(t, o)
					m := blockdevtest.NewMemory(t, 8192)
					blockdevtest.Write(t, d, m, 0, []byte(string(make([]byte, 4095))+"x"), false)
					blockdevtest.Close(t, d)
					ro := o
					ro.ReadOnly = true
					return open(t, paths[d], ro)
				},
				Resize: func(t testing.TB, d blockdev.Device, size int64) {
					if err := os.Truncate(paths[d], size); err != nil {
						t.Fatal(err)
					}
				},
				Cheap: true,
			})
		})
	}
}

// directDir is a directory whose file system has O_DIRECT, which an old tmpfs has not.
func directDir(t *testing.T) string {
	dir := t.TempDir()
	d, err := file.Open(filepath.Join(dir, "probe"), file.Options{Size: 1 << 20, Logical: 4096, Direct: true})
	if errors.Is(err, blockdev.ErrUnsupported) {
		return disk.Mount(t, "ext4", 128<<20)
	}
	if err != nil {
		t.Fatal(err)
	}
	blockdevtest.Close(t, d)
	return dir
}
