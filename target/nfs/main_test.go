package nfs_test

// Tests of this package join the file target and the file initiator over every fabric that needs no hardware, and let them be
// each other's judge where no stock peer can be run; test/suite/interop/nfs has those.

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"

	infs "github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/rpcserver"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/iwarp"
	"github.com/sluice-storage/sluice/transport/transporttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 60 * time.Second

// server is a file target on one transport.
type server struct {
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
	var err error
	if s.nfs, err = nfs.NewServer(o, e); err != nil {
		t.Fatal(err)
	}
	programs := s.nfs.Programs()
	if wrap != nil {
		for i, p := range programs {
			programs[i] = wrap(p)
		}
	}
	s.rpc = rpcserver.NewServer(ro, programs...)
	t.Cleanup(func() { s.stop(t) })
	var listen, dial transport.Device
	switch how {
	case "tcp":
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func(srv *rpcserver.Server) { _ = srv.ServeTCP(l) }(s.rpc)
		port := netip.MustParseAddrPort(l.Addr().String()).Port()
		s.url = "nfs://127.0.0.1:" + itoa(port) + e.Path + "?mountport=" + itoa(port)
		return s
	case "twin":
		listen, dial = transporttest.Twin()
	case "iwarp":
		listen, dial = iwarp.New(iwarp.Options{}), iwarp.New(iwarp.Options{})
	}
	t.Cleanup(func() {
		if err := dial.Close(); err != nil {
			t.Error(err)
		}
		s.stop(t)
		if err := listen.Close(); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	l, err := listen.Listen(ctx, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func(srv *rpcserver.Server) { _ = srv.ServeRDMA(listen, l) }(s.rpc)
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s.url = "nfs+rdma://127.0.0.1:" + port + e.Path
	s.opts.Device = dial
	return s
}

func itoa(p uint16) string {
	return netip.AddrPortFrom(netip.IPv4Unspecified(), p).String()[len("0.0.0.0:"):]
}

func (s *server) stop(t testing.TB) {
	if s.rpc == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.rpc.Close(ctx); err != nil {
		t.Error(err)
	}
	if err := s.nfs.Close(); err != nil {
		t.Error(err)
	}
	s.rpc = nil
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

// open lets everyone do everything.
var open = nfs.Rights{Squash: nfs.SquashNone, Insecure: true}

// eventually waits for what has no event to wait for.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for limit := time.Now().Add(patience); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}
