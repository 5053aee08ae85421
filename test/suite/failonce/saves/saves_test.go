package saves

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/sluice-storage/sluice/target/admin"
	"github.com/sluice-storage/sluice/test/lib/faultfs"
	"github.com/sluice-storage/sluice/test/lib/proc"
	"github.com/sluice-storage/sluice/test/lib/storm"
)

var bin string

func TestMain(m *testing.M) { os.Exit(proc.Build(m, &bin)) }

const target = "iqn.2026-11.io.sluice:saves"

const (
	erasable = 1 // the LUN that may be erased,
	size     = 1 << 20
)

// stand is a daemon whose state lies on a medium that fails.
type stand struct {
	t      *testing.T
	fs     *faultfs.Through
	d      *proc.Daemon
	health *http.Client
	text   string // of the operator's file
	logged int    // how much of the log is of daemons before
	n      int
}

func newStand(t *testing.T) *stand {
	t.Helper()
	s := &stand{t: t, fs: faultfs.MountThrough(t, false)}
	dir := t.TempDir()
	for _, name := range []string{"v", "e"} {
		must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
		must(t, os.Truncate(filepath.Join(dir, name), size))
	}
	must(t, os.Mkdir(filepath.Join(dir, "x"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "x", "f"), nil, 0o600))
	s.d = proc.New(t, bin, fmt.Sprintf("volumes: [{name: v, path: %[1]s/v}, {name: e, path: %[1]s/e, erase: true}]\n"+
		"targets: [{name: %[2]q, luns: [{lun: 0, volume: v}, {lun: %[3]d, volume: e}]}]\n"+
		"files: {tcp: \"127.0.0.1:0\", rdma: none, rpcbind: none, grace: 1ms}\n"+
		"exports: [{name: /x, path: %[1]s/x, clients: [{match: 127.0.0.1, any_port: true, squash: none}]}]\n", dir, target, erasable))
	b, err := os.ReadFile(filepath.Join(s.d.Dir, "sluiced.yaml"))
	must(t, err)
	s.text = string(b)
	must(t, os.Remove(s.d.State))
	must(t, os.Symlink(s.fs.Dir, s.d.State))
	sock := filepath.Join(s.d.State, "admin.sock")
	s.health = &http.Client{Timeout: proc.Patience, Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", sock)
	}}}
	t.Cleanup(func() {
		s.fs.Fault(nil)
		s.health.CloseIdleConnections()
		s.d.Kill()
	})
	s.fs.Fault((&nth{n: -1}).call)
	s.d.Start()
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// healthy has the daemon tell its health, over a connection that it keeps: a directory in which a call hangs opens no socket.
func (s *stand) healthy() error {
	r, err := s.health.Get("http://sluice/healthz")
	if err != nil {
		return err
	}
	_ = r.Body.Close()
	return nil
}

// portal is where the daemon listens.
func (s *stand) portal() (string, error) {
	out, code := s.d.Sluice("portals", "-o", "json")
	var ps []admin.Portal
	if code != 0 {
		return "", &refused{out}
	}
	if err := json.Unmarshal([]byte(out), &ps); err != nil || len(ps) == 0 {
		return "", fmt.Errorf("portals: %w\n%s", err, out)
	}
	return ps[0].Address, nil
}

// restart kills the daemon and starts it again.
func (s *stand) restart(dead func()) {
	s.t.Helper()
	s.health.CloseIdleConnections()
	s.d.Kill()
	s.logged = len(s.d.Log())
	if dead != nil {
		dead()
	}
	s.d.Start()
}

const (
	// hangs stands for a call that is not answered for a while, and is done then.
	hangs = syscall.Errno(1 << 21)
	// killed stands for a kill of the daemon with the call made, killedBefore for one without.
	killed, killedBefore = syscall.Errno(1 << 22), syscall.Errno(1 << 23)
)

var faults = []syscall.Errno{syscall.EIO, syscall.ENOSPC, syscall.EDQUOT, syscall.EINTR, faultfs.Short, hangs, killed, killedBefore}

// name says what a fault is.
func name(errno syscall.Errno) string {
	switch errno {
	case faultfs.Short:
		return "a short count"
	case hangs:
		return "hangs for a while"
	case killed:
		return "the daemon is killed"
	case killedBefore:
		return "the daemon is killed before it"
	}
	return errno.Error()
}

// looks are calls that the clients make, too, for the daemon's socket lies in the directory.
var looks = []string{"lookup", "getattr", "statx", "access", "statfs", "getxattr"}

// nth fails the n-th call from now on.
type nth struct {
	n    int
	err  syscall.Errno
	kill func()
	hung chan struct{} // closed when the call has come that is meant
	free chan struct{} // closed to let one go that hangs

	mu   sync.Mutex
	seen []string
	hit  bool
}

func (k *nth) call(c faultfs.Call) syscall.Errno {
	switch {
	case slices.Contains(looks, c.Name):
		return 0
	case c.Name == "tmpfile":
		return syscall.EOPNOTSUPP // a file without a name cannot be linked in this file system
	}
	k.mu.Lock()
	k.seen = append(k.seen, c.Name)
	if len(k.seen)-1 != k.n || k.err == faultfs.Short && c.Name != "read" && c.Name != "write" {
		k.mu.Unlock()
		return 0
	}
	k.hit = true
	k.mu.Unlock()
	close(k.hung)
	switch k.err {
	case hangs:
		<-k.free
		return 0
	case killed, killedBefore:
		k.kill()
		if k.err == killed {
			return 0
		}
		return syscall.EIO
	}
	return k.err
}

func (k *nth) result() ([]string, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.seen, k.hit
}

// afterAnswer holds what was answered against what is there, at once and after a restart.
func (s *stand) afterAnswer(p *piece, k int, what string, err error) {
	s.t.Helper()
	if !s.d.Alive() {
		s.t.Fatalf("%s: the daemon has ended", what)
	}
	judge := func(when string, there func(*stand, int) bool) {
		s.t.Helper()
		if is := there(s, k); is != (err == nil) {
			s.t.Errorf("%s: the answer is %v, and %s it is there: %v", what, err, when, is)
		}
	}
	judge("at once", p.there)
	s.restart(func() {
		if err != nil && p.refused != nil {
			p.refused(s, k)
		}
		if p.dead != nil {
			judge("on the disk", p.dead)
		}
	})
	if p.dead == nil {
		judge("after a restart", p.there)
	}
}

// afterKill starts the daemon again: it serves, and what was answered before it died is there.
func (s *stand) afterKill(p *piece, k int, what string, err error) {
	s.t.Helper()
	is := false
	s.restart(func() {
		if p.dead != nil {
			is = p.dead(s, k)
		}
	})
	if p.dead == nil {
		is = p.there(s, k)
	}
	if err == nil && !is {
		s.t.Errorf("%s: the answer was a success, and after the restart it is not there", what)
	}
	storm.Count(s.t, "kills in saves", 1)
}

// trial has the n-th call of a piece fail, and returns the calls that there were.
func (s *stand) trial(p *piece, n int, errno syscall.Errno) (calls []string, hit bool) {
	s.t.Helper()
	s.n++
	k := s.n
	if p.ready != nil {
		must(s.t, p.ready(s, k))
	}
	must(s.t, s.healthy())
	f := &nth{n: n, err: errno, kill: func() { s.d.Signal(syscall.SIGKILL) }, hung: make(chan struct{}), free: make(chan struct{})}
	s.fs.Fault(f.call)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- p.do(ctx, s, k) }()
	var err error
	kills := errno == killed || errno == killedBefore
	select {
	case err = <-done:
	case <-f.hung:
		switch {
		case errno == hangs:
			if err := s.healthy(); err != nil {
				s.t.Errorf("%s, call %d hangs: no health: %v", p.name, n, err)
			}
		case kills:
			cancel() // no initiator waits for it to come back
		}
		close(f.free)
		err = <-done
	}
	select {
	case <-f.free:
	default:
		close(f.free) // a call that was made behind the answer may hang still
	}
	s.fs.Fault((&nth{n: -1}).call)
	calls, hit = f.result()
	what := fmt.Sprintf("%s, call %d of %v: %s", p.name, n, calls, name(errno))
	if errno == hangs && err != nil && hit {
		s.t.Errorf("%s: a call that was only slow: %v", what, err)
	}
	if n < 0 && err != nil {
		s.t.Fatalf("%s: %v", what, err)
	}
	if kills && hit {
		s.afterKill(p, k, what, err)
	} else {
		s.afterAnswer(p, k, what, err)
	}
	if errno != 0 && hit {
		storm.Count(s.t, "calls of saves failed", 1)
	}
	return calls, hit
}

// Each change either is made and stays, or is refused and leaves nothing, whichever of its calls to the state directory
// fails. The short form fails one call of each piece in one way; runs of the long one try all of them, in all ways.
func TestStormSaves(t *testing.T) {
	for r := range uint64(storm.Rounds(t, 1)) {
		seed := storm.Seed(t) + r
		for i := range pieces {
			p := &pieces[i]
			t.Run(p.name, func(t *testing.T) {
				t.Parallel() // a trial waits more than it computes
				s := newStand(t)
				s.each(seed, i, func(n int, errno syscall.Errno) ([]string, bool) { return s.trial(p, n, errno) })
			})
		}
		t.Run("a start", func(t *testing.T) {
			t.Parallel()
			s := newStand(t)
			s.each(seed, len(pieces), s.start)
		})
	}
}

const (
	// shares is how many runs of the long form do all there is to be done: a run is to last some minutes.
	shares = 12
	// tries is how often the short form draws a call of a piece and a fault before it gives up.
	tries = 20
)

// each has each call of a trial fail in each way, or the run's share of them.
func (s *stand) each(seed uint64, of int, trial func(n int, errno syscall.Errno) ([]string, bool)) {
	s.t.Helper()
	rng := rand.New(rand.NewPCG(seed, uint64(of)))
	calls, _ := trial(-1, 0)
	if len(calls) == 0 {
		s.t.Fatal("no call is made to the state directory: nothing is tried")
	}
	s.t.Log(calls)
	if !storm.Long() {
		// A trial that hits nothing is none: calls come in another order, or the fault does not apply to the one drawn.
		for range tries {
			if _, hit := trial(rng.IntN(len(calls)), faults[rng.IntN(len(faults))]); hit {
				return
			}
		}
		s.t.Fatalf("%d trials have failed no call", tries)
	}
	share := storm.Share(s.t, shares)
	for n := range calls {
		for i, errno := range faults {
			if (n*len(faults)+i)%shares == share {
				trial(n, errno)
			}
		}
	}
}
