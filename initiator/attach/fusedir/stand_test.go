package fusedir_test

import (
	"context"
	"fmt"
	"math/rand/v2"
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
	"github.com/sluice-storage/sluice/test/lib/need"
	"github.com/sluice-storage/sluice/test/lib/port"
	"github.com/sluice-storage/sluice/test/lib/stand"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 60 * time.Second

// server is a file target on loopback with its lock manager, over TCP or iWARP.
type server struct {
	dir, state string
	ip         string // of its own
	port       uint16
	rdma       *iwarp.Device
	far        *iwarp.Device
	files      *stand.Files
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

var everyone = stand.Everyone

func newServer(t testing.TB, over string, noLocks bool) *server {
	t.Helper()
	need.FUSE(t)
	s := &server{dir: t.TempDir(), state: t.TempDir(), over: over, noLocks: noLocks, rights: everyone, grace: time.Millisecond,
		ip: fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))}
	must(t, os.Chmod(s.dir, 0o755))
	n, err := port.Free() // one that no other program gets while the server is away
	must(t, err)
	s.port = uint16(n)
	if over == "iwarp" {
		s.rdma, s.far = iwarp.New(iwarp.Options{}), iwarp.New(iwarp.Options{})
		t.Cleanup(func() {
			must(t, s.far.Close())
			must(t, s.rdma.Close())
		})
	}
	s.start(t)
	return s
}

// start begins the server's life, or its next one, at the same port.
func (s *server) start(t testing.TB) {
	t.Helper()
	o := stand.FileOptions{NFS: nfs.Options{StateDir: s.state}}
	if !s.noLocks {
		o.Locks = &lock.Options{StateDir: s.state, Grace: s.grace}
	}
	export := nfs.Export{Path: "/data", Dir: s.dir, Rights: s.rights}
	if s.files == nil {
		s.files = stand.NewFiles(t, o, export)
	} else {
		s.files.Again(o, export)
	}
	serve := s.files.TCP
	if s.over == "iwarp" {
		serve = func(addr string) (netip.AddrPort, string) { return s.files.RDMA(s.rdma, addr) }
	}
	at, _ := serve(fmt.Sprintf("%s:%d", s.ip, s.port))
	s.port = at.Port()
}

func (s *server) stop(testing.TB) { s.files.Stop() }

func (s *server) url() string {
	if s.over == "iwarp" {
		return fmt.Sprintf("nfs+rdma://%s:%d/data", s.ip, s.port)
	}
	return fmt.Sprintf("nfs://%s:%d/data?mountport=%d", s.ip, s.port, s.port)
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
