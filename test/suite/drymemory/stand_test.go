package drymemory

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/initiator/block"
	infs "github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/test/lib/need"
	"github.com/sluice-storage/sluice/test/lib/stand"
	"github.com/sluice-storage/sluice/test/lib/storm"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	target = "iqn.2026-11.io.sluice:dry"

	// patience is how long nothing at all may move before that is a hang. What is denied is there at once for those who wait, but a
	// program of others can take long for its piece of work beside all that a machine does.
	patience = 3 * time.Minute

	smallest = 32 << 20 // bytes: the least that the daemon takes for `memory`
)

// drought denies buffers at random, in bursts: a refusal that comes again and again at one place is another thing than one
// here and there.
type drought struct {
	rate float64 // of bursts

	mu     sync.Mutex
	rng    *rand.Rand
	burst  int
	denied int
	asked  int
}

func (d *drought) deny(int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked++
	if d.burst == 0 && d.rng.Float64() < d.rate {
		d.burst = 1 + d.rng.IntN(4)
	}
	if d.burst == 0 {
		return false
	}
	d.burst--
	d.denied++
	return true
}

func (d *drought) counts() (asked, denied int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.asked, d.denied
}

// round is one daemon in a drought, with what works at it.
type round struct {
	t      *testing.T
	ctx    context.Context
	dir    string
	dry    *drought
	effort int          // steps of each worker of ours, and half of the MiB that others copy
	steps  atomic.Int64 // for the watchdog: each piece of work that has ended

	portal, nfs, rdma string // addresses
}

// newRound starts a daemon in this process: its pools are ours to make small.
func newRound(t *testing.T, seed uint64, rate float64, effort int) *round {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	r := &round{t: t, ctx: ctx, dir: t.TempDir(), effort: effort, dry: &drought{rate: rate, rng: rand.New(rand.NewPCG(seed, 5))}}
	mem.SetDrought(&mem.Drought{Max: smallest, Deny: r.dry.deny})
	t.Cleanup(func() {
		mem.SetDrought(nil)
		asked, denied := r.dry.counts()
		storm.Count(t, "denied allocations", denied)
		t.Logf("%d of %d allocations denied, %d pieces of work", denied, asked, r.steps.Load())
	})
	r.serve()
	return r
}

func (r *round) serve() {
	t := r.t
	conf, export := filepath.Join(r.dir, "sluiced.yaml"), filepath.Join(r.dir, "export")
	if err := os.Mkdir(export, 0o777); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("state_dir: %q\nmemory: %d\ntimeouts: {drain: 1s}\nportals: [{address: \"127.0.0.1:0\"}]\n", filepath.Join(r.dir, "state"), smallest)
	text += fmt.Sprintf("files: {tcp: \"127.0.0.1:0\", rdma: \"127.0.0.1:0\"}\nexports: [{path: %q, name: /data, async: true, clients: [{match: 127.0.0.1, squash: none, any_port: true}]}]\n", export)
	vols, luns := "volumes:\n", ""
	for i, v := range volumes {
		file := filepath.Join(r.dir, v)
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(file, volumeSize); err != nil {
			t.Fatal(err)
		}
		vols += fmt.Sprintf("  - {name: %s, path: %q}\n", v, file)
		luns += fmt.Sprintf("  - {name: %q, luns: [{lun: 0, volume: %s}]}\n", fmt.Sprint(target, i), v)
	}
	if err := os.WriteFile(conf, []byte(text+vols+"targets:\n"+luns), 0o600); err != nil {
		t.Fatal(err)
	}
	d := stand.NewDaemon(t, conf, zap.InfoLevel)
	r.portal, r.nfs, r.rdma = d.Address("portal open", "", ""), d.Address("files open", "over", "TCP"), d.Address("files open", "over", "RDMA")
}

// run has all works done at the same time, under the eye of the watchdog.
func (r *round) run(works []work, seed uint64) {
	r.t.Helper()
	over := make(chan struct{})
	var wg sync.WaitGroup
	for i, w := range works {
		wg.Go(func() {
			if err := w.do(r, rand.New(rand.NewPCG(seed, uint64(i)))); err != nil {
				r.t.Errorf("%s: %v", w.name, err)
			}
			r.steps.Add(1)
		})
	}
	go func() { wg.Wait(); close(over) }()
	// Ticks are counted: a process that does not run gets none, and is not stuck.
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for last, still := int64(-1), time.Duration(0); ; {
		select {
		case <-over:
			return
		case <-tick.C:
		}
		if n := r.steps.Load(); n != last {
			last, still = n, 0
		} else if still += time.Second; still > patience {
			b := make([]byte, 16<<20)
			// A test that waited for what hangs would say nothing.
			panic(fmt.Sprintf("nothing has moved for %v; all goroutines:\n%s", patience, b[:runtime.Stack(b, true)]))
		}
	}
}

// tool runs a program of others.
func (r *round) tool(name, pkg string, args ...string) error {
	c := exec.CommandContext(r.ctx, need.Tool(r.t, name, pkg), args...)
	out, err := c.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// open logs in from a host of its own.
func (r *round) open(scheme string, volume int) (*block.Volume, func() error, error) {
	dev := iwarp.New(iwarp.Options{})
	ini, err := block.New(block.Options{Device: dev, MinBackoff: 5 * time.Millisecond, MaxBackoff: 100 * time.Millisecond})
	if err != nil {
		return nil, nil, errors.Join(err, dev.Close())
	}
	v, err := ini.Open(r.ctx, r.url(scheme, volume))
	if err != nil {
		return nil, nil, errors.Join(err, ini.Close(), dev.Close())
	}
	return v, func() error { return errors.Join(v.Close(), ini.Close(), dev.Close()) }, nil
}

func (r *round) url(scheme string, volume int) string {
	return fmt.Sprintf("%s://%s/%s%d/0", scheme, r.portal, target, volume)
}

// mount mounts the export over TCP or RDMA.
func (r *round) mount(rdma bool) (*infs.FS, func() error, error) {
	_, port, _ := strings.Cut(r.nfs, ":")
	url, o, end := "nfs://127.0.0.1:"+port+"/data?mountport="+port, infs.Options{}, func() error { return nil }
	if rdma {
		dev := iwarp.New(iwarp.Options{})
		url, o.Device, end = "nfs+rdma://"+r.rdma+"/data", dev, dev.Close
	}
	v, _, err := infs.Mount(r.ctx, url, o)
	if err != nil {
		return nil, nil, errors.Join(err, end())
	}
	return v, func() error { return errors.Join(v.Close(), end()) }, nil
}
