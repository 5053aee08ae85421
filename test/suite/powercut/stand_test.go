package powercut

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/test/lib/faultfs"
	"github.com/sluice-storage/sluice/test/lib/proc"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

var bin string

func TestMain(m *testing.M) { os.Exit(proc.Build(m, &bin)) }

const (
	target = "iqn.2026-11.io.sluice:powercut"
	size   = 4 << 20
	sector = 512
)

// stand is a daemon whose volume loses its power, behind an address that stays.
type stand struct {
	t  testing.TB
	fs *faultfs.FS
	d  *proc.Daemon
	w  *wire
}

// newStand has a volume through the page cache or, direct, past it.
func newStand(t testing.TB, direct bool) *stand {
	t.Helper()
	s := &stand{t: t, fs: faultfs.Mount(t)}
	file := filepath.Join(s.fs.Dir, "v")
	// Another process makes the file: this one serves the file system.
	if out, err := exec.Command("truncate", "-s", fmt.Sprint(size), file).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s.d = proc.New(t, bin, fmt.Sprintf("volumes: [{name: v, path: %q, direct: %v}]\ntargets: [{name: %q, luns: [{lun: 0, volume: v}]}]\n", file, direct, target))
	s.w = newWire(t)
	s.on()
	return s
}

// on serves the volume.
func (s *stand) on() {
	s.t.Helper()
	s.d.Start()
	s.w.to(s.d.Portal())
}

// off takes the power from the medium, if an armed cut has not done so, and ends the daemon, as a loss of power does.
func (s *stand) off(seed uint64) {
	s.t.Helper()
	s.fs.Cut(seed)
	s.w.to("")
	s.d.Kill()
	s.fs.Restore()
}

// open is a volume over one transport, by an initiator of its own.
func (s *stand) open(scheme string) *block.Volume {
	s.t.Helper()
	dev, pool := iwarp.New(iwarp.Options{}), mem.NewPool(16<<20)
	ini, err := block.New(block.Options{Device: dev, Memory: pool, Name: "iqn.2026-11.io.sluice:" + scheme, ReconnectLimit: 2 * proc.Patience,
		MinBackoff: 5 * time.Millisecond, MaxBackoff: 50 * time.Millisecond})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	defer cancel()
	vol, err := ini.Open(ctx, scheme+"://"+s.w.addr()+"/"+target+"/0")
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		for _, c := range []func() error{vol.Close, ini.Close, pool.Close, dev.Close} {
			if err := c(); err != nil {
				s.t.Error(err)
			}
		}
	})
	return vol
}

// wire is an address that stays while the daemon's changes with each start.
type wire struct {
	l  net.Listener
	wg sync.WaitGroup

	mu    sync.Mutex
	there string
	open  map[net.Conn]struct{}
}

func newWire(t testing.TB) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{l: l, open: map[net.Conn]struct{}{}}
	w.wg.Go(w.accept)
	t.Cleanup(func() {
		_ = l.Close() // ends accept
		w.to("")
		w.wg.Wait()
	})
	return w
}

func (w *wire) addr() string { return w.l.Addr().String() }

// to connects from now on to addr, and to nothing if it is empty; what is connected ends.
func (w *wire) to(addr string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.there = addr
	for c := range w.open {
		_ = c.Close() // it is meant to break
	}
	clear(w.open)
}

func (w *wire) accept() {
	for {
		a, err := w.l.Accept()
		if err != nil {
			return
		}
		w.mu.Lock()
		there := w.there
		w.mu.Unlock()
		b, err := net.Dial("tcp", there)
		if there == "" || err != nil {
			_ = a.Close()
			continue
		}
		w.mu.Lock()
		if w.there != there {
			_, _ = a.Close(), b.Close()
		}
		w.open[a], w.open[b] = struct{}{}, struct{}{}
		w.mu.Unlock()
		w.wg.Go(func() { w.carry(a, b) })
		w.wg.Go(func() { w.carry(b, a) })
	}
}

// carry is over when either end is; the other is closed then.
func (w *wire) carry(from, to net.Conn) {
	_, err := io.Copy(to, from)
	if err == nil || !errors.Is(err, net.ErrClosed) {
		_, _ = from.Close(), to.Close()
	}
	w.mu.Lock()
	delete(w.open, from)
	w.mu.Unlock()
}
