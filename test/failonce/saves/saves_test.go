package saves

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/test/faultfs"
	"github.com/sluice-storage/sluice/test/proc"
	"github.com/sluice-storage/sluice/test/storm"
)

var bin string

func TestMain(m *testing.M) { os.Exit(proc.Build(m, &bin)) }

const target = "iqn.2026-11.io.sluice:saves"

// piece is a change that is written down. k is a number of its own for each trial.
type piece struct {
	name  string
	ready func(s *stand, k int) error // what has to be there before, nil for nothing
	do    func(s *stand, k int) error
	there func(s *stand, k int) bool // whether it has been made
}

// refused is the answer of a command that was not carried out.
type refused struct{ out string }

func (r *refused) Error() string { return r.out }

// command runs a command of the administrator's.
func (s *stand) command(args ...string) error {
	if out, code := s.d.Sluice(args...); code != 0 {
		return &refused{out}
	}
	return nil
}

// says reports whether the daemon's answer has all the words in one line.
func (s *stand) says(args []string, words ...string) bool {
	s.t.Helper()
	out, code := s.d.Sluice(args...)
	if code != 0 {
		s.t.Fatalf("%v: exit code %d\n%s", args, code, out)
	}
	return slices.ContainsFunc(strings.Split(out, "\n"), func(l string) bool {
		return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(l, w) })
	})
}

var volumes, targets = []string{"volume", "list"}, []string{"target", "list"}

func volume(k int) string { return fmt.Sprintf("v%dv", k) }
func iqn(k int) string    { return fmt.Sprintf("%s-%dt", target, k) }

var pieces = []piece{
	{"create a volume", nil, func(s *stand, k int) error { return s.command("volume", "create", volume(k), "1MiB") },
		func(s *stand, k int) bool { return s.says(volumes, volume(k)) }},
	{"create a target", nil, func(s *stand, k int) error { return s.command("target", "create", iqn(k)) },
		func(s *stand, k int) bool { return s.says(targets, iqn(k)) }},
	{"map", func(s *stand, k int) error { return s.command("volume", "create", volume(k), "1MiB") },
		func(s *stand, k int) error { return s.command("target", "map", target, fmt.Sprint(k), volume(k)) },
		func(s *stand, k int) bool {
			_, end, err := s.open(uint16(k))
			if err == nil {
				end()
			}
			return err == nil
		}},
	{"delete a target", func(s *stand, k int) error { return s.command("target", "create", iqn(k)) },
		func(s *stand, k int) error { return s.command("target", "delete", iqn(k), "--yes") },
		func(s *stand, k int) bool { return !s.says(targets, iqn(k)) }},
	{"register a key that lasts", nil, func(s *stand, k int) error { return s.register(uint64(k) + 1) },
		func(s *stand, k int) bool { return slices.Contains(s.keys(), uint64(k)+1) }},
}

// stand is a daemon whose state lies on a medium that fails.
type stand struct {
	t      *testing.T
	ctx    context.Context
	fs     *faultfs.Through
	d      *proc.Daemon
	health *http.Client
	n      int
}

func newStand(t *testing.T) *stand {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s := &stand{t: t, ctx: ctx, fs: faultfs.MountThrough(t, false)}
	file := filepath.Join(t.TempDir(), "v")
	must(t, os.WriteFile(file, nil, 0o600))
	must(t, os.Truncate(file, 1<<20))
	s.d = proc.New(t, bin, fmt.Sprintf("volumes: [{name: v, path: %q}]\ntargets: [{name: %q, luns: [{lun: 0, volume: v}]}]\n", file, target))
	must(t, os.Remove(s.d.State))
	must(t, os.Symlink(s.fs.Dir, s.d.State))
	sock := filepath.Join(s.d.State, "admin.sock")
	s.health = &http.Client{Timeout: proc.Patience, Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", sock)
	}}}
	t.Cleanup(func() {
		s.fs.Fault(nil)
		cancel()
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

// open logs in to a LUN of the target.
func (s *stand) open(lun uint16) (*block.Volume, func(), error) {
	ini, err := block.New(block.Options{ReconnectLimit: proc.Patience})
	if err != nil {
		return nil, nil, err
	}
	v, err := ini.Open(s.ctx, fmt.Sprintf("iscsi://%s/%s/%d", s.d.Portal(), target, lun))
	if err != nil {
		return nil, nil, errors.Join(err, ini.Close())
	}
	return v, func() { must(s.t, errors.Join(v.Close(), ini.Close())) }, nil
}

// register is PERSISTENT RESERVE OUT, REGISTER AND IGNORE EXISTING KEY with APTPL (SPC-4 section 6.16).
func (s *stand) register(key uint64) error {
	v, end, err := s.open(0)
	must(s.t, err)
	defer end()
	b := make([]byte, 24)
	for i := range 8 {
		b[8+i] = byte(key >> (56 - 8*i))
	}
	b[20] = 1
	_, err = v.Raw(s.ctx, []byte{0x5f, 6, 0, 0, 0, 0, 0, 0, 24, 0}, b, false)
	return err
}

// keys are those that are registered.
func (s *stand) keys() []uint64 {
	v, end, err := s.open(0)
	must(s.t, err)
	defer end()
	b := make([]byte, 4096)
	n, err := v.Raw(s.ctx, []byte{0x5e, 0, 0, 0, 0, 0, 0, 16, 0, 0}, b, true)
	must(s.t, err)
	var l []uint64
	for k := b[8:max(n, 8)]; len(k) >= 8; k = k[8:] {
		var x uint64
		for _, c := range k[:8] {
			x = x<<8 | uint64(c)
		}
		l = append(l, x)
	}
	return l
}

// hangs stands for a call that is not answered for a while, and is done then.
const hangs = syscall.Errno(1 << 21)

var faults = []syscall.Errno{syscall.EIO, syscall.ENOSPC, syscall.EDQUOT, faultfs.Short, hangs}

// looks are calls that the clients make, too, for the daemon's socket lies in the directory.
var looks = []string{"lookup", "getattr", "statx", "access", "statfs", "getxattr"}

// nth fails the n-th call from now on.
type nth struct {
	n    int
	err  syscall.Errno
	hung chan struct{}
	free chan struct{}

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
	if k.err == hangs {
		close(k.hung)
		<-k.free
		return 0
	}
	return k.err
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
	f := &nth{n: n, err: errno, hung: make(chan struct{}), free: make(chan struct{})}
	s.fs.Fault(f.call)
	done := make(chan error, 1)
	go func() { done <- p.do(s, k) }()
	var err error
	select {
	case err = <-done:
	case <-f.hung:
		if err := s.healthy(); err != nil {
			s.t.Errorf("%s, call %d hangs: no health: %v", p.name, n, err)
		}
		close(f.free)
		err = <-done
	}
	s.fs.Fault((&nth{n: -1}).call)
	f.mu.Lock()
	calls, hit = f.seen, f.hit
	f.mu.Unlock()
	what := fmt.Sprintf("%s, call %d of %v: %v", p.name, n, calls, errno)
	if errno == hangs && err != nil && hit {
		s.t.Errorf("%s: a call that was only slow: %v", what, err)
	}
	if n < 0 && err != nil {
		s.t.Fatalf("%s: %v", what, err)
	}
	if !s.d.Alive() {
		s.t.Fatalf("%s: the daemon has ended", what)
	}
	for _, when := range []string{"at once", "after a restart"} {
		if is := p.there(s, k); is != (err == nil) {
			s.t.Errorf("%s: the answer is %v, and %s it is there: %v", what, err, when, is)
		}
		if when == "at once" {
			s.health.CloseIdleConnections()
			s.d.Kill()
			s.d.Start()
		}
	}
	if errno != 0 && hit {
		storm.Count(s.t, "calls of saves failed", 1)
	}
	return calls, hit
}

// Each change either is made and stays, or is refused and leaves nothing, whichever of its calls to the state directory
// fails. The short form tries a few calls of each piece; the long one all of them, in all ways.
func TestStormSaves(t *testing.T) {
	rng := rand.New(rand.NewPCG(storm.Seed(t), 7))
	for range storm.Rounds(t, 1) {
		for i := range pieces {
			p := &pieces[i]
			t.Run(p.name, func(t *testing.T) {
				s := newStand(t)
				calls, _ := s.trial(p, -1, 0)
				if len(calls) == 0 {
					t.Fatal("the change makes no call to the state directory: nothing is tried")
				}
				t.Log(calls)
				for n := range calls {
					for _, errno := range faults {
						if !storm.Long() && rng.IntN(len(calls)*len(faults)) >= 2 {
							continue
						}
						s.trial(p, n, errno)
					}
				}
			})
		}
	}
}
