package nfs_test

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	infs "github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/initiator/rpcclient"
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/target/filesystem"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// forgetful is storage with a volatile cache: cut takes back every write that no sync covered.
type forgetful struct {
	mu   sync.Mutex
	undo []undo
	fail error // the next Sync's answer
}

type undo struct {
	ino  uint64
	path string
	off  int64
	old  []byte
	size int64
}

func (f *forgetful) Pread(fd int, bufs [][]byte, n int, off int64, _ bool) (int, error) {
	done := 0
	for _, b := range bufs {
		b = b[:min(len(b), n-done)]
		k, err := unix.Pread(fd, b, off+int64(done))
		done += k
		if err != nil || k < len(b) {
			return done, err
		}
	}
	return done, nil
}

func (f *forgetful) Pwrite(fd int, bufs [][]byte, n int, off int64, sync filesystem.Stability) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, err
	}
	path, err := os.Readlink("/proc/self/fd/" + itoa(uint16(fd)))
	if err != nil {
		return 0, err
	}
	if sync == filesystem.Unstable {
		u := undo{ino: st.Ino, path: path, off: off, size: st.Size}
		if whole, err := os.ReadFile(path); err == nil && off < int64(len(whole)) {
			u.old = whole[off:min(int64(len(whole)), off+int64(n))]
		}
		f.undo = append(f.undo, u)
	}
	done := 0
	for _, b := range bufs {
		b = b[:min(len(b), n-done)]
		k, err := unix.Pwrite(fd, b, off+int64(done))
		done += k
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

func (f *forgetful) Sync(fd int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fail; err != nil {
		f.fail = nil
		f.cutLocked() // what could not be written back is gone
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	keep := f.undo[:0]
	for _, u := range f.undo {
		if u.ino != st.Ino {
			keep = append(keep, u)
		}
	}
	f.undo = keep
	return nil
}

func (f *forgetful) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cutLocked()
}

func (f *forgetful) cutLocked() {
	for i := len(f.undo) - 1; i >= 0; i-- {
		u := f.undo[i]
		h, err := os.OpenFile(u.path, os.O_WRONLY, 0)
		if err != nil {
			continue
		}
		_, _ = h.WriteAt(u.old, u.off)
		_ = h.Truncate(u.size)
		_ = h.Close()
	}
	f.undo = nil
}

// lives is a server that can lose power and come back, and clients that find it.
type lives struct {
	t     *testing.T
	dir   string
	state string
	disk  *forgetful
	wrap  func(rpcserver.Program) rpcserver.Program
	s     *server
	at    atomic.Value // its address, a string: clients look for it while it comes up
}

func (l *lives) up() {
	l.s = startWrapped(l.t, "tcp", nfs.Options{StateDir: l.state, Storage: l.disk}, rpcserver.Options{}, nfs.Export{Rights: open, Dir: l.dir}, l.wrap)
	l.at.Store(l.s.hostPort(l.t))
}

// powerCut ends the server without letting it flush.
func (l *lives) powerCut() {
	l.disk.cut()
	l.s.Stop()
	l.up()
}

func (l *lives) mount() *infs.FS {
	dial := rpcclient.Stream(func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", l.at.Load().(string))
	})
	v, _, err := infs.Mount(context.Background(), l.s.url, infs.Options{Dial: dial})
	must(l.t, err)
	l.t.Cleanup(func() { must(l.t, v.Close()) })
	return v
}

func newLives(t *testing.T) *lives {
	l := &lives{t: t, dir: t.TempDir(), state: t.TempDir(), disk: &forgetful{}}
	l.up()
	return l
}

func TestNothingSyncedIsLost(t *testing.T) {
	if lost := syncedBytesLost(t, newLives(t)); lost > 0 {
		t.Fatalf("%d bytes that Sync returned for are not on the medium", lost)
	}
}

// The test above can fail: with a verifier that never changes the client does not know that it has to send again.
func TestAConstantVerifierLosesData(t *testing.T) {
	l := &lives{t: t, dir: t.TempDir(), state: t.TempDir(), disk: &forgetful{}}
	l.wrap = func(p rpcserver.Program) rpcserver.Program { return constantVerifier{p} }
	l.up()
	if syncedBytesLost(t, l) == 0 {
		t.Fatal("nothing is lost under a constant verifier: the loss is not tested")
	}
}

// constantVerifier is a server that does not tell of its restart.
type constantVerifier struct{ rpcserver.Program }

// Serve replaces the verifier, which ends the results of WRITE and COMMIT.
func (p constantVerifier) Serve(c *rpcserver.Call) rpcserver.Verdict {
	v := p.Program.Serve(c)
	if v == rpcserver.Done && p.ID() == nfs3.Prog && (nfs3.Proc(c.Proc) == nfs3.ProcWrite || nfs3.Proc(c.Proc) == nfs3.ProcCommit) {
		copy(c.Out[len(c.Out)-nfs3.VerfLen:], "constant")
	}
	return v
}

// syncedBytesLost writes through two losses of power and returns how many bytes that were synced are wrong afterwards.
func syncedBytesLost(t *testing.T, l *lives) (lost int) {
	v := l.mount()
	f, err := v.Create(context.Background(), "f", 0o600)
	must(t, err)
	want := random(2<<20+17, 5)
	_, err = f.WriteAt(want, 0)
	must(t, err)
	must(t, f.Sync())
	// Overwritten and extended, not synced: the server forgets it, and the client has to notice.
	copy(want[100_000:], random(300_000, 6))
	_, err = f.WriteAt(want[100_000:400_000], 100_000)
	must(t, err)
	l.powerCut()
	more := random(70_000, 7)
	copy(want[350_000:], more)
	_, err = f.WriteAt(more, 350_000) // after the restart, overlapping what is lost
	must(t, err)
	must(t, f.Sync())
	l.powerCut()
	if v.Stats().Connects < 2 {
		t.Fatal("the connection was not made again")
	}
	got, err := os.ReadFile(filepath.Join(l.dir, "f"))
	must(t, err)
	for i := range want {
		if i >= len(got) || got[i] != want[i] {
			lost++
		}
	}
	must(t, f.Close())
	return lost
}

// A COMMIT that fails makes the verifier change, so that other clients send their own data again.
func TestFailedWritebackChangesTheVerifier(t *testing.T) {
	l := newLives(t)
	a, b := l.mount(), l.mount()
	fa, err := a.Create(context.Background(), "a", 0o600)
	must(t, err)
	fb, err := b.Create(context.Background(), "b", 0o600)
	must(t, err)
	pa, pb := random(50_000, 1), random(60_000, 2)
	_, err = fa.WriteAt(pa, 0)
	must(t, err)
	_, err = fb.WriteAt(pb, 0)
	must(t, err)
	l.disk.mu.Lock()
	l.disk.fail = unix.EIO
	l.disk.mu.Unlock()
	if err := fa.Sync(); err == nil {
		t.Fatal("a failed COMMIT was reported as done")
	}
	must(t, fb.Sync())
	must(t, fa.Sync()) // the data was kept, and is sent again
	l.powerCut()
	for name, want := range map[string][]byte{"a": pa, "b": pb} {
		got, err := os.ReadFile(filepath.Join(l.dir, name))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	must(t, fa.Close())
	must(t, fb.Close())
}
