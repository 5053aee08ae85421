//go:build !race

package filesystem

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/test/lib/need"
)

// What is asked for with each GETATTR, LOOKUP or ACCESS of a client costs an identity no allocation: of the daemon's own, and of
// another where no thread is to be kept apart.
func TestAnIdentityCostsNoAllocation(t *testing.T) {
	need.Root(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	ids := newIdentities()
	for who, id := range map[string]*identity{"the daemon's own": {}, "another's": {uid: 1000, gid: 1000}} {
		var failed error
		step := func(f int, err error) {
			if err != nil {
				failed = err
			} else if f > 0 {
				failed = unix.Close(f)
			}
		}
		// Of openBeneath: unix.Openat2 makes a C string of the name, and its open_how escapes.
		plain := testing.AllocsPerRun(100, func() { step(openBeneath(fd, "f")) })
		if n := testing.AllocsPerRun(100, func() { step(with(ids, id, beneath{fd, "f"}, beneath.open)) }); n > plain {
			t.Errorf("%s: a name is looked up with %v allocations, %v of them the call's own", who, n, plain)
		}
		if n := testing.AllocsPerRun(100, func() {
			_, err := with(ids, id, asked{fd, true}, asked.may)
			step(0, err)
		}); n != 0 {
			t.Errorf("%s: rights are asked for with %v allocations", who, n)
		}
		if failed != nil {
			t.Errorf("%s: %v", who, failed)
		}
	}
}
