// Package proc runs the programs as their users do: a real sluiced in a directory of its own, and sluice beside it.
package proc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/internal/state"
	"github.com/sluice-storage/sluice/target/admin"
)

// Patience bounds what takes a moment where nothing else runs.
const Patience = 60 * time.Second

// Build compiles sluiced and sluice for the tests of a package, which m runs, and returns the exit code. dir is where the
// programs are until then.
func Build(m *testing.M, dir *string) int {
	var err error
	if *dir, err = os.MkdirTemp("", "sluice-test-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(*dir) }()
	const module = "github.com/sluice-storage/sluice/cmd/"
	if out, err := exec.Command("go", "build", "-o", *dir+"/", module+"sluiced", module+"sluice").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// Daemon is a sluiced, whose directory outlives the process.
type Daemon struct {
	t     testing.TB
	bin   string
	Dir   string // of the test, with State and the configuration below it
	State string
	conf  string
	cmd   *exec.Cmd
	runs  atomic.Pointer[os.Process] // for Signal, which another goroutine may call
	ended chan struct{}
	log   syncBuffer
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// New prepares a daemon with the programs of bin. What follows state_dir in its configuration is the caller's; it has one
// portal of this machine, unless the caller says which it has.
func New(t testing.TB, bin, config string) *Daemon {
	t.Helper()
	d := &Daemon{t: t, bin: bin, Dir: t.TempDir()}
	d.State, d.conf = filepath.Join(d.Dir, "state"), filepath.Join(d.Dir, "sluiced.yaml")
	if err := os.Mkdir(d.State, 0o700); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("state_dir: %q\ntimeouts: {drain: 1s}\n", d.State)
	if !strings.Contains("\n"+config, "\nportals:") {
		text += "portals: [{address: \"127.0.0.1:0\"}]\n"
	}
	text += config
	if err := os.WriteFile(d.conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.Kill()
		if strings.Contains(d.log.String(), state.Defect) {
			t.Error("the log of sluiced tells of " + state.Defect)
		}
		if t.Failed() {
			t.Log(d.log.String())
		}
	})
	return d
}

// Start runs the daemon and waits until it says that it serves (sd_notify(3)).
func (d *Daemon) Start() {
	d.t.Helper()
	if err := d.TryStart(); err != nil {
		d.t.Fatalf("%v\n%s", err, d.log.String())
	}
}

// TryStart is Start for a daemon that may refuse to serve: it has ended then.
func (d *Daemon) TryStart() error {
	d.t.Helper()
	sock := filepath.Join(d.Dir, "notify")
	_ = os.Remove(sock) // there is none at the first start
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: sock, Net: "unixgram"})
	if err != nil {
		d.t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	d.cmd, d.ended = exec.Command(filepath.Join(d.bin, "sluiced"), "--config", d.conf), make(chan struct{})
	d.cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+sock, state.Strict+"=1")
	d.cmd.Stdout, d.cmd.Stderr = &d.log, &d.log
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.runs.Store(d.cmd.Process)
	go func(c *exec.Cmd, ended chan struct{}) {
		_ = c.Wait() // it is killed in the end
		close(ended)
		_ = l.Close()
	}(d.cmd, d.ended)
	if err := l.SetReadDeadline(time.Now().Add(Patience)); err != nil {
		d.t.Fatal(err)
	}
	b := make([]byte, 256)
	if n, err := l.Read(b); err != nil || string(b[:n]) != "READY=1" {
		d.Kill()
		return fmt.Errorf("sluiced does not become ready: %q, %w", b[:n], err)
	}
	return nil
}

// Kill ends the daemon by SIGKILL, if it runs.
func (d *Daemon) Kill() {
	if d.cmd == nil {
		return
	}
	_ = d.cmd.Process.Kill() // it may have ended
	<-d.ended
	d.cmd = nil
}

// Alive reports that the process has not ended by itself.
func (d *Daemon) Alive() bool {
	select {
	case <-d.ended:
		return false
	default:
		return true
	}
}

// Stop ends the daemon by SIGTERM and waits for its end.
func (d *Daemon) Stop() {
	d.t.Helper()
	_ = d.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-d.ended:
		d.cmd = nil
	case <-time.After(Patience):
		_ = d.cmd.Process.Signal(syscall.SIGQUIT) // its stacks are in its log
		d.t.Fatal("the daemon does not end at SIGTERM")
	}
}

// Signal sends the daemon a signal.
func (d *Daemon) Signal(sig syscall.Signal) {
	if p := d.runs.Load(); p != nil {
		_ = p.Signal(sig) // it may have ended
	}
}

// Log is what the daemon has written so far.
func (d *Daemon) Log() string { return d.log.String() }

// Sluice runs one command at the daemon.
func (d *Daemon) Sluice(args ...string) (out string, code int) { return d.Say("", args...) }

// Say is Sluice with something to read on standard input.
func (d *Daemon) Say(in string, args ...string) (out string, code int) {
	d.t.Helper()
	c := exec.Command(filepath.Join(d.bin, "sluice"), append(args, "--socket", filepath.Join(d.State, "admin.sock"))...)
	c.Stdin = strings.NewReader(in)
	timer := time.AfterFunc(Patience, func() { _ = c.Process.Signal(syscall.SIGKILL) })
	b, err := c.CombinedOutput()
	timer.Stop()
	var e *exec.ExitError
	if err != nil && !errors.As(err, &e) {
		d.t.Fatal(err)
	}
	return string(b), c.ProcessState.ExitCode()
}

// Portal is where the daemon listens.
func (d *Daemon) Portal() string {
	d.t.Helper()
	return d.Portals()[0].Address
}

// Portals are all places where it does.
func (d *Daemon) Portals() []admin.Portal {
	d.t.Helper()
	out, code := d.Sluice("portals", "-o", "json")
	var ps []admin.Portal
	if err := json.Unmarshal([]byte(out), &ps); code != 0 || err != nil || len(ps) == 0 {
		d.t.Fatalf("portals: exit code %d, %v\n%s", code, err, strings.TrimSpace(out))
	}
	return ps
}
