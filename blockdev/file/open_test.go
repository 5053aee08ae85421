package file_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/blockdevtest"
	"github.com/sluice-storage/sluice/blockdev/file"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/test/lib/disk"
)

func TestOnlyOneMayServeAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "v")
	d := open(t, path, file.Options{Size: 1 << 20})
	for _, o := range []file.Options{{}, {ReadOnly: true}} {
		if _, err := file.Open(path, o); !errors.Is(err, blockdev.ErrBusy) {
			t.Errorf("opened a second time with %+v: %v", o, err)
		}
	}
	blockdevtest.Close(t, d)
	a, b := open(t, path, file.Options{ReadOnly: true}), open(t, path, file.Options{ReadOnly: true})
	blockdevtest.Close(t, a)
	blockdevtest.Close(t, b)
}

func TestOpenMakesGrowsAndNeverShrinks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "v")
	if _, err := file.Open(path, file.Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file without a size: %v", err)
	}
	blockdevtest.Close(t, open(t, path, file.Options{Size: 1 << 30}))
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Size != 1<<30 || st.Blocks > 64 || st.Mode&0o077 != 0 {
		t.Errorf("size %d in %d sectors, mode %o: %v", st.Size, st.Blocks, st.Mode, err)
	}
	d := open(t, path, file.Options{Size: 2 << 30})
	if g := d.Geometry(); g.Size != 2<<30 {
		t.Errorf("grown to %d", g.Size)
	}
	blockdevtest.Close(t, d)
	if _, err := file.Open(path, file.Options{Size: 1 << 30}); err == nil || !strings.Contains(err.Error(), "shrinking") {
		t.Errorf("a size below the file's: %v", err)
	}
	if st, err := os.Stat(path); err != nil || st.Size() != 2<<30 {
		t.Errorf("refused and changed all the same: %v %v", st, err)
	}
}

func TestOpenRefusesNonsense(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, o := range map[string]file.Options{
		dir:                             {},
		"/dev/null":                     {},
		empty:                           {},
		filepath.Join(dir, "a"):         {Size: 513},
		filepath.Join(dir, "b"):         {Size: 1 << 20, Logical: 1024},
		filepath.Join(dir, "c"):         {Size: 1 << 20, Logical: 4096, Physical: 512},
		filepath.Join(dir, "d"):         {Size: 1 << 20, Workers: -1},
		filepath.Join(dir, "e"):         {Size: -512},
		filepath.Join(dir, "no", "dir"): {Size: 1 << 20},
	} {
		if d, err := file.Open(path, o); err == nil {
			t.Errorf("%s with %+v was taken", path, o)
			blockdevtest.Close(t, d)
		}
	}
}

func TestAFileCutShortBelowUsIsAMediumError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "v")
	d := open(t, path, file.Options{Size: 1 << 20})
	defer blockdevtest.Close(t, d)
	if err := os.Truncate(path, 4096); err != nil {
		t.Fatal(err)
	}
	m := blockdevtest.NewMemory(t, 8192)
	r := &blockdev.Request{Op: blockdev.Read, Offset: 512 << 10, Length: 8192, Data: []mem.Span{m.All()}}
	if err := blockdevtest.Do(t, d, r); !errors.Is(err, blockdev.ErrMedium) {
		t.Errorf("got %v", err)
	}
}

func TestDiscardGivesSpaceBack(t *testing.T) {
	path := filepath.Join(disk.Mount(t, "ext4", 128<<20), "v")
	d := open(t, path, file.Options{Size: 8 << 20})
	defer blockdevtest.Close(t, d)
	if !blockdev.Can(d, blockdev.Discard) {
		t.Fatal("ext4 can punch holes, and the device cannot discard")
	}
	m := blockdevtest.NewMemory(t, 4<<20)
	b := make([]byte, 4<<20)
	blockdevtest.Fill(b, 1)
	blockdevtest.Write(t, d, m, 0, b, true)
	blocks := func() int64 {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks
	}
	full := blocks()
	if err := blockdevtest.Do(t, d, &blockdev.Request{Op: blockdev.Discard, Offset: 1 << 20, Length: 2 << 20}); err != nil {
		t.Fatal(err)
	}
	if half := blocks(); half > full*3/4 {
		t.Errorf("%d sectors before, %d after", full, half)
	}
}

func TestSubmitAfterCloseFails(t *testing.T) {
	d := open(t, filepath.Join(t.TempDir(), "v"), file.Options{Size: 1 << 20})
	blockdevtest.Close(t, d)
	var wg sync.WaitGroup
	for range 3 {
		wg.Add(1)
		d.Submit(&blockdev.Request{Op: blockdev.Flush, Done: func(r *blockdev.Request) {
			if !errors.Is(r.Err, blockdev.ErrClosed) {
				t.Errorf("flush: %v", r.Err)
			}
			wg.Done()
		}})
	}
	wg.Wait()
}

func BenchmarkRead(b *testing.B) {
	for _, n := range []int{4096, 128 << 10} {
		b.Run(map[int]string{4096: "4K", 128 << 10: "128K"}[n], func(b *testing.B) {
			d, err := file.Open(filepath.Join(b.TempDir(), "v"), file.Options{Size: 64 << 20})
			if err != nil {
				b.Fatal(err)
			}
			defer blockdevtest.Close(b, d)
			m := blockdevtest.NewMemory(b, n)
			for off := int64(0); off < 64<<20; off += int64(n) {
				blockdevtest.Write(b, d, m, off, m.All().Bytes(), false)
			}
			done := make(chan struct{}, 1)
			r := &blockdev.Request{Op: blockdev.Read, Length: int64(n), Data: []mem.Span{m.All()},
				Done: func(*blockdev.Request) { done <- struct{}{} }}
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for i := int64(0); b.Loop(); i += int64(n) {
				r.Offset = i % (64 << 20)
				d.Submit(r)
				<-done
			}
		})
	}
}

func BenchmarkWrite(b *testing.B) {
	for _, n := range []int{4096, 128 << 10} {
		b.Run(map[int]string{4096: "4K", 128 << 10: "128K"}[n], func(b *testing.B) {
			d, err := file.Open(filepath.Join(b.TempDir(), "v"), file.Options{Size: 64 << 20})
			if err != nil {
				b.Fatal(err)
			}
			defer blockdevtest.Close(b, d)
			m := blockdevtest.NewMemory(b, n)
			const depth = 16
			free := make(chan *blockdev.Request, depth)
			for range depth {
				free <- &blockdev.Request{Op: blockdev.Write, Length: int64(n), Data: []mem.Span{m.All()},
					Done: func(r *blockdev.Request) { free <- r }}
			}
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for i := int64(0); b.Loop(); i += int64(n) {
				r := <-free
				r.Offset = i % (64 << 20)
				d.Submit(r)
			}
			for range depth {
				<-free
			}
		})
	}
}
