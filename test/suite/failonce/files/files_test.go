package files

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	infs "github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/internal/mount3"
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/test/lib/faultfs"
	"github.com/sluice-storage/sluice/test/lib/need"
	"github.com/sluice-storage/sluice/test/lib/proc"
	"github.com/sluice-storage/sluice/test/lib/storm"
)

var bin string

func TestMain(m *testing.M) { os.Exit(proc.Build(m, &bin)) }

// limit is how long a call may take on a machine that does much else.
const limit = 2 * proc.Patience

// stand is a daemon with two exports, one on a medium that fails.
type stand struct {
	t       *testing.T
	fs      *faultfs.Through
	d       *proc.Daemon
	health  *http.Client
	addr    string
	a, b    *client
	other   *client
	otherFH []byte
	root    []byte
	ini     *infs.FS
	nfscp   string
	local   string
	n       int // trials
}

var exportPort = regexp.MustCompile(`nfsport=(\d+)`)

func newStand(t *testing.T, writeback bool) *stand {
	t.Helper()
	need.Root(t)
	s := &stand{t: t, fs: faultfs.MountThrough(t, writeback), local: t.TempDir(), nfscp: need.Tool(t, "nfs-cp", "libnfs-utils")}
	const rights = "clients: [{match: 127.0.0.1, any_port: true, squash: none}]"
	s.d = proc.New(t, bin, fmt.Sprintf("files: {tcp: \"127.0.0.1:0\", rdma: none, grace: 1ms}\nexports:\n- {name: /a, path: %q, %s}\n- {name: /b, path: %q, %s}\n",
		s.fs.Dir, rights, t.TempDir(), rights))
	// No call may hang beyond the test, whatever it has asserted.
	t.Cleanup(func() { s.fs.Fault(nil) })
	s.d.Start()
	var m []string
	for end := time.Now().Add(proc.Patience); m == nil; time.Sleep(time.Millisecond) { // its log comes by a pipe
		if m = exportPort.FindStringSubmatch(s.d.Log()); m == nil && time.Now().After(end) {
			t.Fatal("no export is logged")
		}
	}
	s.addr = net.JoinHostPort("127.0.0.1", m[1])
	s.a, s.b, s.other = dial(s.addr), dial(s.addr), dial(s.addr)
	var err error
	s.root, err = s.a.mount("/a")
	must(t, err)
	s.otherFH, err = s.other.mount("/b")
	must(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	s.ini, _, err = infs.Mount(ctx, "nfs://"+s.addr+"/a?mountport="+m[1], infs.Options{})
	must(t, err)
	sock := filepath.Join(s.d.State, "admin.sock")
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", sock)
	}}
	s.health = &http.Client{Transport: tr, Timeout: proc.Patience}
	t.Cleanup(func() {
		s.fs.Fault(nil)
		for _, c := range []*client{s.a, s.b, s.other} {
			must(t, c.c.Close())
		}
		must(t, s.ini.Close())
		tr.CloseIdleConnections()
		s.d.Kill()
	})
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// nth fails the n-th call from now on, or holds it up, and counts them.
type nth struct {
	n    int
	err  syscall.Errno
	hang chan struct{} // the call waits for it, nil for none
	hung chan struct{}

	mu   sync.Mutex
	seen int
	hit  string
	last string // the call before it
}

func (k *nth) call(c faultfs.Call) syscall.Errno {
	k.mu.Lock()
	k.seen++
	if k.hit == "" && k.seen-1 < k.n {
		k.last = c.Name
	}
	if k.seen-1 != k.n || k.err == faultfs.Short && c.Name != "read" && c.Name != "write" {
		k.mu.Unlock()
		return 0
	}
	k.hit = c.Name
	k.mu.Unlock()
	if k.hang != nil {
		close(k.hung)
		<-k.hang
	}
	return k.err
}

func (k *nth) result() (seen int, hit string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.seen, k.hit
}

// hangs stands for a call that is not answered for a while, and is done then.
const hangs = syscall.Errno(1 << 21)

var faults = []syscall.Errno{syscall.EIO, syscall.ENOSPC, syscall.EDQUOT, syscall.EINTR, faultfs.Short, hangs}

// right reports whether a procedure may answer err when its medium said errno. made says that what was asked is done.
func right(err error, errno syscall.Errno, made bool) bool {
	var m mount3.Status
	var l lockError
	switch {
	case errors.As(err, &m):
		return m == mount3.ErrIO || m == mount3.ErrServerfault
	case errors.As(err, &l):
		return true
	}
	var st nfs3.Status
	if !errors.As(err, &st) {
		return false // no answer, or a wrong one
	}
	switch errno {
	case syscall.ENOSPC:
		return st == nfs3.ErrNospc
	case syscall.EDQUOT:
		return st == nfs3.ErrDquot
	case syscall.EINTR: // nothing is wrong with the medium
		return st == nfs3.ErrIO || st == nfs3.ErrServerfault || st == nfs3.ErrJukebox && !made
	}
	return st == nfs3.ErrIO
}

// snapshot is what lies below a directory, by name.
func (s *stand) snapshot(dir string, times bool) map[string]string {
	s.t.Helper()
	m := map[string]string{}
	must(s.t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		fi, err := e.Info()
		if err != nil {
			return err
		}
		st, is := fi.Sys().(*syscall.Stat_t)
		if !is {
			return errors.New("no stat")
		}
		what := fmt.Sprintf("%v %d:%d", fi.Mode(), st.Uid, st.Gid)
		switch {
		case fi.Mode().IsRegular():
			b, err := readQuietly(path)
			if err != nil {
				return err
			}
			what += fmt.Sprintf(" %d bytes %x, %d names", len(b), sha256.Sum256(b), st.Nlink)
		case fi.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			what += " to " + to
		}
		if times && name == "f" {
			what += fi.ModTime().String()
		}
		m[name] = what
		return nil
	}))
	return m
}

// readQuietly reads a file and leaves its times, in which CREATE EXCLUSIVE has its number.
func readQuietly(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOATIME, 0)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(f)
	return b, errors.Join(err, f.Close())
}

func difference(a, b map[string]string) string {
	var l []string
	for name, what := range a {
		if b[name] != what {
			l = append(l, fmt.Sprintf("%s: %q and %q", name, what, b[name]))
		}
	}
	for name, what := range b {
		if _, ok := a[name]; !ok {
			l = append(l, fmt.Sprintf("%s: not there and %q", name, what))
		}
	}
	slices.Sort(l)
	return strings.Join(l, "\n")
}

// begin prepares a directory for one trial.
func (s *stand) begin(times bool) (x *env, dir string, before map[string]string) {
	s.t.Helper()
	s.n++
	name := fmt.Sprint("t", s.n)
	dir = filepath.Join(s.fs.Below, name)
	must(s.t, os.Mkdir(dir, 0o755))
	must(s.t, prepare(dir))
	x = &env{a: s.a, b: s.b, name: name, fs: s.ini, local: s.local, nfscp: s.nfscp}
	_, port, err := net.SplitHostPort(s.addr)
	must(s.t, err)
	x.url = func(file string) string {
		return "nfs://127.0.0.1/a/" + name + "/" + file + "?nfsport=" + port + "&mountport=" + port
	}
	x.dir, err = s.a.lookup(s.root, name)
	must(s.t, err)
	for of, to := range map[string]*[]byte{"f": &x.f, "g": &x.g, "d": &x.d, "l": &x.l} {
		*to, err = s.a.lookup(x.dir, of)
		must(s.t, err)
	}
	return x, dir, s.snapshot(dir, times)
}

// plain is what a piece of work does where nothing fails.
type plain struct {
	calls int
	asked map[string]string
}

func (s *stand) plain(p *piece) plain {
	s.t.Helper()
	x, dir, _ := s.begin(p.times)
	k := &nth{n: -1}
	x.hit = func() bool { return false }
	s.fs.Fault(k.call)
	err := p.do(x)
	s.fs.Fault(nil)
	if err != nil {
		s.t.Fatalf("%s, where nothing fails: %v", p.name, err)
	}
	calls, _ := k.result()
	out := plain{calls, s.snapshot(dir, p.times)}
	must(s.t, os.RemoveAll(dir))
	return out
}

// trial does the work with its n-th call to the medium failing, and judges. It reports whether there was such a call.
func (s *stand) trial(p *piece, pl plain, n int, errno syscall.Errno) bool {
	s.t.Helper()
	x, dir, before := s.begin(p.times)
	k := &nth{n: n, err: errno}
	if errno == hangs {
		k.err, k.hang, k.hung = 0, make(chan struct{}), make(chan struct{})
	}
	x.hit = func() bool {
		_, hit := k.result()
		return hit != ""
	}
	s.fs.Fault(k.call)
	done := make(chan error, 1)
	go func() { done <- p.do(x) }()
	if errno == hangs {
		select {
		case err := <-done:
			done <- err
		case <-k.hung:
			s.others(p, n)
			close(k.hang)
		}
	}
	err := <-done
	s.fs.Fault(nil)
	_, hit := k.result()
	if hit == "" {
		must(s.t, os.RemoveAll(dir))
		return false
	}
	after := s.snapshot(dir, p.times)
	how := errno.Error()
	switch errno {
	case faultfs.Short:
		how = "a short count"
	case hangs:
		how = "hangs for a while"
	}
	what := fmt.Sprintf("%s, call %d (%s): %s", p.name, n, hit, how)
	if !s.d.Alive() {
		s.t.Fatalf("%s: the daemon has ended", what)
	}
	if p.loss {
		s.judgeLoss(what, x, dir, hit, errno, err)
		must(s.t, os.RemoveAll(dir))
		return true
	}
	made := maps.Equal(after, pl.asked)
	var st nfs3.Status
	switch {
	case errors.Is(err, errWrong):
		s.t.Errorf("%s: %v", what, err)
	case err == nil && !made:
		s.t.Errorf("%s: success, and what was asked for is not there:\n%s", what, difference(pl.asked, after))
	case err == nil && errno != syscall.EINTR && errno != hangs && errno != faultfs.Short && (hit == "fsync" || hit == "fsyncdir") && !p.many:
		s.t.Errorf("%s: success, and it was not made durable", what)
	case err != nil && (errno == hangs || errno == faultfs.Short):
		s.t.Errorf("%s: refused, and nothing failed: %v", what, err)
	case err != nil && !p.many && !right(err, errno, made && !maps.Equal(before, pl.asked)):
		s.t.Errorf("%s: the answer is %v", what, err)
	case err != nil && !p.many && !made && !maps.Equal(before, after) && !half(p, before, after):
		s.t.Errorf("%s: half done, and %v:\n%s", what, err, difference(before, after))
	}
	// Whatever it was, it is over; and what was not done can be done now.
	err2 := p.do(x)
	now := s.snapshot(dir, p.times)
	again := errors.As(err2, &st) && (st == nfs3.ErrExist || st == nfs3.ErrNoent)
	switch {
	case err2 == nil && maps.Equal(now, pl.asked):
	case made && again && !strings.Contains(p.name, "EXCLUSIVE"):
	case err != nil && again && k.last == "create": // the medium made it and said that it had not
	case p.many && (err != nil || made):
	case !made && again && half(p, before, after):
	default:
		s.t.Errorf("%s: answered %v; the next call: %v\n%s", what, err, err2, difference(pl.asked, now))
	}
	must(s.t, os.RemoveAll(dir))
	return true
}

// half says what a call that failed may have done in part. A WRITE may have reached some of its range.
func half(p *piece, before, after map[string]string) bool {
	if !strings.HasPrefix(p.name, "WRITE") {
		return false
	}
	a, b := maps.Clone(before), maps.Clone(after)
	delete(a, "f")
	delete(b, "f")
	return maps.Equal(a, b)
}

// judgeLoss holds what the clients were told against what is beneath.
func (s *stand) judgeLoss(what string, x *env, dir, hit string, errno syscall.Errno, err error) {
	s.t.Helper()
	if errors.Is(err, errWrong) {
		s.t.Errorf("%s: %v", what, err)
	}
	b, rerr := os.ReadFile(filepath.Join(dir, "f"))
	if errors.Is(rerr, fs.ErrNotExist) {
		b, rerr = os.ReadFile(filepath.Join(dir, "d", "f"))
	}
	must(s.t, rerr)
	for _, c := range x.claims {
		if len(b) < c.off+c.n || strings.Trim(string(b[c.off:c.off+c.n]), string(c.what)) != "" {
			s.t.Errorf("%s: COMMIT claims %d bytes at %d that are not there (%v)", what, c.n, c.off, err)
			return
		}
	}
	if hit == "fsync" && errno != syscall.EINTR && errno != hangs && errno != faultfs.Short {
		for i, told := range x.told {
			early := slices.ContainsFunc(x.claims, func(c claim) bool { return c.client == i && !c.late })
			if !told && !early {
				s.t.Errorf("%s: client %d has not heard of it (%v)", what, i, err)
			}
			if !early && slices.ContainsFunc(x.claims, func(c claim) bool { return c.client == i }) {
				s.t.Errorf("%s: a COMMIT of client %d claims what the medium has refused (%v)", what, i, err)
			}
		}
	}
	if errno == hangs && (err != nil || len(x.claims) != 4) {
		s.t.Errorf("%s: refused, and nothing failed: %v", what, err)
	}
}

// others looks at what is not to be held up while a call to the medium hangs.
func (s *stand) others(p *piece, n int) {
	s.t.Helper()
	r, err := s.health.Get("http://sluiced/healthz")
	if err != nil || r.StatusCode != http.StatusOK {
		s.t.Errorf("%s, call %d hangs: /healthz: %v", p.name, n, err)
	}
	if err == nil {
		must(s.t, r.Body.Close())
	}
	if _, err := s.other.getattr(s.otherFH); err != nil {
		s.t.Errorf("%s, call %d hangs: GETATTR of another export: %v", p.name, n, err)
	}
	if _, err := s.other.lookup(s.otherFH, "none"); !errors.Is(err, nfs3.ErrNoent) {
		s.t.Errorf("%s, call %d hangs: LOOKUP in another export: %v", p.name, n, err)
	}
}

// shares is how many runs of the long form do all there is to be done: a run is to end before its limit, also where much else runs.
const shares = 5

// Each call that a procedure makes to the medium fails once, in each way: the answer is true, nothing is half done or
// claimed, who wrote hears of what was lost, and the next call works.
func TestStormFiles(t *testing.T) {
	need.FUSE(t)
	short := !storm.Long()
	for _, writeback := range []bool{false, true} {
		name := "each write is the medium's"
		if writeback {
			name = "the kernel caches writes"
		}
		t.Run(name, func(t *testing.T) {
			s := newStand(t, writeback)
			rng := rand.New(rand.NewPCG(storm.Seed(t), 1))
			share := storm.Share(t, shares)
			for i := range pieces {
				p := &pieces[i]
				if writeback && !p.loss && (!p.many || strings.HasPrefix(p.name, "nfs-cp")) {
					continue // nfs-cp asks for no COMMIT
				}
				pl := s.plain(p)
				failed, hung := 0, 0
				for range storm.Rounds(t, 1) {
					for n := range pl.calls + 2 {
						for i, errno := range faults {
							if !short && (n*len(faults)+i)%shares != share {
								continue
							}
							if writeback && errno == faultfs.Short {
								continue // Linux takes it for done
							}
							// The gate's short form: every sixth call, in one of the ways.
							if short && rng.IntN(6*len(faults)) != 0 {
								continue
							}
							switch ok := s.trial(p, pl, n, errno); {
							case ok && errno == hangs:
								hung++
							case ok:
								failed++
							}
							if t.Failed() && short {
								return
							}
						}
					}
				}
				storm.Count(t, "failed calls", failed)
				storm.Count(t, "hung calls", hung)
				t.Logf("%s: %d calls, %d failed, %d hung", p.name, pl.calls, failed, hung)
			}
		})
	}
}
