package file_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/blockdevtest"
	"github.com/sluice-storage/sluice/blockdev/file"
	"github.com/sluice-storage/sluice/test/lib/faultfs"
)

// A medium that takes nothing does not hold up Close. What it was to take counts as lost from then on, also where the process
// ends at once; if the medium takes it after all, it does not.
func TestAMediumThatHangsDoesNotHoldUpClose(t *testing.T) {
	for name, end := range map[string]syscall.Errno{"takes it late": 0, "loses it": syscall.EIO} {
		t.Run(name, func(t *testing.T) {
			back := sync.OnceFunc(file.Patience(10 * time.Millisecond))
			defer back()
			f := faultfs.Mount(t)
			o := file.Options{Size: 1 << 20, Workers: 2, Loss: filepath.Join(t.TempDir(), "loss")}
			path := filepath.Join(f.Dir, "v")
			d := open(t, path, o)
			blockdevtest.Write(t, d, blockdevtest.NewMemory(t, 4096), 0, make([]byte, 4096), false)
			release := make(chan struct{})
			var held atomic.Bool
			f.Fault(func(c faultfs.Call) syscall.Errno {
				if c.Name != "fsync" || c.File != "v" || held.Swap(true) {
					return 0
				}
				<-release
				return end
			})
			if err := d.Settle(t.Context()); !errors.Is(err, blockdev.ErrMedium) {
				t.Errorf("settling ends with %v", err)
			}
			if err := d.Close(); !errors.Is(err, blockdev.ErrMedium) || !strings.Contains(err.Error(), "takes nothing any more") {
				t.Errorf("closing ends with %v", err)
			}
			if b, err := os.ReadFile(o.Loss); err != nil || !strings.Contains(string(b), "takes nothing any more") {
				t.Errorf("a process that ended now would leave the note %q, %v", b, err)
			}
			// Until it is known, the lock keeps the file from being served, and flushes from claiming what was written.
			if d, err := file.Open(path, o); !errors.Is(err, blockdev.ErrBusy) {
				_ = d.Close()
				t.Errorf("opened meanwhile: %v", err)
			}
			back() // the machine may be slow from now on
			close(release)
			begin := time.Now()
			for {
				var err error
				if d, err = file.Open(path, o); err == nil {
					break
				}
				if !errors.Is(err, blockdev.ErrBusy) || time.Since(begin) > time.Minute {
					t.Fatal(err)
				}
				time.Sleep(time.Millisecond) // a lock has no event
			}
			if err := blockdev.Lost(d); (err != nil) != (end != 0) {
				t.Errorf("the next opening finds %v", err)
			}
			if _, err := os.Stat(o.Loss); end == 0 && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("a note is left: %v", err)
			}
			blockdevtest.Close(t, d)
		})
	}
}

// hold makes the next fsync of v wait until release is called; begun is closed when it does.
func hold(t *testing.T, f *faultfs.FS) (begun chan struct{}, release func()) {
	begun, on := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	f.Fault(func(c faultfs.Call) syscall.Errno {
		if c.Name == "fsync" && c.File == "v" && !once.Swap(true) {
			close(begun)
			<-on
		}
		return 0
	})
	release = sync.OnceFunc(func() { close(on) })
	t.Cleanup(release)
	return begun, release
}

// A medium that is slow while the daemon makes a clone has lost nothing: hosts wait for it, and their flushes succeed when it has
// taken what it has.
func TestSettlingThatRunsOutOfPatienceIsNoLoss(t *testing.T) {
	back := sync.OnceFunc(file.Patience(10 * time.Millisecond))
	defer back()
	f := faultfs.Mount(t)
	o := file.Options{Size: 1 << 20, Workers: 2, Loss: filepath.Join(t.TempDir(), "loss")}
	d := open(t, filepath.Join(f.Dir, "v"), o)
	blockdevtest.Write(t, d, blockdevtest.NewMemory(t, 4096), 0, make([]byte, 4096), false)
	_, release := hold(t, f)
	for range 2 {
		if err := blockdev.Sync(t.Context(), d); !errors.Is(err, blockdev.ErrMedium) {
			t.Errorf("settling ends with %v", err)
		}
	}
	if _, err := os.Stat(o.Loss); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a loss is noted: %v", err)
	}
	if how := d.Path(); strings.Contains(how, "lost") {
		t.Errorf("the operator is told of %q", how)
	}
	back() // the machine may be slow from now on
	release()
	if err := blockdevtest.Do(t, d, &blockdev.Request{Op: blockdev.Flush}); err != nil {
		t.Errorf("a host's flush ends with %v", err)
	}
	blockdevtest.Close(t, d)
	d = open(t, filepath.Join(f.Dir, "v"), o)
	if err := blockdev.Lost(d); err != nil {
		t.Errorf("the next opening finds %v", err)
	}
	blockdevtest.Close(t, d)
}

// Who waits for what was written to be durable may give up; that is no loss either.
func TestSettlingEndsWithItsContext(t *testing.T) {
	f := faultfs.Mount(t)
	o := file.Options{Size: 1 << 20, Workers: 2, Loss: filepath.Join(t.TempDir(), "loss")}
	d := open(t, filepath.Join(f.Dir, "v"), o)
	blockdevtest.Write(t, d, blockdevtest.NewMemory(t, 4096), 0, make([]byte, 4096), false)
	begun, release := hold(t, f)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-begun
		cancel()
	}()
	if err := blockdev.Sync(ctx, d); !errors.Is(err, context.Canceled) {
		t.Errorf("settling ends with %v", err)
	}
	release()
	blockdevtest.Close(t, d)
	if _, err := os.Stat(o.Loss); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a loss is noted: %v", err)
	}
}

// Settle brings to the medium what is in the page cache, all of it.
func TestSettlingBringsAllToTheMedium(t *testing.T) {
	f := faultfs.Mount(t)
	path := filepath.Join(f.Dir, "v")
	d := open(t, path, file.Options{Size: 40 << 20, Workers: 2})
	m := blockdevtest.NewMemory(t, 4096)
	for _, off := range []int64{0, 20 << 20, 40<<20 - 4096} {
		blockdevtest.Write(t, d, m, off, []byte(strings.Repeat("a", 4096)), false)
	}
	if err := d.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.Cut(1)
	_ = d.Close() // without power
	f.Restore()
	b, err := os.ReadFile(path)
	if err != nil || strings.Count(string(b), "a") != 3*4096 {
		t.Errorf("%d bytes of 3 blocks are there, %v", strings.Count(string(b), "a"), err)
	}
}

// The host that wrote is owed a flush that fails for the loss. A flush of the daemon's own, and an opening that serves no host, leave
// that failure to the host.
func TestTheReportOfALossIsNotTakenByTheDaemon(t *testing.T) {
	o := file.Options{Size: 1 << 20, Loss: filepath.Join(t.TempDir(), "loss")}
	path := filepath.Join(t.TempDir(), "v")
	blockdevtest.Close(t, open(t, path, o))
	if err := os.WriteFile(o.Loss, nil, 0o600); err != nil { // of any device
		t.Fatal(err)
	}
	for range 2 {
		d := open(t, path, o)
		if err := blockdev.Sync(t.Context(), d); err != nil {
			t.Errorf("settling fails: %v", err)
		}
		blockdevtest.Close(t, d)
	}
	d := open(t, path, o)
	defer blockdevtest.Close(t, d)
	if err := blockdevtest.Do(t, d, &blockdev.Request{Op: blockdev.Flush}); !errors.Is(err, blockdev.ErrMedium) {
		t.Errorf("the first flush of a host ends with %v", err)
	}
}
