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
	unit := max(block, e.block)
	write := func(at, n int64) {
		if _, err := f.WriteAt(make([]byte, n), at); err != nil {
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
	write(0, 6*unit)
	known := e.block > 0 // elsewhere none is
	for _, c := range []struct {
		off, n int64
		want   bool
	}{{0, unit, known}, {100, unit, known}, {0, 6 * unit, known}, {5*unit + 1, unit - 1, known}, {5 * unit, unit + 1, false}, {6 * unit, 1, false}} {
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
	if over(0, unit) != known {
		t.Error("without the bits it is one again")
	}
	// Two units of nothing, and room beyond the end that hides them.
	if !known {
		return
	}
	for _, c := range []struct {
		mode   uint32
		off, n int64
	}{{unix.FALLOC_FL_KEEP_SIZE | unix.FALLOC_FL_PUNCH_HOLE, 2 * unit, 2 * unit}, {unix.FALLOC_FL_KEEP_SIZE, 6 * unit, 4 * unit}} {
		if err := unix.Fallocate(int(f.Fd()), c.mode, c.off, c.n); err != nil {
			t.Fatal(err)
		}
		if over(unit, 2*unit) || over(2*unit, 1) || over(3*unit, 2*unit) {
			t.Error("a hole is taken for data")
		}
	}
	if !over(0, 2*unit) || !over(4*unit, 2*unit) {
		t.Error("data beside a hole is taken for none")
	}
	// A file system whose answer is the kernel's general one, all data, is told by the room that the file takes.
	sparse := unix.Stat_t{Size: 4 * unit, Blocks: 3 * unit / 512, Mode: st.Mode}
	if e.overData(int(f.Fd()), &sparse, 0, int(unit)) {
		t.Error("a file that takes less room than its size has no holes")
	}
}
