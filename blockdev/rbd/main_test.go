package rbd_test

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/sluice-storage/sluice/test/lib/cephkit"
)

// shared is the cluster of those tests here that do not harm it.
var shared cephkit.Lazy

func TestMain(m *testing.M) {
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
