package access

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	// What is built here is made of these: a kept result of these tests does not outlive a change of them.
	_ "github.com/sluice-storage/sluice/cmd/sluice/admincmd"
	_ "github.com/sluice-storage/sluice/target/daemon"
	"github.com/sluice-storage/sluice/test/lib/need"
)

// patience bounds what takes milliseconds, on a machine that does much else.
const patience = 60 * time.Second

// Names that the tests log in under, and to.
const (
	alice  = "iqn.2026-11.org.example:alice"
	bob    = "iqn.2026-11.org.example:bob"
	disks  = "iqn.2026-11.org.example:disks"
	others = "iqn.2026-11.org.example:others"
)

// bin holds sluiced and sluice as they are in this tree.
var bin string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if bin, err = os.MkdirTemp("", "access"); err != nil {
			panic(err)
		}
		defer func() { _ = os.RemoveAll(bin) }()
		out, err := exec.Command("go", "build", "-o", bin+"/", "github.com/sluice-storage/sluice/cmd/sluiced", "github.com/sluice-storage/sluice/cmd/sluice").CombinedOutput()
		if err != nil {
			fmt.Printf("build: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// stand is one daemon with the directory it works in.
type stand struct {
	t       *testing.T
	dir     string // configuration, secrets and state/
	conf    string
	portals []string // addresses as the daemon says, those of 127.0.0.1 first
	env     []string
	flags   []string
	as      *syscall.Credential // who runs the daemon; nil for the test's own user
	cmd     *exec.Cmd
	out     buffer
	ended   chan struct{}
	told    *notes
}

// notes are what the daemon has said to its service manager.
type notes struct {
	c     *net.UnixConn
	path  string
	mu    sync.Mutex
	lines []string
	more  chan struct{} // closed and replaced with each line
}

func listen(t *testing.T) *notes {
	t.Helper()
	path := filepath.Join(bin, fmt.Sprintf("n%d", time.Now().UnixNano())) // a socket's path is short
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o666); err != nil { // daemons of other users
		t.Fatal(err)
	}
	n := &notes{c: c, path: path, more: make(chan struct{})}
	go func() {
		b := make([]byte, 4096)
		for {
			k, err := c.Read(b)
			if err != nil {
				return
			}
			n.mu.Lock()
			n.lines = append(n.lines, strings.Split(string(b[:k]), "\n")...)
			close(n.more)
			n.more = make(chan struct{})
			n.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		_ = c.Close()
		_ = os.Remove(path)
	})
	return n
}

// wait returns the place after the first such line from a place on, -1 where the daemon ends before or takes too long.
func (n *notes) wait(from int, line string, ended chan struct{}) int {
	late := time.After(patience)
	for {
		n.mu.Lock()
		i, more := slices.Index(n.lines[from:], line), n.more
		n.mu.Unlock()
		if i >= 0 {
			return from + i + 1
		}
		select {
		case <-more:
		case <-ended:
			return -1
		case <-late:
			return -1
		}
	}
}

type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// head begins every configuration of these tests.
const head = `
state_dir: state
timeouts: {drain: 1s}
portals: [{address: "127.0.0.1:0"}]
`

// prepare writes a configuration and starts nothing.
func prepare(t *testing.T, conf string) *stand {
	t.Helper()
	s := &stand{t: t, dir: t.TempDir()}
	s.conf = filepath.Join(s.dir, "sluiced.yaml")
	s.write("sluiced.yaml", conf)
	return s
}

// begin serves a configuration until the test ends.
func begin(t *testing.T, conf string) *stand {
	t.Helper()
	s := prepare(t, conf)
	s.start()
	return s
}

// write makes a file in the stand's directory that only its owner can read.
func (s *stand) write(name, text string) {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stand) read(name string) string {
	s.t.Helper()
	b, err := os.ReadFile(filepath.Join(s.dir, name))
	if err != nil {
		s.t.Fatal(err)
	}
	return string(b)
}

// start runs the daemon and returns when it says that it is ready, as it says it to systemd.
func (s *stand) start() {
	s.t.Helper()
	s.launch()
	if s.told.wait(0, "READY=1", s.ended) < 0 {
		s.t.Fatalf("sluiced does not become ready:\n%s", s.out.String())
	}
	s.askPortals()
}

func (s *stand) launch() {
	t := s.t
	t.Helper()
	s.told = listen(t)
	s.cmd = exec.Command(filepath.Join(bin, "sluiced"), append([]string{"--config", s.conf}, s.flags...)...)
	s.cmd.Dir = s.dir
	s.cmd.Env = append(append(os.Environ(), "NOTIFY_SOCKET="+s.told.path), s.env...)
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.out
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: s.as}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	s.ended = ended
	cmd := s.cmd
	go func() {
		_ = cmd.Wait() // the state is read from the command
		close(ended)
	}()
	t.Cleanup(func() { s.stop() })
}

func (s *stand) askPortals() {
	s.t.Helper()
	s.portals = nil
	for _, p := range asks[[]struct{ Address string }](s, "portals") {
		s.portals = append(s.portals, p.Address)
	}
	slices.Sort(s.portals)
}

// stop ends the daemon by SIGTERM and returns its exit code.
func (s *stand) stop() int {
	s.t.Helper()
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	return s.wait()
}

// wait returns the exit code of a daemon that ends.
func (s *stand) wait() int {
	s.t.Helper()
	select {
	case <-s.ended:
	case <-time.After(patience):
		_ = s.cmd.Process.Signal(syscall.SIGQUIT) // for its stacks
		<-s.ended
		s.t.Fatalf("sluiced does not end:\n%s", s.out.String())
	}
	return s.cmd.ProcessState.ExitCode()
}

func (s *stand) restart() {
	s.t.Helper()
	if code := s.stop(); code != 0 {
		s.t.Errorf("sluiced ended with %d:\n%s", code, s.out.String())
	}
	s.start()
}

// hangup has the daemon read its configuration again, by SIGHUP, and returns when it has.
func (s *stand) hangup() {
	s.t.Helper()
	// What it says of earlier changes lies before a line of our own.
	c, err := net.Dial("unixgram", s.told.path)
	if err != nil {
		s.t.Fatal(err)
	}
	mark := fmt.Sprintf("MARK=%d", time.Now().UnixNano())
	_, err = c.Write([]byte(mark))
	if err := errors.Join(err, c.Close(), s.cmd.Process.Signal(syscall.SIGHUP)); err != nil {
		s.t.Fatal(err)
	}
	if from := s.told.wait(0, mark, s.ended); from < 0 || s.told.wait(from, "READY=1", s.ended) < 0 {
		s.t.Fatalf("no reload:\n%s", s.out.String())
	}
}

// reload replaces the configuration and has the daemon read it by command.
func (s *stand) reload(conf string) {
	s.t.Helper()
	s.write("sluiced.yaml", conf)
	s.does("config reload")
}

// run runs sluice with a line of arguments and something on its standard input.
func (s *stand) run(in, line string) (string, int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := exec.CommandContext(ctx, filepath.Join(bin, "sluice"), append(strings.Fields(line), "--socket", filepath.Join(s.dir, "state", "admin.sock"))...)
	c.Stdin = strings.NewReader(in)
	out, err := c.CombinedOutput()
	var ee *exec.ExitError
	if err != nil && !errors.As(err, &ee) {
		s.t.Fatalf("sluice %s: %v", line, err)
	}
	return string(out), c.ProcessState.ExitCode()
}

// does runs a command that must succeed.
func (s *stand) does(line string) string {
	s.t.Helper()
	return s.doesWith("", line)
}

func (s *stand) doesWith(in, line string) string {
	s.t.Helper()
	out, code := s.run(in, line)
	if code != 0 {
		s.t.Fatalf("sluice %s: exit %d\n%s\nsluiced:\n%s", line, code, out, s.out.String())
	}
	return out
}

// refuses runs a command that must fail, with a sentence.
func (s *stand) refuses(in, line, why string) {
	s.t.Helper()
	if out, code := s.run(in, line); code == 0 || !strings.Contains(out, why) {
		s.t.Errorf("sluice %s: exit %d, wanted a refusal with %q:\n%s", line, code, why, out)
	}
}

// asks reads a command's JSON.
func asks[T any](s *stand, line string) T {
	s.t.Helper()
	var v T
	out := s.does(line + " -o json")
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		s.t.Fatalf("sluice %s: %v\n%s", line, err, out)
	}
	return v
}

// login is how libiscsi comes: under a name, with a user and a secret where a target wants them.
type login struct{ name, user, secret string }

func (l login) url(at string) string {
	if l.user == "" {
		return "iscsi://" + at
	}
	return "iscsi://" + l.user + "%" + l.secret + "@" + at
}

// tool runs a program of libiscsi.
func (s *stand) tool(name string, arg ...string) (string, error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, need.Tool(s.t, name, "libiscsi-bin"), arg...).CombinedOutput()
	if ctx.Err() != nil {
		s.t.Fatalf("%s %v does not end:\n%s", name, arg, out)
	}
	return string(out), err
}

var (
	targetLine = regexp.MustCompile(`^Target:(\S+)`)
	lunLine    = regexp.MustCompile(`^Lun:(\d+)`)
)

// discovers returns the targets that a name is told of, sorted.
func (s *stand) discovers(l login) []string {
	s.t.Helper()
	out, err := s.tool("iscsi-ls", "-i", l.name, l.url(s.portals[0]))
	if err != nil {
		s.t.Fatalf("iscsi-ls as %s: %v\n%s\nsluiced:\n%s", l.name, err, out, s.out.String())
	}
	var found []string
	for line := range strings.Lines(out) {
		if m := targetLine.FindStringSubmatch(line); m != nil {
			found = append(found, m[1])
		}
	}
	slices.Sort(found)
	return found
}

// luns returns what iscsi-ls lists of the targets that a name may discover: "TARGET/LUN", sorted.
func (s *stand) luns(l login) []string {
	s.t.Helper()
	out, err := s.tool("iscsi-ls", "-s", "-i", l.name, l.url(s.portals[0]))
	if err != nil {
		s.t.Fatalf("iscsi-ls -s as %s: %v\n%s\nsluiced:\n%s", l.name, err, out, s.out.String())
	}
	found, target := []string{}, ""
	for line := range strings.Lines(out) {
		if m := targetLine.FindStringSubmatch(line); m != nil {
			target = m[1]
		}
		if m := lunLine.FindStringSubmatch(line); m != nil {
			found = append(found, target+"/"+m[1])
		}
	}
	slices.Sort(found)
	return found
}

// sees fails unless a name is shown exactly these LUNs of a target, and each of them answers it.
func (s *stand) sees(l login, target string, luns ...int) {
	s.t.Helper()
	want := []string{}
	for _, n := range luns {
		want = append(want, target+"/"+strconv.Itoa(n))
	}
	slices.Sort(want)
	var got []string
	for _, g := range s.luns(l) {
		if strings.HasPrefix(g, target+"/") {
			got = append(got, g)
		}
	}
	if !slices.Equal(got, want) {
		s.t.Errorf("%s is shown %v of %s, wanted %v", l.name, got, target, luns)
	}
	for _, n := range luns {
		if out, ok := s.inquiry(l, target, n); !ok {
			s.t.Errorf("LUN %d of %s does not answer %s:\n%s", n, target, l.name, out)
		}
	}
}

// inquiry asks one LUN what it is; false where the login is refused or there is no such LUN.
func (s *stand) inquiry(l login, target string, lun int) (string, bool) {
	s.t.Helper()
	out, err := s.tool("iscsi-inq", "-i", l.name, l.url(s.portals[0])+"/"+target+"/"+strconv.Itoa(lun))
	return out, err == nil && strings.Contains(out, "CONNECTED") && strings.Contains(out, "DIRECT_ACCESS")
}

// admits fails unless a name can log in; keepsOut fails unless it is refused, for the reason that libiscsi names.
func (s *stand) admits(l login, target string, lun int) {
	s.t.Helper()
	if out, ok := s.inquiry(l, target, lun); !ok {
		s.t.Errorf("%s as user %q does not reach LUN %d of %s:\n%s\nsluiced:\n%s", l.name, l.user, lun, target, out, s.out.String())
	}
}

func (s *stand) keepsOut(l login, target, why string) {
	s.t.Helper()
	out, err := s.tool("iscsi-inq", "-i", l.name, l.url(s.portals[0])+"/"+target+"/0")
	if err == nil || !strings.Contains(out, why) {
		s.t.Errorf("%s as user %q at %s: %v, wanted to be refused with %q:\n%s", l.name, l.user, target, err, why, out)
	}
}
