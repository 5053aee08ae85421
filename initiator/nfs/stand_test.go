package nfs_test

import (
	"context"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	infs "github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/rpcserver"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must come.
const patience = 60 * time.Second

// serve exports a directory in this process, and returns its URL over TCP and over RDMA and what ends it.
func serve(dir string, r nfs.Rights) (tcp, rdma string, stop func() error, err error) {
	files, err := nfs.NewServer(nfs.Options{}, nfs.Export{Path: "/data", Dir: dir, Async: true, Rights: r})
	if err != nil {
		return "", "", nil, err
	}
	srv := rpcserver.NewServer(rpcserver.Options{}, files.Programs()...)
	dev := iwarp.New(iwarp.Options{})
	stop = func() error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		for _, end := range []func() error{func() error { return srv.Close(ctx) }, files.Close, dev.Close} {
			if err := end(); err != nil {
				return err
			}
		}
		return nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", "", stop, err
	}
	go func() { _ = srv.ServeTCP(l) }()
	rl, err := dev.Listen(context.Background(), "127.0.0.1:0")
	if err != nil {
		return "", "", stop, err
	}
	go func() { _ = srv.ServeRDMA(dev, rl) }()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return "nfs://127.0.0.1:" + port + "/data?mountport=" + port, "nfs+rdma://" + rl.Addr().String() + "/data", stop, nil
}

var everything = nfs.Rights{Squash: nfs.SquashNone, Insecure: true}

// each runs a test over both transports, with a server of its own.
func each(t *testing.T, r nfs.Rights, f func(t *testing.T, dir, url string)) {
	for _, how := range []string{"tcp", "rdma"} {
		t.Run(how, func(t *testing.T) {
			dir := t.TempDir()
			tcp, rdma, stop, err := serve(dir, r)
			if stop != nil {
				t.Cleanup(func() { must(t, stop()) })
			}
			must(t, err)
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
