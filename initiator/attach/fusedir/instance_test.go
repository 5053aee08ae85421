package fusedir_test

import (
	"context"
	"errors"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/initiator/attach/fusedir"
	infs "github.com/sluice-storage/sluice/initiator/nfs"
)

// Two containers with one host name mount one export on one path: what the second does frees no lock of the first, who lives.
func TestAMountFreesTheLocksOfTheDeadOnly(t *testing.T) {
	s := newServer(t, "tcp", false)
	state := t.TempDir()
	a, witness := s.mount(t, fusedir.Options{State: filepath.Join(state, "a")}), s.mount(t, fusedir.Options{})
	fa, fw := opened(t, a.path("f")), opened(t, witness.path("f"))
	must(t, unix.FcntlFlock(fa.Fd(), unix.F_SETLK, lockOf(unix.F_WRLCK, 0, 10)))
	for _, other := range []string{"b", "a", ""} { // of another container; of this one, whose mount lives; without a place
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		v, _, err := infs.Mount(ctx, s.url(), infs.Options{})
		must(t, err)
		o := fusedir.Options{}
		if other != "" {
			o.State = filepath.Join(state, other)
		}
		m, err := fusedir.Mount(ctx, a.dir, v, o) // over the first, on the same path
		cancel()
		must(t, err)
		must(t, errors.Join(m.Unmount(false), v.Close()))
		if err := unix.FcntlFlock(fw.Fd(), unix.F_SETLK, lockOf(unix.F_WRLCK, 5, 1)); !errors.Is(err, syscall.EAGAIN) {
			t.Fatalf("state %q: the lock of a mount that lives: %v", other, err)
		}
	}
	must(t, fa.Close())
}
