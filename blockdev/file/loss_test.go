package file_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/blockdevtest"
	"github.com/sluice-storage/sluice/blockdev/file"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/test/lib/faultfs"
)

// failNext fails the next n calls of a name to one file.
func failNext(f *faultfs.FS, name, path string, n int64, errno syscall.Errno) *atomic.Int64 {
	left := new(atomic.Int64)
	left.Store(n)
	f.Fault(func(c faultfs.Call) syscall.Errno {
		if c.Name != name || c.File != path || left.Add(-1) < 0 {
			return 0
		}
		return errno
	})
	return left
}

func submit(t *testing.T, d blockdev.Device, r blockdev.Request, m *blockdevtest.Memory) error {
	t.Helper()
	if r.Length > 0 && (r.Op == blockdev.Write || r.Op == blockdev.Read || r.Op == blockdev.CompareWrite) {
		r.Data = []mem.Span{m.All().Cut(0, int(r.Length))}
	}
	if r.Op == blockdev.CompareWrite {
		r.Compare = r.Data
	}
	return blockdevtest.Do(t, d, &r)
}

// The kernel tells of a lost writeback once, whoever waits for the medium: each request that does so is told here, and
// every flush after it, and the first one after the device is opened again.
func TestALossThatAnotherRequestHeardOfFailsTheNextFlush(t *testing.T) {
	for name, who := range map[string]blockdev.Request{
		"a write with FUA":               {Op: blockdev.Write, FUA: true, Length: 4096},
		"a compare-and-write with FUA":   {Op: blockdev.CompareWrite, FUA: true, Length: 4096},
		"zeroes with FUA":                {Op: blockdev.WriteZeroes, FUA: true, Length: 4096},
		"an atomic write, then finished": {Op: blockdev.Write, Atomic: true, Length: 4096},
		"a flush":                        {Op: blockdev.Flush},
	} {
		t.Run(name, func(t *testing.T) {
			f := faultfs.Mount(t)
			o := file.Options{Size: 1 << 20, Workers: 2, Atomic: true, Loss: filepath.Join(t.TempDir(), "loss")}
			path := filepath.Join(f.Dir, "v")
			d := open(t, path, o)
			m := blockdevtest.NewMemory(t, 64<<10)
			if err := blockdev.Lost(d); err != nil {
				t.Fatal(err)
			}
			blockdevtest.Write(t, d, m, 512<<10, make([]byte, 4096), false) // what is lost
			clear(m.All().Bytes())
			failNext(f, "fsync", "v", 1, syscall.EIO)
			if err := submit(t, d, who, m); !errors.Is(err, blockdev.ErrMedium) && !who.Atomic {
				t.Errorf("the medium failed and the answer was %v", err)
			}
			for range 3 {
				if err := blockdevtest.Do(t, d, &blockdev.Request{Op: blockdev.Flush}); !errors.Is(err, blockdev.ErrMedium) {
					t.Errorf("a flush claims what was lost: %v", err)
				}
			}
			if !strings.Contains(d.Path(), "lost acknowledged writes") {
				t.Errorf("the operator is told %q", d.Path())
			}
			if err := blockdev.Lost(d); err != nil {
				t.Errorf("what was lost before the opening changed: %v", err)
			}
			blockdevtest.Close(t, d)
			d = open(t, path, o)
			if err := blockdev.Lost(d); !errors.Is(err, blockdev.ErrMedium) {
				t.Errorf("the next opening knows nothing of the loss: %v", err)
			}
			if err := blockdevtest.Do(t, d, &blockdev.Request{Op: blockdev.Flush}); !errors.Is(err, blockdev.ErrMedium) {
				t.Errorf("the first flush of the next opening claims what was lost: %v", err)
			}
			blockdevtest.Flush(t, d)
			blockdevtest.Close(t, d)
			d = open(t, path, o)
			defer blockdevtest.Close(t, d)
			if err := blockdev.Lost(d); err != nil {
				t.Errorf("a loss that was told is told again: %v", err)
			}
			blockdevtest.Flush(t, d)
		})
	}
}

// Where a writeback comes to EINTR (of FUSE) that is told once as well: who asks again hears that all is well, and it is not.
func TestALossThatIsToldAsAnInterruptionFailsEachFlush(t *testing.T) {
	for name, who := range map[string]blockdev.Request{"a flush": {Op: blockdev.Flush}, "a write with FUA": {Op: blockdev.Write, FUA: true, Length: 4096}} {
		t.Run(name, func(t *testing.T) {
			f := faultfs.Mount(t)
			d := open(t, filepath.Join(f.Dir, "v"), file.Options{Size: 1 << 20, Workers: 2, Loss: filepath.Join(t.TempDir(), "loss")})
			defer blockdevtest.Close(t, d)
			m := blockdevtest.NewMemory(t, 4096)
			blockdevtest.Write(t, d, m, 512<<10, make([]byte, 4096), false) // what is lost
			failNext(f, "fsync", "v", 1, syscall.EINTR)
			if err := submit(t, d, who, m); !errors.Is(err, blockdev.ErrMedium) {
				t.Errorf("the medium was interrupted and the answer was %v", err)
			}
			if err := blockdevtest.Do(t, d, &blockdev.Request{Op: blockdev.Flush}); !errors.Is(err, blockdev.ErrMedium) {
				t.Errorf("a flush claims what was lost: %v", err)
			}
		})
	}
}

// Who has taken the loss over tells of it by name; the note is done with.
func TestALossThatWasTakenOverFailsNoFlush(t *testing.T) {
	o := file.Options{Size: 1 << 20, Loss: filepath.Join(t.TempDir(), "loss")}
	path := filepath.Join(t.TempDir(), "v")
	blockdevtest.Close(t, open(t, path, o))
	if err := os.WriteFile(o.Loss, nil, 0o600); err != nil { // of any device
		t.Fatal(err)
	}
	for _, lost := range []bool{true, false} {
		d := open(t, path, o)
		if err := blockdev.Lost(d); (err != nil) != lost {
			t.Errorf("the loss: %v", err)
		}
		blockdev.TakeLoss(d, true)
		blockdevtest.Flush(t, d)
		blockdevtest.Close(t, d)
	}
}

// A writeback that fails when the device is closed has nobody to tell, so the next opening tells.
func TestALossThatCloseMeetsFailsTheNextFlush(t *testing.T) {
	f := faultfs.Mount(t)
	o := file.Options{Size: 1 << 20, Workers: 2, Loss: filepath.Join(t.TempDir(), "loss")}
	path := filepath.Join(f.Dir, "v")
	d := open(t, path, o)
	blockdevtest.Write(t, d, blockdevtest.NewMemory(t, 4096), 0, make([]byte, 4096), false)
	failNext(f, "fsync", "v", 1, syscall.EIO)
	if err := d.Close(); !errors.Is(err, blockdev.ErrMedium) {
		t.Errorf("close: %v", err)
	}
	d = open(t, path, o)
	if err := blockdev.Lost(d); err == nil {
		t.Error("the loss is forgotten")
	}
	if err := blockdevtest.Do(t, d, &blockdev.Request{Op: blockdev.Flush}); !errors.Is(err, blockdev.ErrMedium) {
		t.Errorf("flush: %v", err)
	}
	blockdevtest.Close(t, d)
}

// An error of the request itself is no loss of others: it stops no flush.
func TestWhatIsNoLossStopsNoFlush(t *testing.T) {
	for name, errno := range map[string]syscall.Errno{"a refused call": syscall.EINVAL, "no room": syscall.ENOSPC} {
		t.Run(name, func(t *testing.T) {
			f := faultfs.Mount(t)
			d := open(t, filepath.Join(f.Dir, "v"), file.Options{Size: 1 << 20, Workers: 2, Loss: filepath.Join(t.TempDir(), "loss")})
			defer blockdevtest.Close(t, d)
			m := blockdevtest.NewMemory(t, 4096)
			failNext(f, "write", "v", 2, errno)
			if err := submit(t, d, blockdev.Request{Op: blockdev.Write, FUA: true, Length: 4096}, m); err == nil || errors.Is(err, blockdev.ErrMedium) {
				t.Errorf("got %v", err)
			}
			f.Fault(nil)
			blockdevtest.Flush(t, d)
		})
	}
}

// The note is of one device: another file at its path has lost nothing, and a note that cannot be read counts.
func TestTheNoteOfALoss(t *testing.T) {
	dir := t.TempDir()
	note := filepath.Join(dir, "loss")
	path := filepath.Join(dir, "v")
	lost := func(o file.Options) error {
		t.Helper()
		d := open(t, path, o)
		defer blockdevtest.Close(t, d)
		return blockdev.Lost(d)
	}
	if err := os.WriteFile(note, []byte("broken\nanother\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := lost(file.Options{Size: 1 << 20, Loss: note}); err != nil {
		t.Errorf("a new file: %v", err)
	}
	if err := os.WriteFile(note, []byte("broken\nanother\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := lost(file.Options{Loss: note}); err != nil {
		t.Errorf("another file's loss: %v", err)
	}
	if err := errors.Join(os.Remove(note), os.Mkdir(note, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := lost(file.Options{Loss: note}); err == nil {
		t.Error("a note that cannot be read is none")
	}
}

// A note that cannot be written is tried again by each flush, and its want is said, by Close at the latest.
func TestANoteOfALossIsTriedUntilItIsWritten(t *testing.T) {
	f := faultfs.Mount(t)
	dir := filepath.Join(t.TempDir(), "later")
	o := file.Options{Size: 1 << 20, Workers: 2, Loss: filepath.Join(dir, "loss")}
	path := filepath.Join(f.Dir, "v")
	lose := func() *file.Device {
		t.Helper()
		d := open(t, path, o)
		failNext(f, "fsync", "v", 1, syscall.EIO)
		if err := blockdevtest.Do(t, d, &blockdev.Request{Op: blockdev.Flush}); !errors.Is(err, blockdev.ErrMedium) || !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the flush that lost: %v", err)
		}
		return d
	}
	d := lose()
	if err := d.Close(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("closed without a note: %v", err)
	}
	d = lose()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := blockdevtest.Do(t, d, &blockdev.Request{Op: blockdev.Flush}); !errors.Is(err, blockdev.ErrMedium) || errors.Is(err, os.ErrNotExist) {
		t.Errorf("the next flush: %v", err)
	}
	blockdevtest.Close(t, d)
	d = open(t, path, o)
	if blockdev.Lost(d) == nil {
		t.Error("no note was written")
	}
	blockdevtest.Close(t, d)
}

// An atomic write of which the medium took a part is finished at once, or nothing is acknowledged behind it and no read
// sees the part until the next opening finishes it.
func TestAnAtomicWriteThatMeetsAnErrorIsWhole(t *testing.T) {
	const n = 8192
	want := bytes.Repeat([]byte{2}, n)
	for name, failures := range map[string]int64{"finished at once": 1, "finished at the next opening": 1000} {
		for _, call := range []string{"write", "fsync"} {
			t.Run(name+" after a failed "+call, func(t *testing.T) {
				f := faultfs.Mount(t)
				path := filepath.Join(f.Dir, "v")
				o := file.Options{Size: 1 << 20, Workers: 2, Atomic: true}
				d := open(t, path, o)
				m := blockdevtest.NewMemory(t, 64<<10)
				blockdevtest.Write(t, d, m, 0, bytes.Repeat([]byte{1}, 3*n), true)
				copy(m.All().Bytes(), want)
				failNext(f, call, "v", failures, syscall.EIO)
				err := submit(t, d, blockdev.Request{Op: blockdev.Write, Atomic: true, Length: n}, m)
				f.Fault(nil)
				if failures == 1 {
					if err != nil || !bytes.Equal(blockdevtest.Read(t, d, m, 0, n), want) {
						t.Errorf("%v, and not all of it is there", err)
					}
					blockdevtest.Close(t, d)
					return
				}
				if !errors.Is(err, blockdev.ErrMedium) {
					t.Errorf("got %v", err)
				}
				for _, r := range []blockdev.Request{
					{Op: blockdev.Write, FUA: true, Length: 512}, {Op: blockdev.Write, Offset: 512 << 10, Length: 512}, {Op: blockdev.Write, Atomic: true, Length: 512},
					{Op: blockdev.CompareWrite, Length: 512}, {Op: blockdev.WriteZeroes, Length: 512}, {Op: blockdev.Discard, Length: 4096}, {Op: blockdev.Flush},
					{Op: blockdev.Read, Length: 512}, {Op: blockdev.Read, Offset: n - 512, Length: 1024},
				} {
					if err := submit(t, d, r, m); !errors.Is(err, blockdev.ErrMedium) {
						t.Errorf("%v of %d bytes at %d was acknowledged: %v", r.Op, r.Length, r.Offset, err)
					}
				}
				if !bytes.Equal(blockdevtest.Read(t, d, m, n, n), bytes.Repeat([]byte{1}, n)) {
					t.Error("what lies beside it cannot be read")
				}
				blockdevtest.Close(t, d)
				d = open(t, path, o)
				if got := blockdevtest.Read(t, d, m, 0, 2*n); !bytes.Equal(got[:n], want) || got[n] != 1 {
					t.Errorf("after the next opening %d, %d, %d", got[0], got[n-1], got[n])
				}
				blockdevtest.Close(t, d)
			})
		}
	}
}

// A write that waits for the range of an atomic write, whose slot cannot be wiped, would be undone by the log: it is not
// acknowledged.
func TestNothingIsAcknowledgedBehindAnAtomicWriteThatFailed(t *testing.T) {
	f := faultfs.Mount(t)
	path := filepath.Join(f.Dir, "v")
	d := open(t, path, file.Options{Size: 1 << 20, Workers: 4, Atomic: true})
	m := blockdevtest.NewMemory(t, 64<<10)
	held, release := make(chan struct{}), make(chan struct{})
	var writes atomic.Int64
	f.Fault(func(c faultfs.Call) syscall.Errno {
		if c.File != "v.redo" || c.Name != "write" {
			return 0
		}
		if writes.Add(1) == 1 {
			close(held)
			<-release
			return 0 // the record is written, and never wiped
		}
		return syscall.EIO
	})
	done := make(chan error, 4)
	start := func(r blockdev.Request) {
		r.Length = 4096
		r.Data = []mem.Span{m.Span(4096)}
		r.Compare = r.Data
		r.Done = func(r *blockdev.Request) { done <- r.Err }
		d.Submit(&r)
	}
	start(blockdev.Request{Op: blockdev.Write, Atomic: true})
	<-held
	start(blockdev.Request{Op: blockdev.Write, FUA: true})
	start(blockdev.Request{Op: blockdev.CompareWrite, FUA: true})
	start(blockdev.Request{Op: blockdev.WriteZeroes, FUA: true})
	close(release)
	for range 4 {
		if err := <-done; !errors.Is(err, blockdev.ErrMedium) {
			t.Errorf("acknowledged: %v", err)
		}
	}
	f.Fault(nil)
	blockdevtest.Close(t, d)
}
