package nfs

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/rpc"
)

// hung is storage that does not come back from flushing one device.
type hung struct {
	forgetful
	dev    atomic.Uint64
	free   chan struct{}
	synced atomic.Int32 // flushes of others
}

func (h *hung) Sync(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Dev == h.dev.Load() {
		<-h.free
		return nil
	}
	h.synced.Add(1)
	return h.forgetful.Sync(fd)
}

// An export whose medium hangs can be taken away, and the files of others are flushed and closed, though its own cannot be.
func TestAMediumThatHangsHoldsUpNoChangeOfExports(t *testing.T) {
	bad, err := os.MkdirTemp("/dev/shm", "sluice-hung")
	must(t, err)
	defer func() { must(t, os.RemoveAll(bad)) }()
	h := &hung{free: make(chan struct{})}
	a, b := nfs.Export{Path: "/a", Dir: t.TempDir(), Rights: open}, nfs.Export{Path: "/b", Dir: bad, Rights: open}
	s := start(t, "tcp", nfs.Options{Storage: h}, rpc.Options{}, a)
	defer close(h.free) // before the server is closed
	must(t, s.nfs.SetExports(a, b))
	var st unix.Stat_t
	must(t, unix.Stat(bad, &st))
	r := s.raw(t, 0, 0)
	for _, e := range []nfs.Export{a, b} {
		must(t, os.WriteFile(filepath.Join(e.Dir, "f"), nil, 0o666))
		root, _ := r.mount(e.Path)
		r.unstable(r.lookup(root, "f").FH, 0, []byte("data"))
	}
	h.dev.Store(st.Dev)
	a.ReadOnly = true
	done := make(chan error, 1)
	go func() { done <- s.nfs.SetExports(a) }()
	select {
	case err := <-done:
		must(t, err)
	case <-time.After(30 * time.Second):
		t.Fatal("an export whose medium hangs cannot be taken away")
	}
	if h.synced.Load() == 0 {
		t.Error("a file on a sound medium is not flushed")
	}
	root, _ := r.mount("/a")
	if st := r.lookup(root, "f").Status; st != 0 {
		t.Error(st)
	}
}
