package nfs_test

// Tests of this package join the file target and the file initiator over every fabric that needs no hardware, and let them be
// each other's judge where no stock peer can be run; test/suite/interop/nfs has those.

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"

	infs "github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/rpcserver"
	"github.com/sluice-storage/sluice/test/lib/stand"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/iwarp"
	"github.com/sluice-storage/sluice/transport/transporttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 60 * time.Second

// server is a file target on one transport.
type server struct {
	*stand.Files
	dir  string
	nfs  *nfs.Server
	rpc  *rpcserver.Server
	url  string // of the export
	opts infs.Options
}

var transports = []string{"tcp", "twin", "iwarp"}

func start(t testing.TB, how string, o nfs.Options, ro rpcserver.Options, e nfs.Export) *server {
	t.Helper()
	return startWrapped(t, how, o, ro, e, nil)
}

// startWrapped puts wrap around each program, for servers that are wrong on purpose.
func startWrapped(t testing.TB, how string, o nfs.Options, ro rpcserver.Options, e nfs.Export, wrap func(rpcserver.Program) rpcserver.Program) *server {
	t.Helper()
	s := &server{dir: e.Dir}
	if e.Dir == "" {
		s.dir = t.TempDir()
		e.Dir = s.dir
	}
	if e.Path == "" {
		e.Path = "/data"
	}
	var listen, dial transport.Device
	switch how {
	case "twin":
		listen, dial = transporttest.Twin()
	case "iwarp":
		listen, dial = iwarp.New(iwarp.Options{}), iwarp.New(iwarp.Options{})
	}
	if how != "tcp" {
		t.Cleanup(func() {
			if err := errors.Join(dial.Close(), listen.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	s.up(t, stand.FileOptions{NFS: o, RPC: ro, Wrap: wrap}, e)
	if how == "tcp" {
		_, s.url = s.TCP("127.0.0.1:0")
	} else {
		_, s.url = s.RDMA(listen, "127.0.0.1:0")
		s.opts.Device = dial
	}
	return s
}

// up puts the server up. It may be stopped and put up again.
func (s *server) up(t testing.TB, o stand.FileOptions, exports ...nfs.Export) {
	t.Helper()
	s.Files = stand.NewFiles(t, o, exports...)
	s.nfs, s.rpc = s.NFS, s.RPC
}

func itoa(p uint16) string {
	return netip.AddrPortFrom(netip.IPv4Unspecified(), p).String()[len("0.0.0.0:"):]
}

func (s *server) mount(t *testing.T) *infs.FS {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	v, name, err := infs.Mount(ctx, s.url, s.opts)
	if err != nil {
		t.Fatal(err)
	}
	if name != "." {
		t.Fatalf("mounted with %q left over", name)
	}
	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	return v
}

var open = stand.Everyone

// eventually waits for what has no event to wait for.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for limit := time.Now().Add(patience); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}
