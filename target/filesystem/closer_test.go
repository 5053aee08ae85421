package filesystem

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// hungStorage does not come back from flushing one device.
type hungStorage struct {
	kernel
	dev  uint64
	free chan struct{}
}

func (h *hungStorage) Sync(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Dev == h.dev {
		<-h.free
	}
	return nil
}

// A call that needs a place in the cache gets it without waiting for the files of another medium, which hangs.
func TestTheCacheHasRoomBesideAMediumThatHangs(t *testing.T) {
	bad, err := os.MkdirTemp("/dev/shm", "sluice-hung")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(bad) }()
	h := &hungStorage{free: make(chan struct{})}
	s, err := New(Options{Storage: h}, Export{Path: "/a", Dir: t.TempDir()}, Export{Path: "/b", Dir: bad})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		close(h.free)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	use := func(path, name string, handle int) (*node, error) {
		e := s.table.Load().byPath[path]
		fd, err := unix.Open(filepath.Join(e.Dir, name), unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		return s.nodes.add(e, fmt.Sprint(path, handle), fd)
	}
	if err := os.WriteFile(filepath.Join(bad, "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		n, err := use("/b", "f", i)
		if err == nil && i == 0 {
			h.dev = n.file.id.dev
			err = n.file.begin(n, nil)
			n.file.end()
		}
		if err != nil {
			t.Fatal(err)
		}
		s.nodes.put(n)
	}
	added := make(chan error)
	go func() {
		defer close(added)
		for i := range maxNodes + 100 {
			n, err := use("/a", ".", i)
			if err == nil {
				s.nodes.put(n)
			}
			added <- err
		}
	}()
	for more := true; more; {
		select {
		case err, more = <-added:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("a call waits for a file of another medium to be closed")
		}
	}
}
