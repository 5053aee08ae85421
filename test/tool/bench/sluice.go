package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/admin"
	"github.com/sluice-storage/sluice/test/lib/port"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/iwarp"
	"github.com/sluice-storage/sluice/transport/shm"
)

const iqn = "iqn.2026-11.io.sluice:bench"

// ours is sluiced as a process, and a volume of it over iSER.
type ours struct {
	cmd   *exec.Cmd
	log   *os.File
	admin http.Client
	ini   *block.Initiator
	vol   *block.Volume
	dev   transport.Device
	crc   string
	url   string
	quota *mem.Quota

	area  int64 // bytes that are visited, volumeSize where it is 0
	first int   // number of the first request there
}

func startSluice(dir, volume string, o options) (*ours, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	if o.engine == "file" { // the daemon makes no volume's file by itself
		f, err := os.OpenFile(volume, os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, err
		}
		if fi, serr := f.Stat(); serr == nil && fi.Size() < volumeSize {
			err = f.Truncate(volumeSize)
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
	}
	of := fmt.Sprintf(", size: %d", volumeSize)
	switch {
	case o.direct:
		of = ", path: " + volume + ", direct: true, block: 4096"
	case o.engine == "file":
		of += ", path: " + volume
	}
	through := fmt.Sprintf("{crc: %q}", o.crc)
	if o.shared {
		through = fmt.Sprintf("[{provider: shm, sockets: %q}]", dir)
	}
	conf := fmt.Sprintf(`state_dir: %s
log: {level: warn}
fabric: %s
portals: [{address: "127.0.0.1:%d"}]
volumes: [{name: bench, engine: %s%s}]
targets: [{name: %q, luns: [{lun: 0, volume: bench}]}]
`, dir, through, port, o.engine, of, iqn)
	s := &ours{crc: map[string]string{"on": "off (loopback)", "always": "on"}[o.crc]}
	if s.crc == "" {
		s.crc = o.crc
	}
	if err := s.launch(dir, conf, o.daemon); err != nil {
		return nil, err
	}
	var dev transport.Device = iwarp.New(iwarp.Options{})
	if o.shared {
		dev = shm.New(shm.Options{Directory: dir})
	}
	if err := s.connect(port, dev); err != nil {
		said, _ := os.ReadFile(s.log.Name()) // what it said is a help, not a must
		return nil, errors.Join(fmt.Errorf("%w; sluiced said:\n%s", err, said), s.close())
	}
	return s, nil
}

// launch starts the daemon with a configuration.
func (s *ours) launch(dir, conf, daemon string) (err error) {
	path := filepath.Join(dir, "sluiced.yaml")
	if err := os.WriteFile(path, []byte(conf), 0o600); err != nil {
		return err
	}
	if s.log, err = os.Create(filepath.Join(dir, "sluiced.log")); err != nil {
		return err
	}
	s.cmd = child(daemon, "--config", path)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if err := s.cmd.Start(); err != nil {
		return err
	}
	sock := filepath.Join(dir, "admin.sock")
	s.admin.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", sock)
	}}
	return nil
}

// ready waits until the daemon serves.
func (s *ours) ready() error {
	deadline := time.Now().Add(30 * time.Second)
	for {
		_, err := s.get("/readyz")
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("sluiced is not ready: %w", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// connect opens the volume through a device, which is closed with it.
func (s *ours) connect(port int, dev transport.Device) error {
	s.dev = dev
	if err := s.ready(); err != nil {
		return err
	}
	ini, err := block.New(block.Options{Device: s.dev})
	if err != nil {
		return err
	}
	s.ini = ini
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	s.url = fmt.Sprintf("iser://127.0.0.1:%d/%s/0", port, iqn)
	for { // a fabric's listener may open behind the daemon's readiness
		if s.vol, err = ini.Open(ctx, s.url); err == nil || ctx.Err() != nil {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err != nil {
		return err
	}
	s.quota = s.vol.Memory().Quota(64 << 20)
	return nil
}

func freePort() (int, error) { return port.Free() }

func (s *ours) get(path string) ([]byte, error) {
	r, err := s.admin.Get("http://sluiced" + path)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(r.Body)
	if err = errors.Join(err, r.Body.Close()); err != nil {
		return nil, err
	}
	if r.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", path, r.Status)
	}
	return b, nil
}

// how is what the daemon says of the way its volume is served.
func (s *ours) how() (string, error) {
	b, err := s.get("/v1/volumes")
	if err != nil {
		return "", err
	}
	var l []admin.Volume
	if err := json.Unmarshal(b, &l); err != nil || len(l) != 1 {
		return "", fmt.Errorf("the daemon's volumes are %s: %w", b, err)
	}
	return l[0].How, nil
}

func (s *ours) close() error {
	var errs []error
	if s.vol != nil {
		s.quota.Close()
		errs = append(errs, s.vol.Close())
	}
	if s.ini != nil {
		errs = append(errs, s.ini.Close())
	}
	if s.dev != nil {
		errs = append(errs, s.dev.Close())
	}
	errs = append(errs, s.cmd.Process.Signal(syscall.SIGTERM), s.cmd.Wait(), s.log.Close())
	return errors.Join(errs...)
}

func (s *ours) pids() []int { return []int{os.Getpid(), s.cmd.Process.Pid} }

// run keeps w.depth requests under way, each submitted again by its own completion.
func (s *ours) run(w work, d time.Duration) (int, time.Duration, error) {
	return s.load(w, 0, d)
}

// load runs for d, or for n I/Os if n is not 0.
func (s *ours) load(w work, n int, d time.Duration) (int, time.Duration, error) {
	l := &load{w: w, area: cmp.Or(s.area, volumeSize), first: s.first, vol: s.vol, limit: int64(n), ended: make(chan struct{})}
	l.out.Store(int64(w.depth))
	rs := make([]blockdev.Request, w.depth)
	for i := range rs {
		b, err := s.quota.Get(w.size)
		if err != nil {
			return 0, 0, err
		}
		defer b.Release()
		r := &rs[i]
		r.Op, r.Length, r.Data = blockdev.Read, int64(w.size), []mem.Span{b.Span()}
		if w.write {
			r.Op = blockdev.Write
		}
		r.Done = l.done
	}
	before := s.calls()
	start := time.Now()
	for i := range rs {
		l.next(&rs[i])
	}
	if n == 0 {
		time.Sleep(d) // the length of the measurement
		l.stop.Store(true)
	}
	<-l.ended
	took := time.Since(start)
	if err := l.err.Load(); err != nil {
		return 0, 0, *err
	}
	after := s.calls()
	if n := l.finished.Load(); os.Getenv("SLUICE_BENCH_CALLS") != "" {
		fmt.Printf("%s: %.3f receiving and %.3f sending system calls an I/O, %.1f bytes copied\n", w,
			float64(after.Reads-before.Reads)/float64(n), float64(after.Writes-before.Writes)/float64(n), copied(after, before)/float64(n))
	}
	return int(l.finished.Load()), took, nil
}

// calls are the counters of software iWARP, of which other devices have none.
func (s *ours) calls() iwarp.Stats {
	if d, is := s.dev.(*iwarp.Device); is {
		return d.Stats()
	}
	return iwarp.Stats{}
}

func copied(after, before iwarp.Stats) float64 {
	n := 0.0
	for i := range after.CopiedIn {
		n += float64(after.CopiedIn[i] - before.CopiedIn[i])
	}
	return n
}

// load is one measurement under way.
type load struct {
	w        work
	area     int64
	first    int
	vol      *block.Volume
	limit    int64
	started  atomic.Int64
	finished atomic.Int64
	out      atomic.Int64
	stop     atomic.Bool
	err      atomic.Pointer[error]
	ended    chan struct{}
}

func (l *load) next(r *blockdev.Request) {
	r.Offset = l.w.offsetIn(l.area, l.first+int(l.started.Add(1)-1))
	l.vol.Submit(r)
}

func (l *load) done(r *blockdev.Request) {
	if r.Err != nil {
		err := r.Err
		l.err.Store(&err)
		l.stop.Store(true)
	}
	n := l.finished.Add(1)
	if l.stop.Load() || l.limit > 0 && n+int64(l.w.depth) > l.limit {
		if l.out.Add(-1) == 0 {
			close(l.ended)
		}
		return
	}
	l.next(r)
}

var mallocs = regexp.MustCompile(`(?m)^# Mallocs = (\d+)`)

// allocations counts the heap objects that n I/Os cost here and in the daemon.
func (s *ours) allocations(w work, n int) (here, there float64, err error) {
	if _, _, err := s.load(w, n/4, 0); err != nil { // warm up
		return 0, 0, err
	}
	// What the question itself costs the daemon is found by asking twice.
	ask := func() (float64, error) {
		b, err := s.get("/debug/pprof/heap?debug=1")
		if err != nil {
			return 0, err
		}
		m := mallocs.FindSubmatch(b)
		if m == nil {
			return 0, errors.New("the daemon's heap profile names no Mallocs")
		}
		return strconv.ParseFloat(string(m[1]), 64)
	}
	if _, err := ask(); err != nil {
		return 0, 0, err
	}
	a, err := ask()
	if err != nil {
		return 0, 0, err
	}
	b, err := ask()
	if err != nil {
		return 0, 0, err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	done, _, err := s.load(w, n, 0)
	if err != nil {
		return 0, 0, err
	}
	runtime.ReadMemStats(&after)
	c, err := ask()
	if err != nil {
		return 0, 0, err
	}
	return float64(after.Mallocs-before.Mallocs) / float64(done), max(0, (c-b)-(b-a)) / float64(done), nil
}

// profile writes CPU profiles of both processes under the load.
func (s *ours) profile(line string, w work, dir string) error {
	name := strings.Join(strings.Fields(line), "-")
	f, err := os.Create(filepath.Join(dir, name+"-client.pprof"))
	if err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return errors.Join(err, f.Close())
	}
	type answer struct {
		b   []byte
		err error
	}
	got := make(chan answer, 1)
	go func() {
		b, err := s.get("/debug/pprof/profile?seconds=3")
		got <- answer{b, err}
	}()
	_, _, err = s.load(w, 0, 3500*time.Millisecond)
	pprof.StopCPUProfile()
	a := <-got
	if err := errors.Join(err, a.err, f.Close()); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, name+"-sluiced.pprof"), a.b, 0o644); err != nil {
		return err
	}
	heap, err := s.get("/debug/pprof/allocs")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name+"-sluiced-allocs.pprof"), heap, 0o644)
}
