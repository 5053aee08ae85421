package filesystem

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/threads"
	"github.com/sluice-storage/sluice/test/lib/need"
)

// A WRITE takes no room, and no set-user-ID bits off a file, only where all of it goes over data that is there.
func TestAWriteOverDataIsKnown(t *testing.T) {
	const block = 4096
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	e := &Served{block: blockSize(int(f.Fd()))}
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

// Where files may have blocks in common, a WRITE over one that is another file's too takes room, until it has been made; one over a block of the file's
// own takes none. File systems that write elsewhere what is written over are not asked.
func TestAWriteOverABlockThatIsSharedTakesRoom(t *testing.T) {
	need.Root(t)
	need.Mount(t)
	need.Device(t, "/dev/loop-control")
	tool := need.Tool(t, "mkfs.xfs", "xfsprogs")
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
	}
	image, dir := filepath.Join(t.TempDir(), "image"), t.TempDir()
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 320<<20)); err != nil {
		t.Fatal(err)
	}
	run(tool, "-q", "-m", "reflink=1", image)
	run("mount", "-o", "loop", image, dir)
	t.Cleanup(func() { run("umount", dir) })
	e := Export{Path: "/a", Dir: dir}
	x, err := e.prepare()
	if err == nil {
		err = x.open()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer x.close()
	const block = 4096
	names := [2]string{filepath.Join(dir, "f"), filepath.Join(dir, "g")}
	var files [2]*os.File
	for i, name := range names {
		if files[i], err = os.Create(name); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = files[i].Close() }()
	}
	f := int(files[0].Fd())
	write := func(at, n int64) {
		t.Helper()
		if _, err := files[0].WriteAt(make([]byte, n*block), at*block); err != nil {
			t.Fatal(err)
		}
	}
	over := func(at, n int64) bool {
		t.Helper()
		var st unix.Stat_t
		if err := unix.Fstat(f, &st); err != nil {
			t.Fatal(err)
		}
		return x.overData(f, &st, at*block, int(n*block))
	}
	write(0, 16)
	if !over(0, 16) || !over(3, 5) {
		t.Error("a WRITE over data that is in the cache alone takes no room")
	}
	if err := files[0].Sync(); err != nil {
		t.Fatal(err)
	}
	if !over(0, 16) || !over(3, 5) {
		t.Error("a WRITE over data takes no room")
	}
	r := unix.FileCloneRange{Src_fd: int64(f), Src_offset: 4 * block, Src_length: 4 * block}
	if err := unix.IoctlFileCloneRange(int(files[1].Fd()), &r); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		at, n int64
		want  bool
	}{{0, 4, true}, {8, 8, true}, {4, 1, false}, {7, 1, false}, {0, 16, false}, {3, 2, false}, {7, 2, false}} {
		if over(c.at, c.n) != c.want {
			t.Errorf("a WRITE over blocks %d to %d, where 4 to 7 are shared: %v", c.at, c.at+c.n-1, !c.want)
		}
	}
	write(4, 4)
	if over(4, 4) {
		t.Error("the room for what was written over shared blocks has not been taken yet")
	}
	if err := files[0].Sync(); err != nil {
		t.Fatal(err)
	}
	if !over(4, 4) || !over(0, 16) {
		t.Error("blocks that the file has for itself again are taken for shared ones")
	}
}

// overData asks without allocating: it stands before each WRITE.
func TestToAskWhetherBlocksAreSharedAllocatesNothing(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if n := testing.AllocsPerRun(100, func() { alone(int(f.Fd()), 0, 4096) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

const apartEnv = "SLUICE_TEST_APART"

// noting is the kernel's storage, which notes as whom the last write was done.
type noting struct {
	kernel
	by who
}

func (n *noting) Pwrite(fd int, bufs [][]byte, k int, off int64, how Stability) (int, error) {
	n.by, _ = look(0)
	return n.kernel.Pwrite(fd, bufs, k, off, how)
}

// Where adapters are in use a user's WRITE is done as the user when it takes room or may take bits off the file, and only a WRITE over data
// is the daemon's. The use of adapters is never taken back, so the test has a process of its own.
func TestAWriteThatTakesRoomIsTheUsersWhereAdaptersAreInUse(t *testing.T) {
	if os.Getenv(apartEnv) == "" {
		need.Root(t)
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), apartEnv+"=1", "TMPDIR="+t.TempDir())
		if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	threads.KeepApart()
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := f.Chown(1000, 1000); err != nil {
		t.Fatal(err)
	}
	disk := &noting{}
	s := &FS{ids: newIdentities(), storage: disk}
	q := &Object{n: &node{e: &Served{block: blockSize(int(f.Fd()))}}, id: identity{uid: 1000, gid: 1000}}
	const n = 4096
	write := func(off int64) int {
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			t.Fatal(err)
		}
		if done, err := s.pwrite(int(f.Fd()), q, &st, &Write{Offset: uint64(off), Data: [][]byte{make([]byte, n)}, N: n}); done != n || err != nil {
			t.Fatal(done, err)
		}
		return disk.by.uid
	}
	if by := write(0); by != 1000 {
		t.Errorf("a write that makes the file longer is user %d's", by)
	}
	if by := write(0); by != 0 && q.n.e.block > 0 {
		t.Errorf("a write over data is user %d's", by)
	}
	if by := write(10 * n); by != 1000 {
		t.Errorf("a write that leaves a hole is user %d's", by)
	}
	if by := write(5 * n); by != 1000 {
		t.Errorf("a write into a hole is user %d's", by)
	}
	if err := f.Chmod(0o755 | os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	if by := write(0); by != 1000 {
		t.Errorf("a write to a file with a set-user-ID bit is user %d's", by)
	}
	if i, err := f.Stat(); err != nil || i.Mode()&os.ModeSetuid != 0 {
		t.Errorf("the bit is still there: %v, %v", i.Mode(), err)
	}
}
