package fusedir_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/initiator/attach/fusedir"
)

// What is opened is there: processes that make, open, read and unlink one name never have a descriptor of a file that is gone, and
// nothing of what was hidden for them is left.
func TestWhatIsOpenedIsThere(t *testing.T) {
	s := newServer(t, "tcp", false)
	c := s.mount(t, fusedir.Options{AttrTimeout: -1, EntryTimeout: -1})
	const rounds = 300
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range rounds {
				f, err := os.OpenFile(c.path("f"), os.O_RDWR|os.O_CREATE, 0o600)
				if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESTALE) {
					continue // it went while the path was walked
				}
				if err != nil {
					t.Errorf("open: %v", err)
					return
				}
				if _, err := f.Stat(); err != nil {
					t.Errorf("what is open is not there: %v", err)
				}
				if _, err := f.WriteAt([]byte("here"), 0); err != nil {
					t.Errorf("what is open cannot be written: %v", err)
				}
				if err := f.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			}
		})
		wg.Go(func() {
			for range rounds {
				if err := os.Remove(c.path("f")); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ESTALE) {
					t.Errorf("unlink: %v", err)
				}
				must(t, os.WriteFile(c.path("g"), nil, 0o600))
				if err := os.Rename(c.path("g"), c.path("f")); err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Errorf("rename: %v", err)
				}
			}
		})
	}
	wg.Wait()
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) { // the kernel does not wait for its releases
		left, err := filepath.Glob(filepath.Join(s.dir, ".nfs*"))
		must(t, err)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left: %s", strings.Join(left, " "))
		}
	}
}
