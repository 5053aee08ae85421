package nfs_test

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/target/filesystem"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// mistaken is storage that panics when it is told to.
type mistaken struct {
	forgetful
	write, sync atomic.Bool
}

func (m *mistaken) Pwrite(fd int, bufs [][]byte, n int, off int64, sync filesystem.Stability) (int, error) {
	if m.write.Swap(false) {
		panic("a mistake of the test's, in a WRITE")
	}
	return m.forgetful.Pwrite(fd, bufs, n, off, sync)
}

func (m *mistaken) Sync(fd int) error {
	if m.sync.Swap(false) {
		panic("a mistake of the test's, in a flush")
	}
	return m.forgetful.Sync(fd)
}

// A mistake of the server's in one call ends that client's connection. It leaves no lock held, and
// nothing that is unflushed taken for flushed.
func TestAMistakeInACallLeavesNothingLocked(t *testing.T) {
	m := &mistaken{}
	s := start(t, "tcp", nfs.Options{Storage: m}, rpcserver.Options{}, nfs.Export{Rights: open})
	must(t, os.Chmod(s.dir, 0o777))
	must(t, os.WriteFile(filepath.Join(s.dir, "f"), nil, 0o666))
	must(t, os.Chmod(filepath.Join(s.dir, "f"), 0o666))
	r := s.of(t, 1000, 1000)
	root, _ := r.mount("/data")
	fh := r.lookup(root, "f").FH
	// The client repeats a call whose connection ended, and the second try finds no mistake.
	for range 20 {
		m.write.Store(true)
		v := r.unstable(fh, 0, []byte("data"))
		m.sync.Store(true)
		if c := r.commit(fh); c.Status != nfs3.OK || c.Verf != v {
			t.Fatalf("COMMIT after a mistake: %v", c.Status)
		}
	}
	if m.write.Load() || m.sync.Load() {
		t.Fatal("no mistake was made")
	}
	v := r.unstable(fh, 0, []byte("data"))
	m.sync.Store(true)
	m.forgetful.mu.Lock()
	m.fail = unix.EIO
	m.forgetful.mu.Unlock()
	r.hears("after a flush that made a mistake", fh, v)
	for what, st := range r.changes(root, fh, "") {
		if what != "SETACL" && what != "SETATTR" && st != nfs3.OK { // these are the owner's
			t.Errorf("%s after them: %v", what, st)
		}
	}
}
