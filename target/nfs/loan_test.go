package nfs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// lendingWays are those in which a large READ over TCP can be answered.
var lendingWays = map[string]struct {
	opt     rpcserver.Options
	storage func() nfs.Storage
	lends   bool
}{
	"at once":                {lends: true},
	"by workers":             {opt: rpcserver.Options{NoInline: true}, lends: true},
	"switched off":           {opt: rpcserver.Options{NoLoan: true}},
	"refused by the files":   {storage: func() nfs.Storage { return &refusing{} }},
	"unknown to the storage": {storage: func() nfs.Storage { return &forgetful{} }},
}

// refusing is a file system without pages to lend.
type refusing struct {
	forgetful
	asked atomic.Int32
}

func (r *refusing) Lend(int, int, int, int64, bool) (int, error) {
	r.asked.Add(1)
	return 0, unix.EINVAL
}

func TestLargeReadsOfAllKinds(t *testing.T) {
	for name, way := range lendingWays {
		t.Run(name, func(t *testing.T) {
			var o nfs.Options
			if way.storage != nil {
				o.Storage = way.storage()
			}
			s := start(t, "tcp", o, way.opt, nfs.Export{Rights: open})
			const size = 3<<20 + 12345
			want := random(size, 7)
			clear(want[1<<20 : 1<<20+300_001])
			h, err := os.Create(filepath.Join(s.dir, "f"))
			must(t, err)
			// A hole where the zeros are.
			_, err = h.WriteAt(want[:1<<20], 0)
			must(t, err)
			_, err = h.WriteAt(want[1<<20+300_001:], 1<<20+300_001)
			must(t, err)
			must(t, h.Close())
			v := s.mount(t)
			f, err := v.OpenFile(context.Background(), "f", os.O_RDONLY, 0)
			must(t, err)
			var wg sync.WaitGroup
			for _, n := range []int{1, 128 << 10, 256<<10 - 1, 256 << 10, 777_777, 1<<20 - 1, 1 << 20, 2<<20 + 5} {
				for _, off := range []int{0, 1, 4096, 1<<20 - 100, 1<<20 + 4095, size - 300_000, size - 1, size, size + 5_000_000} {
					if off > 4097 && n > 1<<20 {
						continue
					}
					wg.Go(func() {
						got := make([]byte, n)
						k, err := f.ReadAt(got, int64(off))
						should := max(min(n, size-off), 0)
						if k != should || (should < n) != errors.Is(err, io.EOF) || err != nil && !errors.Is(err, io.EOF) {
							t.Errorf("%d at %d: %d, %v", n, off, k, err)
						} else if k > 0 && !bytes.Equal(got[:k], want[off:off+k]) {
							t.Errorf("%d at %d: other bytes than the file's", n, off)
						}
					})
				}
			}
			wg.Wait()
			if st := s.rpc.Stats(); (st.Lent > 0) != way.lends {
				t.Errorf("%d bytes lent", st.Lent)
			}
			if r, ok := o.Storage.(*refusing); ok && (r.asked.Load() == 0 || r.asked.Load() > 64) {
				t.Errorf("a file system that lends nothing was asked %d times", r.asked.Load())
			}
		})
	}
}

// A file that is cut and grows again while it is read: each reply is whole, and holds nothing but what was in the file at
// some time, and zeros.
func TestReadsOfAFileThatIsBeingTruncated(t *testing.T) {
	for name, way := range lendingWays {
		if !way.lends {
			continue
		}
		t.Run(name, func(t *testing.T) {
			s := start(t, "tcp", nfs.Options{}, way.opt, nfs.Export{Rights: open})
			v := s.mount(t)
			path := filepath.Join(s.dir, "f")
			full := bytes.Repeat([]byte{0xa5}, 2<<20+17)
			must(t, os.WriteFile(path, full, 0o644))
			f, err := v.OpenFile(context.Background(), "f", os.O_RDONLY, 0)
			must(t, err)
			h, err := os.OpenFile(path, os.O_WRONLY, 0)
			must(t, err)
			var stop atomic.Bool
			var writer, readers sync.WaitGroup
			writer.Go(func() {
				for i := 0; !stop.Load(); i++ {
					must(t, h.Truncate(int64(i*70_001%len(full))))
					_, err := h.WriteAt(full[:50_000], int64(i*50_003%len(full)))
					must(t, err)
				}
			})
			for r := range 4 {
				readers.Go(func() {
					p := make([]byte, 1<<20)
					for i := range 25 {
						off := int64((r*333_333 + i*123_457) % (2 << 20))
						n, err := f.ReadAt(p, off)
						if err != nil && !errors.Is(err, io.EOF) {
							t.Errorf("at %d: %d, %v", off, n, err)
							return
						}
						if k := bytes.Count(p[:n], []byte{0}) + bytes.Count(p[:n], []byte{0xa5}); k != n {
							t.Errorf("at %d: %d of %d bytes were never in the file", off, n-k, n)
							return
						}
					}
				})
			}
			readers.Wait()
			stop.Store(true)
			writer.Wait()
			must(t, h.Close())
			must(t, os.WriteFile(path, full, 0o644))
			got, err := v.ReadFile("f")
			if err != nil || !bytes.Equal(got, full) {
				t.Fatalf("in the end: %d bytes, %v", len(got), err)
			}
		})
	}
}

// What is not in the page cache is lent too, by a worker.
func TestLargeReadsOfWhatIsNotCached(t *testing.T) {
	d := newDisk(t, "mkfs.ext4", "-F", "-q") // a tmpfs would keep its pages
	s := start(t, "tcp", nfs.Options{}, rpcserver.Options{}, nfs.Export{Rights: open, Dir: d.dir})
	v := s.mount(t)
	want := random(4<<20, 9)
	for k := range 3 {
		// A file of its own: the kernel keeps pages that TCP has sent for as long as it puts off the end of their packets.
		name := fmt.Sprint("f", k)
		h, err := os.Create(filepath.Join(s.dir, name))
		must(t, err)
		_, err = h.Write(want)
		must(t, err)
		must(t, h.Sync())
		eventually(t, "no page of the file is cached", func() bool {
			must(t, unix.Fadvise(int(h.Fd()), 0, 0, unix.FADV_DONTNEED))
			return pagesCached(t, h, len(want)) == 0
		})
		must(t, h.Close())
		got, err := v.ReadFile(name)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
	}
	// The client may have the last bytes before the server has counted them.
	eventually(t, "12 MiB are lent", func() bool { return s.rpc.Stats().Lent >= 12<<20 })
}

func pagesCached(t *testing.T, f *os.File, n int) (cached int) {
	t.Helper()
	b, err := unix.Mmap(int(f.Fd()), 0, n, unix.PROT_READ, unix.MAP_SHARED)
	must(t, err)
	defer func() { must(t, unix.Munmap(b)) }()
	in := make([]byte, (n+os.Getpagesize()-1)/os.Getpagesize())
	if _, _, e := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&b[0])), uintptr(n), uintptr(unsafe.Pointer(&in[0]))); e != 0 {
		t.Fatal(e)
	}
	for _, p := range in {
		cached += int(p & 1)
	}
	return cached
}

// The attributes of a READ whose pages were lent are of before: a client that finds newer ones must look again.
func TestAttributesOfALargeRead(t *testing.T) {
	s := start(t, "tcp", nfs.Options{}, rpcserver.Options{}, nfs.Export{Rights: open})
	v := s.mount(t)
	must(t, os.WriteFile(filepath.Join(s.dir, "f"), random(1<<20, 3), 0o640))
	o, err := v.Self().Lookup(context.Background(), v.Root(), "f")
	must(t, err)
	a := nfs3.RangeArgs{FH: o.FH, Count: 1 << 20}
	r, data := s.raw(t, 0, 0).read(&a)
	if r.Status != nfs3.OK || !r.EOF || r.Count != 1<<20 || len(data) != 1<<20 || !r.Attr.Set || fmt.Sprint(r.Attr.Attr) != fmt.Sprint(o.Attr) {
		t.Errorf("%v, EOF %v, %d bytes, %+v; LOOKUP said %+v", r.Status, r.EOF, r.Count, r.Attr, o.Attr)
	}
	a = nfs3.RangeArgs{FH: o.FH, Count: 1<<20 - 1}
	if r, _ := s.raw(t, 0, 0).read(&a); r.EOF || r.Count != 1<<20-1 {
		t.Errorf("one less: EOF %v, %d bytes", r.EOF, r.Count)
	}
}

func (r *raw) read(a *nfs3.RangeArgs) (res nfs3.ReadRes, data []byte) {
	r.t.Helper()
	x, err := r.call(nfs3.Prog, nfs3.Vers, uint32(nfs3.ProcRead), a.Append(nil))
	must(r.t, err)
	res.Parse(x)
	data = x.Fixed(int(res.Len))
	must(r.t, x.Err())
	return res, data
}
