package ceph

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/sluice-storage/sluice/test/lib/cephkit"
)

var (
	shared cephkit.Lazy
	bin    string // where sluiced and sluice are, with Ceph
)

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if bin, err = os.MkdirTemp("", "sluice-ceph-bin-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(bin) }()
		const module = "github.com/sluice-storage/sluice/cmd/"
		if out, err := exec.Command("go", "build", "-tags", "ceph", "-o", bin+"/", module+"sluiced", module+"sluice").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
			return 1
		}
		code := m.Run()
		if err := shared.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return code
	}())
}
