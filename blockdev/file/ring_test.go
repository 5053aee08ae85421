package file_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/blockdevtest"
	"github.com/sluice-storage/sluice/blockdev/file"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/test/lib/need"
)

// tampered opens a volume past the page cache, of which f sees each completion.
func tampered(t *testing.T, o file.Options, f func(file.Completion) bool) (d *file.Device, path string) {
	t.Helper()
	need.IOUring(t)
	path = filepath.Join(directDir(t), "v")
	if o.Logical, o.Direct = 4096, true; o.Size == 0 {
		o.Size = 2 << 20
	}
	back := file.Tamper(f)
	d = open(t, path, o)
	back()
	if q, _ := blockdev.QueueOf(d); !q.Kernel || !strings.Contains(d.Path(), "by io_uring") {
		t.Fatalf("%s; %v", d.Path(), q.Why)
	}
	return d, path
}

func content(t *testing.T, path string, off int64, n int) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, n)
	if _, err := f.ReadAt(b, off); err != nil {
		t.Fatal(err)
	}
	return b
}

// Each kind of completion that can come, of each kind of request: what the engine makes of it, and what it costs later promises.
func TestEachWayACompletionCanEnd(t *testing.T) {
	again, fails := error(nil), blockdev.ErrMedium
	for _, c := range []struct {
		res              int32 // 1 stands for half of what was asked for
		read, write, fua error
		lost             bool // after the write with FUA a flush fails
	}{
		{res: 0, read: again, write: again, fua: again},
		{res: 1, read: again, write: again, fua: again},
		{res: -int32(unix.EAGAIN), read: again, write: again, fua: again},
		{res: -int32(unix.ECANCELED), read: again, write: again, fua: again},
		{res: -int32(unix.EINVAL), read: again, write: again, fua: again},
		{res: -int32(unix.EOPNOTSUPP), read: again, write: again, fua: again},
		{res: -int32(unix.ENOMEM), read: again, write: again, fua: again},
		{res: -int32(unix.EINTR), read: again, write: again, fua: fails, lost: true},
		{res: -int32(unix.EIO), read: fails, write: fails, fua: fails, lost: true},
		{res: -int32(unix.ENODATA), read: fails, write: fails, fua: fails, lost: true},
		// Where there is room after all, it was an earlier write that had found none.
		{res: -int32(unix.ENOSPC), read: blockdev.ErrNoSpace, write: blockdev.ErrNoSpace, fua: fails, lost: true},
	} {
		name := "half"
		switch {
		case c.res == 0:
			name = "nothing"
		case c.res < 0:
			name = unix.Errno(-c.res).Error()
		}
		for _, op := range []string{"read", "write", "FUA"} {
			t.Run(name+" of a "+op, func(t *testing.T) {
				var armed atomic.Bool
				d, path := tampered(t, file.Options{}, func(k file.Completion) bool {
					if armed.CompareAndSwap(true, false) {
						if *k.Res() = c.res; c.res == 1 {
							*k.Res() = int32(k.Request().Length / 2)
						}
					}
					return true
				})
				m := blockdevtest.NewMemory(t, 1<<20)
				b := make([]byte, 64<<10)
				blockdevtest.Fill(b, 7)
				const off = 128 << 10
				blockdevtest.Write(t, d, m, off, b, false)
				r := &blockdev.Request{Op: blockdev.Read, Offset: off, Length: int64(len(b)), Data: []mem.Span{m.All().Cut(0, len(b))}}
				want, got := c.read, r.Data[0].Bytes()
				if op != "read" {
					r.Op, r.FUA, want = blockdev.Write, op == "FUA", map[string]error{"write": c.write, "FUA": c.fua}[op]
					blockdevtest.Fill(b, 8)
					copy(got, b)
				} else {
					clear(got)
				}
				before, _ := blockdev.QueueOf(d)
				armed.Store(true)
				err := blockdevtest.Do(t, d, r)
				if !errors.Is(err, want) || want == nil && err != nil {
					t.Errorf("%v, want %v", err, want)
				}
				if err == nil && !bytes.Equal(got, b) {
					t.Error("the data is wrong")
				}
				if err == nil && !bytes.Equal(content(t, path, off, len(b)), b) {
					t.Error("the file's data is wrong")
				}
				after, _ := blockdev.QueueOf(d)
				byWorker := want == nil || op == "FUA"
				if (after.Again > before.Again) != byWorker {
					t.Errorf("a worker has finished %d requests", after.Again-before.Again)
				}
				lost := c.lost && op == "FUA"
				if ferr := blockdevtest.Do(t, d, &blockdev.Request{Op: blockdev.Flush}); errors.Is(ferr, blockdev.ErrMedium) != lost {
					t.Errorf("flush: %v, lost: %v", ferr, lost)
				}
				// The request is as good as new.
				if op == "read" || !lost {
					if err := blockdevtest.Do(t, d, r); err != nil {
						t.Errorf("once more: %v", err)
					}
				}
				if err := d.Close(); (err != nil) != lost && !lost {
					t.Error(err)
				}
			})
		}
	}
}

// What a write with FUA is told of may be the loss of an earlier one, and is told once: it is kept for the next opening also where the device
// has come to take no writes meanwhile.
func TestALossThatIsToldBehindABreak(t *testing.T) {
	for _, errno := range []unix.Errno{unix.EIO, unix.ENOSPC, unix.EINTR} {
		t.Run(errno.Error(), func(t *testing.T) {
			h := &held{came: make(chan struct{}, 16)}
			o := file.Options{Loss: filepath.Join(t.TempDir(), "loss")}
			d, path := tampered(t, o, h.see)
			m := blockdevtest.NewMemory(t, 4096)
			h.set(true)
			wrote := make(chan error, 1)
			d.Submit(&blockdev.Request{Op: blockdev.Write, FUA: true, Length: 4096, Data: []mem.Span{m.All()}, Done: func(r *blockdev.Request) { wrote <- r.Err }})
			<-h.came
			h.set(false)
			file.Break(d, errors.New("an atomic write is half done"))
			*h.all[0].Res() = -int32(errno)
			h.deliver(1)
			if err := <-wrote; !errors.Is(err, blockdev.ErrMedium) {
				t.Errorf("the write: %v", err)
			}
			_ = d.Close() // an error, or none: it is the note that counts
			again := open(t, path, o)
			defer blockdevtest.Close(t, again)
			if blockdev.Lost(again) == nil {
				t.Error("the next opening knows of no loss")
			}
		})
	}
}

// held withholds completions while it is told to.
type held struct {
	mu   sync.Mutex
	on   bool
	all  []file.Completion
	came chan struct{}
}

func (h *held) see(c file.Completion) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.on {
		return true
	}
	h.all = append(h.all, c)
	h.came <- struct{}{}
	return false
}

func (h *held) set(on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.on = on
}

func (h *held) deliver(n int) {
	h.mu.Lock()
	l := h.all[:n]
	h.all = h.all[n:]
	h.mu.Unlock()
	for _, c := range l {
		c.Deliver()
	}
}

// A completion that is late keeps Close waiting, and a compare-and-write of its range, and nothing else.
func TestALateCompletion(t *testing.T) {
	h := &held{came: make(chan struct{}, 16)}
	d, path := tampered(t, file.Options{}, h.see)
	m := blockdevtest.NewMemory(t, 1<<20)
	old, b := make([]byte, 4096), bytes.Repeat([]byte{5}, 4096)
	h.set(true)
	wrote := make(chan error, 1)
	w := &blockdev.Request{Op: blockdev.Write, Length: 4096, Data: []mem.Span{m.Span(4096)}, Done: func(r *blockdev.Request) { wrote <- r.Err }}
	copy(w.Data[0].Bytes(), b)
	d.Submit(w)
	<-h.came
	h.set(false)
	compared := make(chan error, 1)
	cw := &blockdev.Request{Op: blockdev.CompareWrite, Length: 4096, Compare: []mem.Span{m.Span(4096)}, Data: []mem.Span{m.Span(4096)},
		Done: func(r *blockdev.Request) { compared <- r.Err }}
	copy(cw.Compare[0].Bytes(), b)
	copy(cw.Data[0].Bytes(), bytes.Repeat([]byte{6}, 4096))
	d.Submit(cw)
	// Elsewhere reads, writes and flushes go on.
	blockdevtest.Write(t, d, blockdevtest.NewMemory(t, 4096), 1<<20, b, true)
	blockdevtest.Flush(t, d)
	if got := blockdevtest.Read(t, d, blockdevtest.NewMemory(t, 8192), 1<<20, 8192); !bytes.Equal(got, append(b, old...)) {
		t.Error("a read elsewhere has other bytes")
	}
	// So do those of the same range, behind the compare-and-write or not.
	if got := blockdevtest.Read(t, d, blockdevtest.NewMemory(t, 4096), 0, 4096); !bytes.Equal(got, b) {
		t.Error("a read of what is being written has other bytes")
	}
	select {
	case err := <-compared:
		t.Fatalf("the compare-and-write has not waited: %v", err)
	case err := <-wrote:
		t.Fatalf("the write has ended without its completion: %v", err)
	default:
	}
	h.deliver(1)
	if err := <-wrote; err != nil {
		t.Error(err)
	}
	if err := <-compared; err != nil {
		t.Error(err)
	}
	h.set(true)
	d.Submit(w)
	<-h.came
	closed := make(chan error, 1)
	go func() { closed <- d.Close() }()
	for !errors.Is(d.Scrub(), blockdev.ErrClosed) { // until it has begun
		runtime.Gosched()
	}
	select {
	case err := <-closed:
		t.Fatalf("Close has not waited: %v", err)
	default:
	}
	h.deliver(1)
	if err := <-wrote; err != nil {
		t.Error(err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	// What holds the file is gone with it.
	blockdevtest.Close(t, open(t, path, file.Options{}))
}

// A read whose bytes a compare-and-write may have changed while they were read is read again.
func TestAReadAcrossACompareAndWrite(t *testing.T) {
	h := &held{came: make(chan struct{}, 16)}
	d, _ := tampered(t, file.Options{}, h.see)
	defer blockdevtest.Close(t, d)
	m := blockdevtest.NewMemory(t, 1<<20)
	h.set(true)
	done := make(chan error, 1)
	r := &blockdev.Request{Op: blockdev.Read, Length: 8192, Data: []mem.Span{m.Span(8192)}, Done: func(r *blockdev.Request) { done <- r.Err }}
	d.Submit(r)
	<-h.came
	h.set(false)
	cw := &blockdev.Request{Op: blockdev.CompareWrite, Length: 8192, Compare: []mem.Span{m.Span(8192)}, Data: []mem.Span{m.Span(8192)}}
	copy(cw.Data[0].Bytes(), bytes.Repeat([]byte{9}, 8192))
	if err := blockdevtest.Do(t, d, cw); err != nil {
		t.Fatal(err)
	}
	clear(r.Data[0].Bytes()[4096:]) // half of it was read before, half after
	copy(r.Data[0].Bytes(), bytes.Repeat([]byte{9}, 4096))
	h.deliver(1)
	if err := <-done; err != nil || !bytes.Equal(r.Data[0].Bytes(), bytes.Repeat([]byte{9}, 8192)) {
		t.Errorf("half of a compare-and-write was seen: %v", err)
	}
}

// What is beyond the depth waits, and none is lost: also where the device is closed meanwhile.
func TestMoreRequestsThanTheDepth(t *testing.T) {
	h := &held{came: make(chan struct{}, 4*file.RingDepth), on: true}
	d, _ := tampered(t, file.Options{}, h.see)
	m := blockdevtest.NewMemory(t, 4096)
	const n = 2*file.RingDepth + 3
	var ends sync.WaitGroup
	ends.Add(n)
	var bad atomic.Int64
	for i := range n {
		d.Submit(&blockdev.Request{Op: blockdev.Read, Offset: int64(i%512) * 4096, Length: 4096, Data: []mem.Span{m.All()}, Done: func(r *blockdev.Request) {
			if r.Err != nil {
				bad.Add(1)
			}
			ends.Done()
		}})
	}
	for range file.RingDepth {
		<-h.came
	}
	if q, _ := blockdev.QueueOf(d); q.UnderWay != file.RingDepth {
		t.Errorf("%d are under way, %d is the depth", q.UnderWay, file.RingDepth)
	}
	h.deliver(1)
	<-h.came // of the first that waited
	closed := make(chan error, 1)
	go func() { closed <- d.Close() }()
	h.set(false)
	h.deliver(file.RingDepth)
	ends.Wait()
	if err := <-closed; err != nil || bad.Load() > 0 {
		t.Errorf("%v; %d requests failed", err, bad.Load())
	}
}

// deferrer keeps what it is offered until it is told.
type deferrer struct {
	by   blockdev.Performer
	r    *blockdev.Request
	asks int
}

func (k *deferrer) Defer(p blockdev.Performer, r *blockdev.Request) bool {
	k.asks++
	if k.r != nil && (k.r != r || k.by != p) {
		panic("another request than that which is kept")
	}
	k.by, k.r = p, r
	return true
}

// A batch of a submitter that performs leaves with one system call, at the latest when it is as long as a batch may be.
func TestABatchIsOneSystemCall(t *testing.T) {
	for name, o := range map[string]file.Options{"direct": {Direct: true}, "page cache": {NoInline: true}} {
		t.Run(name, func(t *testing.T) {
			need.IOUring(t)
			o.Size, o.Logical = 2<<20, 4096
			d := open(t, filepath.Join(directDir(t), "v"), o)
			m := blockdevtest.NewMemory(t, 4096)
			var k deferrer
			var ends sync.WaitGroup
			submit := func(n int, after blockdev.Flusher) {
				ends.Add(n)
				for i := range n {
					d.Submit(&blockdev.Request{Op: blockdev.Read, Offset: int64(i) * 4096, Length: 4096, Data: []mem.Span{m.All()}, Deferrer: &k, After: after,
						Done: func(*blockdev.Request) { ends.Done() }})
				}
			}
			var f flushes
			submit(6, &f)
			if q, _ := blockdev.QueueOf(d); q.Calls != 0 || q.UnderWay != 6 || k.asks != 6 {
				t.Errorf("before the submitter performs: %+v, asked %d times", q, k.asks)
			}
			k.by.Perform(k.r)
			ends.Wait()
			if q, _ := blockdev.QueueOf(d); q.Calls != 1 || q.Requests != 6 {
				t.Errorf("%+v", q)
			}
			submit(40, nil)
			k.by.Perform(k.r)
			ends.Wait()
			blockdevtest.Close(t, d)
			k.by.Perform(k.r) // late: nothing
			if n := f.n.Load(); n < 1 || n > 6 {
				t.Errorf("flushed %d times behind 6 requests", n)
			}
		})
	}
}

type flushes struct{ n atomic.Int64 }

func (f *flushes) Flush() { f.n.Add(1) }

// One volume is served by io_uring and by workers with the same bytes; without the page cache's answer too.
func TestByWorkersTheSame(t *testing.T) {
	for _, o := range []file.Options{{}, {Direct: true}, {NoInline: true}} {
		t.Run(fmt.Sprintf("%+v", o), func(t *testing.T) {
			path := filepath.Join(directDir(t), "v")
			o.Size, o.Logical = 2<<20, 4096
			m := blockdevtest.NewMemory(t, 1<<20)
			b := make([]byte, 256<<10)
			for i, without := range []bool{false, true, false} {
				o.NoRing = without
				d := open(t, path, o)
				if q, some := blockdev.QueueOf(d); !some || without && (q.Kernel || q.Why != nil) {
					t.Errorf("%+v", q)
				}
				if i > 0 && !bytes.Equal(blockdevtest.Read(t, d, m, 64<<10, len(b)), b) {
					t.Error("other bytes")
				}
				blockdevtest.Fill(b, uint64(i))
				blockdevtest.Write(t, d, m, 64<<10, b, i == 1)
				blockdevtest.Close(t, d)
			}
		})
	}
}
