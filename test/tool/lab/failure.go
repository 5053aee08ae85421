package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

var failureScenarios = []Scenario{
	{
		Name: "iser-killed", Class: short, Limit: 10 * time.Minute, Host: []string{"sluiced"},
		About: "SIGKILL of the target in mid-fio, restart: the initiator recovers by itself and every block verifies",
		Prepare: func(r *Run) error {
			_, err := r.serve(unit{"disk", "file", "256MiB"})
			return err
		},
		OnHost: hostKill,
	},
	{
		Name: "iser-cut", Class: long, Limit: 10 * time.Minute, Host: []string{"sluiced"},
		About:   "the connection cut at 3 random points in mid-fio",
		Prepare: prepareCut(3), OnHost: hostCut,
	},
	{
		Name: "reinstatement", Class: long, Limit: 15 * time.Minute, Host: both, Script: "reinstatement.sh",
		About:   "the initiator loses a connection that the target still holds, and logs in with the same ISID: the old session ends",
		Prepare: prepareCut(3), OnHost: hostCut, Finish: finishReinstatement,
	},
	{
		Name: "iser-cut-50", Class: soak, Limit: 40 * time.Minute, Host: []string{"sluiced"}, Script: "iser-cut.sh",
		About:   "the connection cut at 50 random points in mid-fio",
		Prepare: prepareCut(50), OnHost: hostCut,
	},
	{
		Name: "multipath", Class: long, Limit: 25 * time.Minute, Files: []string{"sluiced"}, Systemd: true,
		About:   "dm-multipath with ALUA over an iSER and a TCP path: each path fails under fio and comes back, without an error",
		Prepare: func(r *Run) error { r.Env = append(r.Env, "TARGET="+iqn); return nil },
	},
	{
		Name: "guest-killed", Class: short, Limit: 10 * time.Minute, Host: both,
		About: "the initiator's machine vanishes in mid-write: its session, connection, STags and memory are given back",
		Prepare: func(r *Run) error {
			t, err := r.serve(unit{"disk", "file", "256MiB"})
			if err != nil {
				return err
			}
			r.before, err = t.footprint()
			return err
		},
		OnHost: func(r *Run, _ string, _ []string) (string, error) {
			f, err := r.target.footprint()
			if err != nil {
				return "", err
			}
			// Under load it holds more than it will: otherwise the check afterwards would prove nothing.
			if f.sessions != 1 || f.rdma <= r.before.rdma || f.memory <= r.before.memory {
				return "", fmt.Errorf("before the guest is killed: %+v, and without it: %+v", f, r.before)
			}
			r.Logf("under load %+v", f)
			r.guest.kill()
			return "", nil
		},
		Finish: finishGuestKilled,
	},
}

// hostKill: kill, then start again with the same file.
func hostKill(r *Run, _ string, _ []string) (string, error) {
	r.target.proc.kill()
	r.Logf("sluiced killed")
	time.Sleep(time.Second) // as long as a supervisor takes
	return "sluiced is back\n", r.target.start()
}

// cutter is a TCP relay before the target that can break the connection it carries.
type cutter struct {
	ln net.Listener
	to string

	mu    sync.Mutex
	after int64 // bytes until the cut, -1 for none
	cut   chan struct{}
	// deserted, when not nil, makes the cut one-sided: the initiator's end breaks, the target is told nothing and keeps
	// its connection. It is closed when the target ends that connection of its own accord.
	deserted chan struct{}
}

func newCutter(r *Run, to string) (*cutter, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &cutter{ln: ln, to: to, after: -1}
	r.Defer(func() { _ = ln.Close() })
	go func() {
		for {
			a, err := ln.Accept()
			if err != nil {
				return
			}
			go c.relay(a)
		}
	}()
	return c, nil
}

func (c *cutter) relay(a net.Conn) {
	b, err := net.Dial("tcp", c.to)
	if err != nil {
		_ = a.Close()
		return
	}
	// An abortive close: neither end gets a FIN and what is under way is lost, as when a machine in between dies.
	var alone atomic.Bool // the target is left with an open connection
	abort := func() {
		for _, x := range []net.Conn{a, b} {
			if x == b && alone.Load() {
				continue
			}
			_ = x.(*net.TCPConn).SetLinger(0)
			_ = x.Close()
		}
	}
	var wg sync.WaitGroup
	for _, d := range [][2]net.Conn{{a, b}, {b, a}} {
		wg.Go(func() {
			buf := make([]byte, 32<<10)
			for {
				n, err := d[0].Read(buf)
				n, last, deserted := c.spend(n)
				if n > 0 {
					if _, werr := d[1].Write(buf[:n]); werr != nil {
						err = werr
					}
				}
				if last {
					alone.Store(deserted != nil)
					abort()
					if deserted != nil {
						_, _ = io.Copy(io.Discard, b)
						close(deserted)
					}
					return
				}
				if err != nil {
					if errors.Is(err, io.EOF) {
						_ = d[1].(*net.TCPConn).CloseWrite()
						return
					}
					abort()
					return
				}
			}
		})
	}
	wg.Wait()
	_ = a.Close()
	_ = b.Close()
}

// spend returns how many of n bytes still pass, whether the cut comes behind them, and for a one-sided cut the channel
// that tells of its other side.
func (c *cutter) spend(n int) (int, bool, chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.after < 0 {
		return n, false, nil
	}
	if int64(n) < c.after {
		c.after -= int64(n)
		return n, false, nil
	}
	n = int(c.after)
	c.after = -1
	close(c.cut)
	return n, true, c.deserted
}

// arm makes the cut come after that many more bytes; the channel is closed then.
func (c *cutter) arm(after int64, deserted chan struct{}) chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.after, c.cut, c.deserted = after, make(chan struct{}), deserted
	return c.cut
}

func prepareCut(cuts int) func(*Run) error {
	return func(r *Run) error {
		t, err := r.serve(unit{"disk", "file", "256MiB"})
		if err != nil {
			return err
		}
		if r.cutter, err = newCutter(r, loopback(t.port)); err != nil {
			return err
		}
		r.Env = append(r.Env, fmt.Sprint("PORT=", r.cutter.ln.Addr().(*net.TCPAddr).Port), fmt.Sprint("CUTS=", cuts))
		return nil
	}
}

// hostCut breaks the connection once, at a random point of what flows from now on. With "deserted" only the initiator's
// side breaks, and the answer comes when the target has ended its own side.
func hostCut(r *Run, _ string, args []string) (string, error) {
	after := rand.Int64N(2 << 20)
	var deserted chan struct{}
	if slices.Contains(args, "deserted") {
		deserted = make(chan struct{})
	}
	select {
	case <-r.cutter.arm(after, deserted):
	case <-time.After(100 * time.Second):
		return "", fmt.Errorf("%d bytes did not flow within 100 s", after)
	case <-r.Ctx.Done():
		return "", r.Ctx.Err()
	}
	if deserted == nil {
		return fmt.Sprintf("cut after %d bytes\n", after), nil
	}
	select {
	case <-deserted:
	case <-time.After(100 * time.Second):
		return "", errors.New("100 s after its initiator was gone the target still holds the connection")
	case <-r.Ctx.Done():
		return "", r.Ctx.Err()
	}
	var f footprint
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		var err error
		if f, err = r.target.footprint(); err != nil {
			return "", err
		}
		if f.sessions == 1 {
			return fmt.Sprintf("deserted after %d bytes\n", after), nil
		}
	}
	return "", fmt.Errorf("the old session should be gone and the new one there, but there are %d", f.sessions)
}

// finishReinstatement: the target's own log says why each old session ended.
func finishReinstatement(r *Run) error {
	if err := r.target.proc.stop(); err != nil {
		return err
	}
	said, err := os.ReadFile(filepath.Join(r.Dir, "sluiced.txt"))
	if err != nil {
		return err
	}
	if n := strings.Count(string(said), "this session made room"); n < 3 {
		return fmt.Errorf("the target says %d times that a session made room for its successor, not 3", n)
	}
	return nil
}

// footprint is what a session costs, as seen from outside the process and as the process itself counts it.
type footprint struct {
	sessions int
	sockets  int // descriptors of the process that are sockets
	resident int // KiB
	stags    int // that exist
	rdma     int // RDMA connections
	memory   int // bytes of registered buffers handed out
}

// within reports whether nothing is held that was not held before. Resident memory is left out: freed memory is the
// allocator's to keep.
func (f footprint) within(before footprint) bool {
	return f.sessions <= before.sessions && f.sockets <= before.sockets && f.stags <= before.stags && f.rdma <= before.rdma && f.memory <= before.memory
}

func (t *target) footprint() (f footprint, err error) {
	out, err := t.r.output("sluice", "session", "list", "--socket", filepath.Join(t.r.Tmp, "state", "admin.sock"), "--output", "json")
	if err != nil {
		return f, err
	}
	var list []json.RawMessage
	if err := json.Unmarshal(out, &list); err != nil {
		return f, fmt.Errorf("session list: %w: %s", err, out)
	}
	f.sessions = len(list)
	proc := fmt.Sprintf("/proc/%d/", t.proc.cmd.Process.Pid)
	fds, err := os.ReadDir(proc + "fd")
	if err != nil {
		return f, err
	}
	for _, fd := range fds {
		if to, err := os.Readlink(proc + "fd/" + fd.Name()); err == nil && len(to) > 7 && to[:7] == "socket:" {
			f.sockets++
		}
	}
	statm, err := os.ReadFile(proc + "statm")
	if err != nil {
		return f, err
	}
	var size, resident int
	if _, err := fmt.Sscan(string(statm), &size, &resident); err != nil {
		return f, err
	}
	f.resident = resident * os.Getpagesize() / 1024
	return f, t.metrics(map[string]*int{"sluice_stags": &f.stags, "sluice_fabric_connections": &f.rdma, "sluice_memory_used_bytes": &f.memory})
}

// metrics adds up the samples of the named metrics.
func (t *target) metrics(want map[string]*int) error {
	socket := filepath.Join(t.r.Tmp, "state", "admin.sock")
	client := http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}}}
	resp, err := client.Get("http://sluiced/metrics")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	seen := map[string]bool{}
	sc := bufio.NewScanner(resp.Body)
	for sc.Scan() {
		i := strings.LastIndexByte(sc.Text(), ' ') // labels may have spaces, the value has none
		if i < 0 {
			continue
		}
		sample, value := sc.Text()[:i], sc.Text()[i+1:]
		name, _, _ := strings.Cut(sample, "{")
		if sum := want[name]; sum != nil {
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return fmt.Errorf("%s: %w", sc.Text(), err)
			}
			*sum += int(v)
			seen[name] = true
		}
	}
	if len(seen) != len(want) {
		return fmt.Errorf("of %d metrics the target has %v", len(want), seen)
	}
	return sc.Err()
}

// finishGuestKilled looks until everything the guest had is given back, then checks the file system it wrote to.
func finishGuestKilled(r *Run) error {
	var f footprint
	var err error
	for end := time.Now().Add(90 * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if f, err = r.target.footprint(); err != nil {
			return err
		}
		if f.within(r.before) {
			r.Logf("before %+v, after %+v", r.before, f)
			return r.target.proc.stop()
		}
	}
	return fmt.Errorf("90 s after the guest was killed the target still holds %+v; before it came it held %+v", f, r.before)
}

// output runs one of the binaries under test and returns its standard output alone.
func (r *Run) output(name string, args ...string) ([]byte, error) {
	c := command(r.Ctx, filepath.Join(r.lab.bin, name), args...)
	out, err := c.Output()
	if err != nil {
		return out, fmt.Errorf("%s %q: %w", name, args, err)
	}
	return out, nil
}
