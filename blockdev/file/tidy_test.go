package file_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/sluice-storage/sluice/blockdev/blockdevtest"
	"github.com/sluice-storage/sluice/blockdev/file"
	"github.com/sluice-storage/sluice/blockdev/internal/redo"
	"github.com/sluice-storage/sluice/mem"
)

// A log is room of the state directory's that a block device takes for as long as it is served, and longer where a crash has left a
// write in it that is not made yet.
func TestALogGoesWithItsDeviceUnlessAWriteIsInIt(t *testing.T) {
	dir, m := filepath.Join(t.TempDir(), "notes[1]"), blockdevtest.NewMemory(t, 4096)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, pending := range map[string]bool{"served": false, "gone": false, "interrupted": true} {
		f, err := os.Create(filepath.Join(dir, name+".redo"))
		if err != nil {
			t.Fatal(err)
		}
		err = f.Truncate(2 * redo.SlotSize)
		if pending {
			err = errors.Join(err, redo.New(store{f}, "its device").Begin(1, make([]byte, redo.SlotSize), 8192, []mem.Span{m.All()}, 4096))
		}
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "gone.loss"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	left, err := file.Tidy(dir, func(id string) bool { return id == "served" })
	if want := []string{filepath.Join(dir, "interrupted.redo")}; err != nil || !slices.Equal(left, want) {
		t.Errorf("%q are told of, %v", left, err)
	}
	var names []string
	l, err := os.ReadDir(dir)
	for _, e := range l {
		names = append(names, e.Name())
	}
	if want := []string{"gone.loss", "interrupted.redo", "served.redo"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("%q stay, want %q; %v", names, want, err)
	}
}
