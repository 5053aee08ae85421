package fusedir_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/initiator/attach/fusedir"
	infs "github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/nfs/lock"
	"github.com/sluice-storage/sluice/target/rpcserver"
	"github.com/sluice-storage/sluice/test/lib/need"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 60 * time.Second

// server is a file target on loopback with its lock manager, over TCP or iWARP.
type server struct {
	dir, state string
	ip         string // of its own: while it is away no other program gets its port by chance
	port       uint16
	rdma       *iwarp.Device
	far        *iwarp.Device
	nfs        *nfs.Server
	lock       *lock.Manager
	rpc        *rpcserver.Server
	over       string
	noLocks    bool
	rights     nfs.Rights
	grace      time.Duration // of locks
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// everyone lets everyone do everything.
var everyone = nfs.Rights{Squash: nfs.SquashNone, Insecure: true}

func newServer(t testing.TB, over string, noLocks bool) *server {
	t.Helper()
	need.FUSE(t)
	s := &server{dir: t.TempDir(), state: t.TempDir(), over: over, noLocks: noLocks, rights: everyone, grace: time.Millisecond,
		ip: fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))}
	must(t, os.Chmod(s.dir, 0o755))
	if over == "iwarp" {
		s.rdma, s.far = iwarp.New(iwarp.Options{}), iwarp.New(iwarp.Options{})
		t.Cleanup(func() {
			must(t, s.far.Close())
			must(t, s.rdma.Close())
		})
	}
	s.start(t)
	t.Cleanup(func() { s.stop(t) })
	return s
}

// start begins the server's life, or its next one, at the same port.
func (s *server) start(t testing.TB) {
	t.Helper()
	var err error
	s.nfs, err = nfs.NewServer(nfs.Options{StateDir: s.state}, nfs.Export{Path: "/data", Dir: s.dir, Rights: s.rights})
	must(t, err)
	progs := s.nfs.Programs()
	if !s.noLocks {
		s.lock, err = lock.NewManager(lock.Options{StateDir: s.state, Grace: s.grace, Call: noCalls}, s.nfs)
		must(t, err)
		progs = append(progs, s.lock.Programs()...)
	}
	s.rpc = rpcserver.NewServer(rpcserver.Options{}, progs...)
	addr := fmt.Sprintf("%s:%d", s.ip, s.port)
	if s.over == "iwarp" {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		l, err := s.rdma.Listen(ctx, addr)
		must(t, err)
		s.port = netip.MustParseAddrPort(l.Addr().String()).Port()
		go func(srv *rpcserver.Server) { _ = srv.ServeRDMA(s.rdma, l) }(s.rpc)
		return
	}
	l, err := net.Listen("tcp", addr)
	must(t, err)
	s.port = netip.MustParseAddrPort(l.Addr().String()).Port()
	go func(srv *rpcserver.Server) { _ = srv.ServeTCP(l) }(s.rpc)
}

func (s *server) stop(t testing.TB) {
	t.Helper()
	if s.rpc == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	must(t, s.rpc.Close(ctx))
	if s.lock != nil {
		must(t, s.lock.Close())
	}
	must(t, s.nfs.Close())
	s.rpc = nil
}

func (s *server) url() string {
	if s.over == "iwarp" {
		return fmt.Sprintf("nfs+rdma://%s:%d/data", s.ip, s.port)
	}
	return fmt.Sprintf("nfs://%s:%d/data?mountport=%d", s.ip, s.port, s.port)
}

// noCalls is a machine whose status monitor nobody runs.
func noCalls(context.Context, netip.Addr, netip.Addr, uint32, uint32, uint32, []byte) ([]byte, error) {
	return nil, net.ErrClosed
}

// client is one mounted directory.
type client struct {
	dir string
	v   *infs.FS
	m   *fusedir.Mounted
}

func (s *server) mount(t testing.TB, o fusedir.Options) *client {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	io := infs.Options{}
	if s.far != nil {
		io.Device = s.far
	}
	v, name, err := infs.Mount(ctx, s.url(), io)
	must(t, err)
	if name != "." {
		t.Fatalf("%q is left of the URL", name)
	}
	c := &client{dir: filepath.Join(t.TempDir(), "mnt"), v: v}
	must(t, os.Mkdir(c.dir, 0o755))
	c.m, err = fusedir.Mount(ctx, c.dir, v, o)
	must(t, err)
	t.Cleanup(func() { c.close(t) })
	return c
}

func (c *client) close(t testing.TB) {
	t.Helper()
	if c.m == nil {
		return
	}
	if err := c.m.Unmount(false); err != nil {
		t.Error(err)
		c.m.Abort()
		_ = unix.Unmount(c.dir, unix.MNT_DETACH)
		<-c.m.Done()
	}
	must(t, c.v.Close())
	c.m = nil
	left, err := os.ReadDir(c.dir)
	if err != nil || len(left) > 0 {
		t.Errorf("after unmounting, the directory has %d entries: %v", len(left), err)
	}
	must(t, os.Remove(c.dir))
}

func itoa(n int) string { return strconv.Itoa(n) }

func (c *client) path(name ...string) string {
	return filepath.Join(append([]string{c.dir}, name...)...)
}
