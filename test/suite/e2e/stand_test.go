package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-storage/sluice/blockdev"
	bmem "github.com/sluice-storage/sluice/blockdev/mem"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/iscsi"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

func TestMain(m *testing.M) {
	if path, addr, ok := strings.Cut(os.Getenv(asTarget), ","); ok {
		if err := targetMain(path, addr); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
	// Each example is a conversation over sockets; a few of each are enough, as there are many variants.
	flag.Parse()
	if f := flag.Lookup("rapid.checks"); f != nil && f.Value.String() == f.DefValue {
		if err := flag.Set("rapid.checks", "8"); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

const (
	iqn      = "iqn.2026-01.org.example:e2e"
	diskSize = 4 << 20
	patience = 120 * time.Second
)

// stand is a target: one memory disk, portals that serve both transports.
type stand struct {
	t    testing.TB
	dev  blockdev.Device
	pool *mem.Pool
	scsi *scsi.Target
	unit *scsi.LogicalUnit
	srv  *iscsi.Server
	rnic *iwarp.Device
	done []chan error
}

func newStand(t testing.TB, o iwarp.Options, wrap ...func(blockdev.Device) blockdev.Device) *stand {
	t.Helper()
	return stands(t, o, scsi.TargetOptions{}, "e2e-0001", wrap...)
}

func newStandNamed(t testing.TB, serial string) *stand {
	t.Helper()
	return stands(t, iwarp.Options{}, scsi.TargetOptions{}, serial)
}

func stands(t testing.TB, o iwarp.Options, to scsi.TargetOptions, serial string, wrap ...func(blockdev.Device) blockdev.Device) *stand {
	t.Helper()
	s := &stand{t: t, pool: mem.NewPool(128 << 20), rnic: iwarp.New(o)}
	d, err := bmem.Open(bmem.Options{Size: diskSize, Logical: 512})
	must(t, err)
	s.dev = d
	for _, w := range wrap {
		s.dev = w(s.dev)
	}
	to.Name, to.Memory = iqn, s.pool
	s.scsi, err = scsi.NewTarget(to)
	must(t, err)
	lu, err := scsi.NewLogicalUnit(scsi.LUOptions{Device: s.dev, Name: "disk", Serial: serial})
	must(t, err)
	s.unit = lu
	must(t, s.scsi.AddLUN(0, lu))
	s.srv, err = iscsi.NewServer(iscsi.Options{Memory: s.pool, Device: s.rnic, Timeouts: iscsi.Timeouts{Drain: time.Second}})
	must(t, err)
	must(t, s.srv.AddTarget(iscsi.Target{Name: iqn, SCSI: s.scsi}))
	t.Cleanup(s.close)
	return s
}

// portal serves host and returns the address.
func (s *stand) portal(host string, group uint16) string {
	s.t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	must(s.t, err)
	done := make(chan error, 1)
	s.done = append(s.done, done)
	go func() { done <- s.srv.Serve(context.Background(), l, iscsi.Portal{Group: group}) }()
	return l.Addr().String()
}

func (s *stand) close() {
	if err := s.srv.Close(context.Background()); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		s.t.Errorf("close the target: %v", err)
	}
	for _, d := range s.done {
		if err := <-d; err != nil && !errors.Is(err, iscsi.ErrClosed) {
			s.t.Errorf("serve: %v", err)
		}
	}
	if n := s.pool.Used(); n != 0 {
		s.t.Errorf("the target keeps %d bytes of buffers", n)
	}
	must(s.t, s.rnic.Close())
	must(s.t, s.dev.Close())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// host is an initiator on a fabric of its own.
func host(t testing.TB, o block.Options, w iwarp.Options) *block.Initiator {
	t.Helper()
	d := iwarp.New(w)
	o.Device = d
	if o.MinBackoff == 0 {
		o.MinBackoff, o.MaxBackoff = 5*time.Millisecond, 100*time.Millisecond
	}
	i, err := block.New(o)
	must(t, err)
	t.Cleanup(func() {
		if err := i.Close(); err != nil {
			t.Error(err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return i
}

func open(t testing.TB, i *block.Initiator, urls ...string) *block.Volume {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	v, err := i.Open(ctx, urls...)
	must(t, err)
	t.Cleanup(func() {
		if err := v.Close(); err != nil && !errors.Is(err, blockdev.ErrClosed) {
			t.Error(err)
		}
	})
	return v
}

func url(scheme, addr string) string { return scheme + "://" + addr + "/" + iqn + "/0" }

var schemes = []string{"iser", "iscsi"}

func pattern(n int, seed int64) []byte {
	b := make([]byte, n)
	rand.New(rand.NewSource(seed)).Read(b)
	return b
}

// relay is a wire that can be cut: it carries bytes between an address of its own and a portal.
type relay struct {
	t    testing.TB
	l    net.Listener
	to   string
	mu   sync.Mutex
	dead bool
	open map[net.Conn]struct{}
	wg   sync.WaitGroup
	left int64 // bytes until the next cut, when armed
	past int64 // bytes that have passed
	arm  bool
}

func newRelay(t testing.TB, to string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	r := &relay{t: t, l: l, to: to, open: map[net.Conn]struct{}{}}
	r.wg.Go(r.accept)
	t.Cleanup(func() {
		must(t, l.Close())
		r.cut(true)
		r.wg.Wait()
	})
	return r
}

func (r *relay) addr() string { return r.l.Addr().String() }

func (r *relay) accept() {
	for {
		a, err := r.l.Accept()
		if err != nil {
			return
		}
		b, err := net.Dial("tcp", r.to)
		r.mu.Lock()
		if err != nil || r.dead {
			r.mu.Unlock()
			_ = a.Close()
			if b != nil {
				_ = b.Close()
			}
			continue
		}
		r.open[a], r.open[b] = struct{}{}, struct{}{}
		r.mu.Unlock()
		r.wg.Go(func() { r.pump(a, b) })
		r.wg.Go(func() { r.pump(b, a) })
	}
}

func (r *relay) pump(from, to net.Conn) {
	buf := make([]byte, 16<<10)
	for {
		n, err := from.Read(buf)
		if err == nil || n > 0 {
			r.mu.Lock()
			r.past += int64(n)
			cut := false
			if r.arm {
				if r.left -= int64(n); r.left <= 0 {
					r.arm, cut = false, true
				}
			}
			r.mu.Unlock()
			if cut {
				_, _ = to.Write(buf[:rand.Intn(n+1)]) // in the middle of whatever it is
				r.cut(false)
			} else if _, werr := to.Write(buf[:n]); werr != nil {
				err = werr
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				_ = from.Close()
			}
			_ = to.Close()
			r.mu.Lock()
			delete(r.open, from)
			r.mu.Unlock()
			return
		}
	}
}

// cut ends every connection; with stay nothing connects any more until mend.
func (r *relay) cut(stay bool) {
	r.mu.Lock()
	r.dead = stay
	for c := range r.open {
		_ = c.Close()
	}
	clear(r.open)
	r.mu.Unlock()
}

func (r *relay) passed() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.past
}

func (r *relay) mend() {
	r.mu.Lock()
	r.dead = false
	r.mu.Unlock()
}

// after cuts once n more bytes have passed.
func (r *relay) after(n int64) {
	r.mu.Lock()
	r.arm, r.left = true, n
	r.mu.Unlock()
}
