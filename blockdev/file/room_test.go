package file_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/blockdevtest"
	"github.com/sluice-storage/sluice/blockdev/file"
	"github.com/sluice-storage/sluice/test/lib/disk"
)

func stat(t testing.TB, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st
}

func TestOpeningChangesNoByteAndATailBelowABlockIsLeftAlone(t *testing.T) {
	for _, n := range []int{1<<20 + 512, 1<<20 + 3584, 1<<20 - 512, 1<<20 + 1} {
		path := filepath.Join(t.TempDir(), "v")
		image := make([]byte, n)
		blockdevtest.Fill(image, uint64(n))
		if err := os.WriteFile(path, image, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, o := range []file.Options{{}, {Logical: 4096}, {Logical: 4096, Physical: 64 << 10}, {Logical: 4096, Thick: true}, {Atomic: true}} {
			d := open(t, path, o)
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, image) {
				t.Errorf("%d bytes opened with %+v: changed, %v", n, o, err)
			}
			g := d.Geometry()
			if err := blockdevtest.Do(t, d, &blockdev.Request{Op: blockdev.WriteZeroes, Unmap: true, Offset: g.Size - 8192, Length: 8192}); err != nil {
				t.Fatal(err)
			}
			clear(image[g.Size-8192 : g.Size])
			blockdevtest.Close(t, d)
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, image) {
				t.Errorf("%d bytes with %+v: what is behind the last block changed, %v", n, o, err)
			}
		}
	}
}

func TestDiscardOnABlockDeviceGivesSpaceBack(t *testing.T) {
	dev, backing := disk.Loop(t, 8<<20)
	d := open(t, dev, file.Options{})
	defer blockdevtest.Close(t, d)
	if g := d.Geometry(); g.DiscardUnit == 0 || g.DiscardZeroes || g.Thin {
		t.Fatalf("%+v", g)
	}
	m := blockdevtest.NewMemory(t, 4<<20)
	blockdevtest.Write(t, d, m, 0, bytes.Repeat([]byte{1}, 4<<20), true)
	full := stat(t, backing).Blocks
	if err := blockdevtest.Do(t, d, &blockdev.Request{Op: blockdev.Discard, Offset: 1 << 20, Length: 2 << 20}); err != nil {
		t.Fatal(err)
	}
	if half := stat(t, backing).Blocks; half > full*3/4 {
		t.Errorf("%d sectors before, %d after", full, half)
	}
	for off, want := range map[int64]byte{0: 1, 3 << 20: 1} {
		if got := blockdevtest.Read(t, d, m, off, 4096); !bytes.Equal(got, bytes.Repeat([]byte{want}, 4096)) {
			t.Errorf("at %d there is %d", off, got[0])
		}
	}
	// Zeroes are zeroes, by whatever means.
	for _, unmap := range []bool{false, true} {
		blockdevtest.Write(t, d, m, 0, bytes.Repeat([]byte{1}, 8192), true)
		if err := blockdevtest.Do(t, d, &blockdev.Request{Op: blockdev.WriteZeroes, Unmap: unmap, FUA: true, Length: 4096}); err != nil {
			t.Fatal(err)
		}
		if got := blockdevtest.Read(t, d, m, 0, 8192); !bytes.Equal(got[:4096], make([]byte, 4096)) || got[4096] != 1 {
			t.Errorf("unmap %v: %d and %d", unmap, got[0], got[4096])
		}
	}
}

func TestABlockDeviceHasNoLogBesideIt(t *testing.T) {
	dev, _ := disk.Loop(t, 8<<20)
	for _, o := range []file.Options{{Atomic: true}, {Atomic: true, Log: dev + "-log"}} {
		if d, err := file.Open(dev, o); err == nil {
			t.Errorf("a log beside %s was taken", dev)
			blockdevtest.Close(t, d)
		}
		for _, name := range []string{".redo", "-log"} {
			if _, err := os.Stat(dev + name); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s is there: %v", dev+name, err)
			}
		}
	}
	d := open(t, dev, file.Options{Atomic: true, Log: filepath.Join(t.TempDir(), "log")})
	blockdevtest.Close(t, d)
	blockdevtest.Close(t, open(t, dev, file.Options{}))
}

// fileSystem is 400 MiB of xfs, which shares blocks.
func fileSystem(t *testing.T) string { return disk.Mount(t, "xfs", 400<<20, "-m", "reflink=1") }

func TestGrowthWithoutRoomLeavesTheFileAsItWas(t *testing.T) {
	for _, kind := range []string{"xfs", "ext4"} {
		t.Run(kind, func(t *testing.T) {
			dir := disk.Mount(t, kind, 400<<20)
			path := filepath.Join(dir, "v")
			o := file.Options{Size: 1 << 20, Thick: true}
			d := open(t, path, o)
			m := blockdevtest.NewMemory(t, 4096)
			want := bytes.Repeat([]byte{3}, 4096)
			blockdevtest.Write(t, d, m, 1<<20-4096, want, true)
			before, g := stat(t, path), d.Geometry()
			if err := d.Grow(1 << 30); !errors.Is(err, blockdev.ErrNoSpace) {
				t.Errorf("grow: %v", err)
			}
			if now := d.Geometry(); now.Size != g.Size || now.Generation != g.Generation {
				t.Errorf("the device has %d bytes after growth that failed", now.Size)
			}
			check := func(what string) {
				t.Helper()
				if st := stat(t, path); st.Size != before.Size || st.Blocks > before.Blocks+64 {
					t.Errorf("%s: %d bytes in %d sectors, before %d in %d", what, st.Size, st.Blocks, before.Size, before.Blocks)
				}
			}
			check("grow")
			for _, size := range []int64{512 << 10, 1<<20 + 1} {
				if err := d.Grow(size); !errors.Is(err, blockdev.ErrRange) {
					t.Errorf("to %d bytes: %v", size, err)
				}
			}
			if got := blockdevtest.Read(t, d, m, 1<<20-4096, 4096); !bytes.Equal(got, want) {
				t.Error("data changed")
			}
			blockdevtest.Close(t, d)
			o.Size = 1 << 30
			if _, err := file.Open(path, o); !errors.Is(err, blockdev.ErrNoSpace) {
				t.Errorf("opened larger: %v", err)
			}
			check("open")
			if _, err := file.Open(path+"-new", o); !errors.Is(err, blockdev.ErrNoSpace) {
				t.Errorf("made: %v", err)
			}
			if _, err := os.Stat(path + "-new"); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("a file that could not be made is left: %v", err)
			}
			// The log of atomic writes cannot be made: that growth is undone too.
			o = file.Options{Size: 2 << 20, Thick: true, Atomic: true, Log: filepath.Join(dir, "none", "log")}
			if _, err := file.Open(path, o); err == nil {
				t.Error("a log that cannot be made was taken")
			}
			check("open without a log")
			o.Atomic, o.Size = false, 1<<20
			d = open(t, path, o)
			if err := d.Grow(2 << 20); err != nil || d.Geometry().Size != 2<<20 || d.Geometry().Generation == 0 || stat(t, path).Blocks < 4096 {
				t.Errorf("grow: %v, %+v, %d sectors", err, d.Geometry(), stat(t, path).Blocks)
			}
			blockdevtest.Close(t, d)
		})
	}
}

// A thick file's blocks are its own: nothing shares them, so that no later write has to find room.
func TestWhatIsThickStaysAllocated(t *testing.T) {
	dir := fileSystem(t)
	m := blockdevtest.NewMemory(t, 1<<20)
	b := bytes.Repeat([]byte{5}, 1<<20)
	thick := open(t, filepath.Join(dir, "thick"), file.Options{Size: 4 << 20, Thick: true})
	defer blockdevtest.Close(t, thick)
	thin := open(t, filepath.Join(dir, "thin"), file.Options{Size: 4 << 20})
	defer blockdevtest.Close(t, thin)
	for _, d := range []*file.Device{thick, thin} {
		blockdevtest.Write(t, d, m, 0, b, true)
	}
	if n, err := thick.CopyRange(thin, 0, 2<<20, 1<<20); n != 0 || !errors.Is(err, blockdev.ErrUnsupported) {
		t.Errorf("from thick: %d, %v", n, err)
	}
	if n, err := thin.CopyRange(thick, 0, 2<<20, 1<<20); n != 0 || !errors.Is(err, blockdev.ErrUnsupported) {
		t.Errorf("to thick: %d, %v", n, err)
	}
	clone := func(d *file.Device, name string) error {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		return d.Clone(f)
	}
	if err := clone(thick, "a"); !errors.Is(err, blockdev.ErrUnsupported) {
		t.Errorf("clone of thick: %v", err)
	}
	if err := clone(thin, "b"); err != nil {
		t.Errorf("clone of thin: %v", err)
	}
	for _, unmap := range []bool{false, true} {
		if err := blockdevtest.Do(t, thick, &blockdev.Request{Op: blockdev.WriteZeroes, Unmap: unmap, Length: 1 << 20}); err != nil {
			t.Fatal(err)
		}
	}
	if st := stat(t, filepath.Join(dir, "thick")); st.Blocks*512 < 4<<20 {
		t.Errorf("the thick file has %d sectors left", st.Blocks)
	}
}

func TestOpeningThickEndsSharing(t *testing.T) {
	dir := fileSystem(t)
	m := blockdevtest.NewMemory(t, 8<<20)
	d := open(t, filepath.Join(dir, "v"), file.Options{Size: 8 << 20})
	blockdevtest.Write(t, d, m, 0, bytes.Repeat([]byte{5}, 8<<20), true)
	f, err := os.Create(filepath.Join(dir, "clone"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := d.Clone(f); err != nil {
		t.Fatal(err)
	}
	blockdevtest.Close(t, d)
	free := func() int64 {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			t.Fatal(err)
		}
		return int64(st.Bfree) * st.Bsize
	}
	before := free()
	d = open(t, filepath.Join(dir, "v"), file.Options{Thick: true})
	defer blockdevtest.Close(t, d)
	if took := before - free(); took < 7<<20 {
		t.Errorf("opening a shared file thick took %d bytes", took)
	}
}

// A copy that runs while its device is closed ends, and never touches a file that got the descriptor's number.
func TestACopyNeverTouchesAFileThatIsOpenedAfterTheDeviceWasClosed(t *testing.T) {
	dir := t.TempDir()
	const size = 8 << 20
	for round := range 20 {
		a := open(t, filepath.Join(dir, "a"), file.Options{Size: size})
		b := open(t, filepath.Join(dir, "b"), file.Options{Size: size})
		m := blockdevtest.NewMemory(t, 1<<20)
		for off := int64(0); round == 0 && off < size; off += 1 << 20 {
			blockdevtest.Write(t, a, m, off, bytes.Repeat([]byte{9}, 1<<20), false)
		}
		begun, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			close(begun)
			for {
				if _, err := a.CopyRange(b, 0, 0, size); err != nil {
					if !errors.Is(err, blockdev.ErrClosed) {
						t.Error(err)
					}
					return
				}
			}
		}()
		<-begun
		blockdevtest.Close(t, b)
		other, err := os.OpenFile(filepath.Join(dir, "other"), os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		<-ended
		if fi, err := other.Stat(); err != nil || fi.Size() != 0 {
			t.Fatalf("the copy wrote to another file: %d bytes, %v", fi.Size(), err)
		}
		other.Close()
		blockdevtest.Close(t, a)
		if _, err := a.CopyRange(b, 0, 0, size); !errors.Is(err, blockdev.ErrClosed) {
			t.Errorf("copy of a closed device: %v", err)
		}
		if _, err := a.Space(); !errors.Is(err, blockdev.ErrClosed) {
			t.Errorf("space of a closed device: %v", err)
		}
	}
}
