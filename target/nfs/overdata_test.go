package nfs

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A WRITE takes no room, and no set-user-ID bits off a file, only where all of it goes over data that is there.
func TestAWriteOverDataIsKnown(t *testing.T) {
	const block = 4096
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	e := &export{block: blockSize(int(f.Fd()))}
	if e.block <= 0 || block%e.block != 0 && e.block%block != 0 {
		t.Fatalf("blocks of %d bytes", e.block)
	}
	unit := max(block, e.block)
	// Two units of data, two of nothing, two of data.
	for _, at := range []int64{0, 4 * unit} {
		if _, err := f.WriteAt(make([]byte, 2*unit), at); err != nil {
			t.Fatal(err)
		}
	}
	var st unix.Stat_t
	over := func(off, n int64) bool {
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			t.Fatal(err)
		}
		return e.overData(int(f.Fd()), &st, off, int(n))
	}
	for _, c := range []struct {
		off, n int64
		want   bool
	}{
		{0, unit, true}, {0, 2 * unit, true}, {100, unit, true}, {unit, 1, true}, {4 * unit, 2 * unit, true},
		{unit, unit + 1, false}, {2 * unit, unit, false}, {3 * unit, 2 * unit, false}, {5 * unit, unit + 1, false}, {6 * unit, 1, false},
		{0, 6 * unit, false},
	} {
		if got := over(c.off, c.n); got != c.want {
			t.Errorf("%d bytes at %d of units of %d: %v", c.n, c.off, unit, got)
		}
	}
	for _, mode := range []os.FileMode{0o755 | os.ModeSetuid, 0o755 | os.ModeSetgid} {
		if err := f.Chmod(mode); err != nil {
			t.Fatal(err)
		}
		if over(0, unit) {
			t.Errorf("%v: the bits would stay", mode)
		}
	}
	if err := f.Chmod(0o644); err != nil {
		t.Fatal(err)
	}
	if !over(0, unit) {
		t.Error("without the bits it is one again")
	}
	e.mayHang = true
	if over(0, unit) {
		t.Error("a server of another machine's asks who writes")
	}
}
