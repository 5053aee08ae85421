package file_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/blockdevtest"
	"github.com/sluice-storage/sluice/blockdev/file"
	"github.com/sluice-storage/sluice/blockdev/mem"
	imem "github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/test/lib/disk"
)

// ranges reads what is mapped.
func ranges(t *testing.T, d blockdev.Device) []blockdev.Extent {
	t.Helper()
	r := &blockdev.Request{Op: blockdev.Status, Length: d.Geometry().Size, Extents: make([]blockdev.Extent, 0, 64)}
	if err := blockdevtest.Do(t, d, r); err != nil {
		t.Fatal(err)
	}
	return r.Extents
}

func TestCopyRange(t *testing.T) {
	dir := t.TempDir()
	a := open(t, filepath.Join(dir, "a"), file.Options{Size: 4 << 20})
	b := open(t, filepath.Join(dir, "b"), file.Options{Size: 4 << 20})
	defer blockdevtest.Close(t, a)
	defer blockdevtest.Close(t, b)
	m := blockdevtest.NewMemory(t, 4<<20)
	data := make([]byte, 1<<20)
	blockdevtest.Fill(data, 1)
	blockdevtest.Write(t, a, m, 1<<20, data, false)
	blockdevtest.Write(t, b, m, 0, bytes.Repeat([]byte{7}, 4<<20), false)
	want := bytes.Clone(blockdevtest.Read(t, a, m, 0, 3<<20))
	if n, err := a.CopyRange(b, 0, 1<<20, 3<<20); n != 3<<20 || err != nil {
		t.Fatal(n, err)
	}
	got := blockdevtest.Read(t, b, m, 1<<20, 3<<20)
	if !bytes.Equal(got, want) {
		t.Error("the copy differs")
	}
	if got := blockdevtest.Read(t, b, m, 0, 1<<20); !bytes.Equal(got, bytes.Repeat([]byte{7}, 1<<20)) {
		t.Error("something else was written")
	}
	// Where there is a hole in the one there is one in the other.
	if es := ranges(t, b); len(es) != 4 || es[1].Mapped || es[1].Length != 1<<20 || !es[2].Mapped {
		t.Errorf("extents %+v", es)
	}
	// Within one file, not aligned to its file system's blocks.
	if n, err := b.CopyRange(b, 2<<20+512, 512, 1<<20-1024); n != 1<<20-1024 || err != nil {
		t.Fatal(n, err)
	}
	if got := blockdevtest.Read(t, b, m, 512, 1<<20-1024); !bytes.Equal(got, data[512:1<<20-512]) {
		t.Error("the copy within a file differs")
	}
}

func TestCopyRangeRefusals(t *testing.T) {
	dir := t.TempDir()
	a := open(t, filepath.Join(dir, "a"), file.Options{Size: 1 << 20})
	defer blockdevtest.Close(t, a)
	big := open(t, filepath.Join(dir, "big"), file.Options{Size: 1 << 20, Logical: 4096})
	defer blockdevtest.Close(t, big)
	blockdevtest.Close(t, open(t, filepath.Join(dir, "ro"), file.Options{Size: 1 << 20}))
	ro := open(t, filepath.Join(dir, "ro"), file.Options{ReadOnly: true})
	defer blockdevtest.Close(t, ro)
	other, err := mem.Open(mem.Options{Size: 1 << 20, Logical: 512})
	if err != nil {
		t.Fatal(err)
	}
	defer blockdevtest.Close(t, other)
	for _, c := range []struct {
		to          blockdev.Device
		from, at, n int64
		want        error
	}{
		{other, 0, 0, 4096, blockdev.ErrUnsupported},
		{ro, 0, 0, 4096, blockdev.ErrReadOnly},
		{a, 0, 2048, 4096, blockdev.ErrUnsupported}, // overlaps
		{a, 1 << 20, 0, 512, blockdev.ErrRange},
		{a, 0, 1 << 20, 512, blockdev.ErrRange},
		{a, -512, 0, 512, blockdev.ErrRange},
		{a, 0, 8192, -512, blockdev.ErrRange},
		{a, 256, 8192, 512, blockdev.ErrRange},
		{big, 512, 0, 4096, blockdev.ErrRange},
		{a, 0, 8192, 0, nil},
	} {
		if n, err := a.CopyRange(c.to, c.from, c.at, c.n); n != 0 || !errors.Is(err, c.want) {
			t.Errorf("%d to %d, %d bytes: %d, %v, want %v", c.from, c.at, c.n, n, err, c.want)
		}
	}
}

// A clone is the volume as it is, and a file system that shares no blocks says so.
func TestClone(t *testing.T) {
	for kind, shares := range map[string]bool{"xfs": true, "ext4": false} {
		t.Run(kind, func(t *testing.T) { testClone(t, disk.Mount(t, kind, 400<<20), shares) })
	}
}

func testClone(t *testing.T, dir string, shares bool) {
	d := open(t, filepath.Join(dir, "v"), file.Options{Size: 1 << 20})
	defer blockdevtest.Close(t, d)
	m := blockdevtest.NewMemory(t, 8192)
	blockdevtest.Write(t, d, m, 4096, bytes.Repeat([]byte{9}, 4096), true)
	f, err := os.Create(filepath.Join(dir, "clone"))
	if err != nil {
		t.Fatal(err)
	}
	err = d.Clone(f)
	if cerr := f.Close(); cerr != nil {
		t.Fatal(cerr)
	}
	if !shares {
		if !errors.Is(err, blockdev.ErrUnsupported) {
			t.Errorf("got %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	c := open(t, filepath.Join(dir, "clone"), file.Options{})
	defer blockdevtest.Close(t, c)
	if got := blockdevtest.Read(t, c, m, 0, 8192); !bytes.Equal(got, append(make([]byte, 4096), bytes.Repeat([]byte{9}, 4096)...)) {
		t.Error("the clone differs")
	}
}

// Copies both ways between two files, beside compare-and-writes on both, end.
func TestCopiesInBothDirections(t *testing.T) {
	dir := t.TempDir()
	var ds [2]*file.Device
	for i, n := range []string{"a", "b"} {
		ds[i] = open(t, filepath.Join(dir, n), file.Options{Size: 2 << 20})
		defer blockdevtest.Close(t, ds[i])
	}
	var wg sync.WaitGroup
	for i := range 4 {
		m := blockdevtest.NewMemory(t, 8192)
		wg.Go(func() {
			for range 50 {
				if i < 2 {
					if _, err := ds[i].CopyRange(ds[1-i], 0, 1<<20, 1<<20); err != nil {
						t.Error(err)
						return
					}
					continue
				}
				r := &blockdev.Request{Op: blockdev.CompareWrite, Offset: 1 << 20, Length: 4096, Data: []imem.Span{m.All().Cut(0, 4096)}, Compare: []imem.Span{m.All().Cut(4096, 4096)}}
				if err := blockdev.Do(t.Context(), ds[i-2], r); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestSpace(t *testing.T) {
	d := open(t, filepath.Join(t.TempDir(), "v"), file.Options{Size: 8 << 20})
	defer blockdevtest.Close(t, d)
	before, err := blockdev.SpaceOf(d)
	if err != nil || before.Available <= 0 {
		t.Fatal(before, err)
	}
	m := blockdevtest.NewMemory(t, 1<<20)
	b := make([]byte, 1<<20)
	blockdevtest.Fill(b, 1)
	blockdevtest.Write(t, d, m, 0, b, false)
	blockdevtest.Flush(t, d)
	if after, err := blockdev.SpaceOf(d); err != nil || after.Used-before.Used < 1<<20 {
		t.Errorf("%+v, then %+v, %v", before, after, err)
	}
}
