package nfs_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	infs "github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/test/lib/stand"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must come.
const patience = 60 * time.Second

// serve exports a directory in this process, and returns its URL over TCP and over RDMA.
func serve(t stand.T, dir string, r nfs.Rights) (tcp, rdma string) {
	dev := iwarp.New(iwarp.Options{})
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Errorf("%v", err)
		}
	})
	f := stand.NewFiles(t, stand.FileOptions{}, nfs.Export{Path: "/data", Dir: dir, Async: true, Rights: r})
	_, tcp = f.TCP("127.0.0.1:0")
	_, rdma = f.RDMA(dev, "127.0.0.1:0")
	return tcp, rdma
}

var everything = stand.Everyone

// each runs a test over both transports, with a server of its own.
func each(t *testing.T, r nfs.Rights, f func(t *testing.T, dir, url string)) {
	for _, how := range []string{"tcp", "rdma"} {
		t.Run(how, func(t *testing.T) {
			dir := t.TempDir()
			tcp, rdma := serve(t, dir, r)
			f(t, dir, map[string]string{"tcp": tcp, "rdma": rdma}[how])
		})
	}
}

func open(t *testing.T, url string) *infs.FS {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	v, err := infs.Open(ctx, url, infs.Options{})
	must(t, err)
	t.Cleanup(func() { must(t, v.Close()) })
	return v
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
