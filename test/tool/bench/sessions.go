package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// maxIdle is the bar for the memory of a session that does nothing, in bytes.
const maxIdle = 64 << 10

// crowd is what many sessions cost: idle ones in memory, and busy ones in latency for having them as neighbours.
type crowd struct {
	Transport   string  `json:"transport"`
	Idle        int     `json:"idle_sessions"`
	Busy        int     `json:"busy_sessions"`
	LoginRate   float64 `json:"logins_per_second"`
	Resident    float64 `json:"resident_bytes_per_idle_session"` // growth of the daemon's resident set
	Live        float64 `json:"live_bytes_per_idle_session"`     // of it heap in use, stacks and registered buffers
	P99Alone    float64 `json:"p99_us_busy_alone"`
	P99Crowded  float64 `json:"p99_us_busy_with_idle"`
	RateAlone   float64 `json:"ios_per_second_busy_alone"`
	RateCrowded float64 `json:"ios_per_second_busy_with_idle"`
}

// crowds measures idle and busy sessions of each transport against a daemon of its own.
func crowds(dir string, o options, report map[string]any) (missed []error, err error) {
	var out []*crowd
	for _, transport := range []string{"iser", "iscsi"} {
		c := &crowd{Transport: transport, Idle: o.idle, Busy: o.busy}
		if err := c.measure(filepath.Join(dir, transport), o); err != nil {
			return nil, fmt.Errorf("sessions over %s: %w", transport, err)
		}
		out = append(out, c)
	}
	fmt.Printf("\n%d idle sessions beside %d busy ones (4 KiB reads, depth 2, of a volume in memory)\n", o.idle, o.busy)
	for _, c := range out {
		fmt.Printf("%-5s  %.0f logins/s  idle session %.1f KiB (resident set grew by %.1f KiB each)  busy: p99 %.0f us and %.0f/s alone, %.0f us and %.0f/s beside the idle\n",
			c.Transport, c.LoginRate, c.Live/1024, c.Resident/1024, c.P99Alone, c.RateAlone, c.P99Crowded, c.RateCrowded)
	}
	report["sessions"] = out
	return judgeCrowds(out), nil
}

func (c *crowd) measure(dir string, o options) (err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	// A short peer timeout makes sessions fall idle within seconds instead of half a minute.
	conf := fmt.Sprintf(`state_dir: %s
log: {level: error}
memory: 512MiB
timeouts: {peer: 8s}
limits: {connections: %d, per_host: %[2]d}
portals: [{address: "127.0.0.1:%[3]d"}]
volumes: [{name: crowd, engine: mem, size: 16MiB}]
targets: [{name: %[4]q, luns: [{lun: 0, volume: crowd}]}]
`, dir, c.Idle+c.Busy+16, port, iqn)
	s := &ours{}
	if err := s.launch(dir, conf, o.daemon); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.ready(); err != nil {
		return err
	}
	url := fmt.Sprintf("%s://127.0.0.1:%d/%s/0", c.Transport, port, iqn)
	return c.against(s, url, o)
}

func (c *crowd) against(s *ours, url string, o options) (err error) {
	pool := mem.NewPool(1 << 30)
	many, err := newMany(pool, 4)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, many.close(), pool.Close()) }()
	busy, _, err := many.open(url, c.Busy)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll(busy)) }()
	if _, _, err := hammer(busy, o.each); err != nil { // warm up
		return err
	}
	before, rate1, err := hammer(busy, 4*o.each)
	if err != nil {
		return err
	}
	m0, err := s.settled()
	if err != nil {
		return err
	}
	idle, took, err := many.open(url, c.Idle)
	if err != nil {
		return err
	}
	c.LoginRate = float64(c.Idle) / took.Seconds()
	m1, err := s.settled()
	if err == nil {
		c.Resident = float64(m1.resident-m0.resident) / float64(c.Idle)
		c.Live = float64(m1.live-m0.live) / float64(c.Idle)
		if o.profile != "" {
			err = s.heapProfile(filepath.Join(o.profile, "idle-"+c.Transport+"-heap.pprof"))
		}
	}
	var crowded *hdrhistogram.Histogram
	if err == nil {
		crowded, c.RateCrowded, err = hammer(busy, 4*o.each)
	}
	if err = errors.Join(err, closeAll(idle)); err != nil {
		return err
	}
	after, rate2, err := hammer(busy, 4*o.each)
	if err != nil {
		return err
	}
	before.Merge(after)
	c.P99Alone, c.RateAlone = float64(before.ValueAtQuantile(99))/1e3, (rate1+rate2)/2
	c.P99Crowded = float64(crowded.ValueAtQuantile(99)) / 1e3
	return nil
}

// footprint is the daemon's memory in bytes.
type footprint struct{ resident, live int64 }

// settled waits until the daemon's memory falls no more, for at most half a minute.
func (s *ours) settled() (footprint, error) {
	var last footprint
	for still, n := 0, 0; n < 30; n++ {
		now, err := s.footprint()
		if err != nil {
			return now, err
		}
		if now.live < last.live-256<<10 || now.live > last.live+256<<10 || now.resident < last.resident-1<<20 {
			still = 0
		}
		last = now
		if still++; still > 8 {
			break
		}
		time.Sleep(time.Second) // the daemon's own timers decide
	}
	return last, nil
}

func (s *ours) footprint() (f footprint, err error) {
	// The collector runs first: garbage of earlier rounds is not counted.
	if _, err := s.get("/debug/pprof/heap?gc=1"); err != nil {
		return f, err
	}
	b, err := s.get("/metrics")
	if err != nil {
		return f, err
	}
	for _, name := range []string{"go_memstats_heap_alloc_bytes", "go_memstats_stack_inuse_bytes", "sluice_memory_used_bytes"} {
		m := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindSubmatch(b)
		if m == nil {
			return f, fmt.Errorf("the daemon's metrics have no %s", name)
		}
		v, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			return f, err
		}
		f.live += int64(v)
	}
	st, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		return f, err
	}
	_, rest, _ := strings.Cut(string(st), "VmRSS:")
	if _, err := fmt.Sscan(rest, &f.resident); err != nil {
		return f, err
	}
	f.resident <<= 10
	return f, nil
}

func (s *ours) heapProfile(path string) error {
	b, err := s.get("/debug/pprof/heap?gc=1")
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o644)
}

// many opens volumes by the dozen.
type many struct {
	ini  *block.Initiator
	stop func() error
}

func newMany(pool *mem.Pool, depth int) (*many, error) {
	dev := iwarp.New(iwarp.Options{})
	ini, err := block.New(block.Options{Device: dev, Memory: pool, Depth: depth})
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return &many{ini: ini, stop: dev.Close}, nil
}

func (m *many) close() error { return errors.Join(m.ini.Close(), m.stop()) }

// open logs in n times, eight at a time.
func (m *many) open(url string, n int) ([]*block.Volume, time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	vols, errs := make([]*block.Volume, n), make([]error, n)
	var next atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for range 8 {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				vols[i], errs[i] = m.ini.Open(ctx, url)
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	if err := errors.Join(errs...); err != nil {
		return nil, 0, errors.Join(err, closeAll(vols))
	}
	return vols, took, nil
}

func closeAll(vols []*block.Volume) error {
	var wg sync.WaitGroup
	errs := make([]error, len(vols))
	for i, v := range vols {
		if v != nil {
			wg.Go(func() { errs[i] = v.Close() })
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

// hammer keeps two 4 KiB reads under way on each volume for d; each request measures itself.
func hammer(vols []*block.Volume, d time.Duration) (*hdrhistogram.Histogram, float64, error) {
	const depth, size = 2, 4 << 10
	var stop atomic.Bool
	var wg sync.WaitGroup
	hists, errs := make([]*hdrhistogram.Histogram, len(vols)), make([]error, len(vols))
	for i, v := range vols {
		hists[i] = hdrhistogram.New(1e3, 60e9, 3)
		var mu sync.Mutex
		for range depth {
			wg.Go(func() {
				buf, err := v.Memory().Get(size)
				if err != nil {
					errs[i] = err
					return
				}
				defer buf.Release()
				done := make(chan struct{}, 1)
				r := blockdev.Request{Op: blockdev.Read, Length: size, Data: []mem.Span{buf.Span()}, Done: func(*blockdev.Request) { done <- struct{}{} }}
				for n := 0; !stop.Load(); n++ {
					r.Offset = int64(n*7%4096) * size
					from := time.Now()
					v.Submit(&r)
					<-done
					mu.Lock()
					_ = hists[i].RecordValue(time.Since(from).Nanoseconds()) // a minute is its bound, and a request's
					errs[i] = errors.Join(errs[i], r.Err)
					mu.Unlock()
					if r.Err != nil {
						return
					}
				}
			})
		}
	}
	time.Sleep(d) // the length of the measurement
	stop.Store(true)
	wg.Wait()
	all := hdrhistogram.New(1e3, 60e9, 3)
	for _, h := range hists {
		all.Merge(h)
	}
	return all, float64(all.TotalCount()) / d.Seconds(), errors.Join(errs...)
}

func judgeCrowds(cs []*crowd) (errs []error) {
	for _, c := range cs {
		if c.Live > maxIdle {
			errs = append(errs, fmt.Errorf("an idle session over %s takes %.1f KiB, %d KiB is the bar", c.Transport, c.Live/1024, maxIdle>>10))
		}
	}
	return errs
}
