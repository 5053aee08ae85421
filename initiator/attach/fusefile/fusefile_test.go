package fusefile

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/initiator/attach/fusemount"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/test/lib/need"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// held is a volume that answers when it is let.
type held struct {
	pool *mem.Pool
	size int64
	asks chan struct{} // one for each request
	open chan struct{}
	fail error
}

func (v *held) Memory() *mem.Pool { return v.pool }
func (v *held) Geometry() blockdev.Geometry {
	return blockdev.Geometry{Size: v.size, Logical: 512, Physical: 4096}
}

func (v *held) Do(ctx context.Context, r *blockdev.Request) error {
	if v.asks != nil {
		v.asks <- struct{}{}
	}
	select {
	case <-v.open:
	case <-ctx.Done():
		return ctx.Err()
	}
	return v.fail
}

func mounted(t *testing.T, v *held) string {
	t.Helper()
	need.FUSE(t)
	dir := t.TempDir()
	m, err := Mount(dir, "v", v, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(m.Unmount(false), v.pool.Close()); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(dir, "v")
}

// A request for which there is no memory waits, and does not fail for want of it.
func TestARequestBeyondTheMemoryWaits(t *testing.T) {
	open := make(chan struct{})
	close(open)
	v := &held{pool: mem.NewPool(1), size: 64 << 20, asks: make(chan struct{}, 1024), open: open}
	var all []*mem.Buf
	for {
		b, err := v.pool.Get(mem.MaxBuf)
		if err != nil {
			break
		}
		all = append(all, b)
	}
	waits := make(chan struct{})
	f := &file{v: v, quota: v.pool.Quota(1 << 40), turn: make(chan struct{}, 1)}
	go func() { // beside the mount: a write there takes a lock of the kernel's, and a failing test must be able to end
		defer close(waits)
		if n, no := f.Write(context.Background(), nil, make([]byte, 1<<20), 0); n != 1<<20 || no != 0 {
			t.Errorf("a write that waited: %d, %v", n, no)
		}
	}()
	for deadline := time.Now().Add(time.Minute); v.pool.Stats().Waiting == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Error("it does not wait")
			break
		}
	}
	for _, b := range all {
		b.Release()
	}
	<-waits
	f.quota.Close()
	if err := v.pool.Close(); err != nil {
		t.Error(err)
	}
}

// A signal that does not kill changes nothing for who reads or writes; one that kills ends the wait.
func TestASignalDoesNotInterruptAWrite(t *testing.T) {
	need.Tool(t, "dd", "coreutils")
	for _, kill := range []bool{false, true} {
		v := &held{pool: mem.NewPool(1), size: 1 << 20, asks: make(chan struct{}, 1024), open: make(chan struct{})}
		path := mounted(t, v)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		dd := exec.CommandContext(ctx, "dd", "if=/dev/zero", "of="+path, "bs=4096", "count=1", "conv=notrunc", "status=none")
		var out bytes.Buffer
		dd.Stderr = &out
		if err := dd.Start(); err != nil {
			t.Fatal(err)
		}
		<-v.asks
		if kill {
			if err := dd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := dd.Wait(); err == nil {
				t.Error("it was killed and ended well")
			}
			close(v.open)
			continue
		}
		// dd prints its counts for SIGUSR1, whose handler may not make the write fail.
		if err := dd.Process.Signal(syscall.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * lookEvery) // the request is looked at meanwhile, and must not be given up
		close(v.open)
		if err := dd.Wait(); err != nil {
			t.Errorf("%v: %s", err, out.String())
		}
	}
}

// A full target is a full disk, and a write-protected one is read-only.
func TestTheTargetsRefusalsHaveTheirNumbers(t *testing.T) {
	open := make(chan struct{})
	close(open)
	for fail, want := range map[error]syscall.Errno{blockdev.ErrNoSpace: syscall.ENOSPC, blockdev.ErrReadOnly: syscall.EROFS, blockdev.ErrMedium: syscall.EIO} {
		f, err := os.OpenFile(mounted(t, &held{pool: mem.NewPool(1), size: 1 << 20, open: open, fail: fail}), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(make([]byte, 4096), 0); !errors.Is(err, want) {
			t.Errorf("%v is %v, want %v", fail, err, want)
		}
		f.Close()
	}
}

// What is open cannot be unmounted, and is counted.
func TestAnOpenFileKeepsTheMount(t *testing.T) {
	need.FUSE(t)
	open := make(chan struct{})
	close(open)
	v := &held{pool: mem.NewPool(1), size: 1 << 20, open: open}
	m, err := Mount(t.TempDir(), "v", v, false)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join(m.dir, "v"))
	if err != nil {
		t.Fatal(err)
	}
	if n := m.Opens(); n != 1 {
		t.Errorf("%d are open", n)
	}
	if err := m.Unmount(false); !errors.Is(err, fusemount.ErrBusy) {
		t.Errorf("unmounting what is open: %v", err)
	}
	f.Close()
	for deadline := time.Now().Add(time.Minute); m.Opens() != 0; time.Sleep(10 * time.Millisecond) { // the kernel's release is late by its nature
		if time.Now().After(deadline) {
			t.Fatal("a closed file is still counted")
		}
	}
	if err := errors.Join(m.Unmount(false), v.pool.Close()); err != nil {
		t.Error(err)
	}
	select {
	case <-m.Gone():
	default:
		t.Error("it is not gone")
	}
}
