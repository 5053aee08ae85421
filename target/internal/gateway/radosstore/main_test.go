//go:build ceph && cgo && linux

package radosstore

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/sluice-storage/sluice/test/lib/cephkit"
)

// shared is the cluster of all tests here.
var shared cephkit.Lazy

func TestMain(m *testing.M) {
	if conf := os.Getenv(envChild); conf != "" {
		child(conf)
	}
	code := m.Run()
	err := shared.Stop()
	if code == 0 && err == nil {
		err = goleak.Find()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
