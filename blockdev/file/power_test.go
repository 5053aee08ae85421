package file_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/blockdevtest"
	"github.com/sluice-storage/sluice/blockdev/file"
	"github.com/sluice-storage/sluice/test/lib/faultfs"
)

// powerLoss runs the engine as it ships on a file system whose power is cut, in the middle of any of its calls, and once
// more in the middle of the recovery.
func powerLoss(t *testing.T, f *faultfs.FS, seed uint64, direct bool, lie func(faultfs.Call) bool) error {
	t.Helper()
	path := filepath.Join(f.Dir, "v")
	for _, name := range []string{path, path + ".redo"} {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	o := file.Options{Size: blockdevtest.CutSize + 4096, Workers: 3, Atomic: true, Direct: direct}
	d := open(t, path, o)
	f.Lie(lie)
	last := d
	again := func(t testing.TB) blockdev.Device {
		_ = d.Close() // an error: there is no power
		rng := rand.New(rand.NewPCG(seed, 1))
		f.Restore()
		f.CutAfter(rng.IntN(60), seed)
		if d, err := file.Open(path, o); err == nil {
			_ = d.Close()
		} else if !f.IsOff() {
			t.Fatal(err)
		}
		f.Cut(seed)
		f.Restore()
		d, err := file.Open(path, o)
		if err != nil {
			t.Fatal(err)
		}
		last = d
		return d
	}
	err := blockdevtest.PowerCutOf(t, seed, blockdevtest.Plant{
		Dev: d, Cut: f.Cut, CutAfter: f.CutAfter, Again: again,
		IsOff: func(error) bool { return f.IsOff() },
	})
	f.Lie(nil)
	blockdevtest.Close(t, last)
	return err
}

// What FUA and flush acknowledged is there after a loss of power, and atomic writes in full or not at all.
func TestPowerLossTearsNothing(t *testing.T) {
	for _, direct := range []bool{false, true} {
		f := faultfs.Mount(t)
		for seed := range uint64(24) {
			if err := powerLoss(t, f, seed, direct, nil); err != nil {
				t.Fatalf("direct %v, seed %d: %v", direct, seed, err)
			}
		}
	}
}

// The test above sees each step that is left out or not waited for.
func TestPowerLossIsNoticed(t *testing.T) {
	const wipe = 512
	for name, lie := range map[string]func(faultfs.Call) bool{
		"no record in the log":                 func(c faultfs.Call) bool { return c.Name == "write" && c.File == "v.redo" && c.Len > wipe },
		"a slot that stays":                    func(c faultfs.Call) bool { return c.Name == "write" && c.File == "v.redo" && c.Len == wipe },
		"a log that is not waited for":         func(c faultfs.Call) bool { return c.Name == "fsync" && c.File == "v.redo" },
		"data in place that is not waited for": func(c faultfs.Call) bool { return c.Name == "fsync" && c.File == "v" },
	} {
		for _, direct := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, direct %v", name, direct), func(t *testing.T) {
				f := faultfs.Mount(t)
				for seed := range uint64(200) {
					if err := powerLoss(t, f, seed, direct, lie); err != nil {
						t.Logf("seed %d: %v", seed, err)
						return
					}
				}
				t.Error("not seen")
			})
		}
	}
}
