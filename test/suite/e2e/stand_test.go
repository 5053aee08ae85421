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
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/test/lib/stand"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

func TestMain(m *testing.M) {
	if path, addr, ok := strings.Cut(os.Getenv(asTarget), ","); ok {
		if err := targetMain(path, addr); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
	if url := os.Getenv(asInitiator); url != "" {
		fmt.Fprintln(os.Stderr, initiatorMain(url))
		os.Exit(1)
	}
	if what := os.Getenv(asSpy); what != "" {
		if err := spyMain(what); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
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

// served is a target: one memory disk, portals that serve both transports.
type served struct {
	*stand.Blocks
	dev  blockdev.Device
	rnic *iwarp.Device
}

func newStand(t testing.TB, o iwarp.Options, wrap ...func(blockdev.Device) blockdev.Device) *served {
	t.Helper()
	return stands(t, o, stand.BlockOptions{}, "e2e-0001", wrap...)
}

func stands(t testing.TB, w iwarp.Options, o stand.BlockOptions, serial string, wrap ...func(blockdev.Device) blockdev.Device) *served {
	t.Helper()
	s := &served{dev: stand.Disk(t, diskSize), rnic: iwarp.New(w)}
	for _, w := range wrap {
		s.dev = w(s.dev)
	}
	o.Name, o.Memory, o.Server.Device = iqn, 128<<20, s.rnic
	s.Blocks = stand.NewBlocks(t, o, scsi.LUOptions{Device: s.dev, Name: "disk", Serial: serial})
	return s
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
