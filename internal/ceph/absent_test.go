package ceph_test

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/internal/ceph"
)

const asAbsent = "SLUICE_TEST_CEPH_ABSENT"

// A binary with the shim, on a machine without the libraries, says what to install. The library cannot be hidden from this process, which has
// it open: another one is started with a name in its way.
func TestWithoutTheLibrariesConnectSaysWhatIsMissing(t *testing.T) {
	if !ceph.Built {
		if _, err := ceph.Connect(ceph.Options{}); !errors.Is(err, ceph.ErrNotBuilt) {
			t.Errorf("a binary without Ceph: %v", err)
		}
		return
	}
	if os.Getenv(asAbsent) != "" {
		_, err := ceph.Connect(ceph.Options{})
		var le *ceph.LibraryError
		if !errors.As(err, &le) || le.Library != "librados.so.2" || !strings.Contains(err.Error(), "apt install librados2 librbd1") {
			t.Errorf("without librados: %v", err)
		}
		if err := ceph.AvailableRBD(); !errors.As(err, &le) {
			t.Errorf("without librbd: %v", err)
		}
		return
	}
	dir := t.TempDir() // what is there under that name is no library
	for _, name := range []string{"librados.so.2", "librbd.so.1"} {
		if err := os.WriteFile(dir+"/"+name, []byte("not a library"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$") //nolint:gosec // ourselves
	c.Env = append(os.Environ(), asAbsent+"=1", "LD_LIBRARY_PATH="+dir)
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
