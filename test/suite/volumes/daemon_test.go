package volumes

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
	"syscall"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/target/admin"
	"github.com/sluice-storage/sluice/test/lib/forbid"
)

// patience is for machines that do much else.
const patience = 60 * time.Second

const target = "iqn.2026-11.io.sluice:volumes"

var bin string // where sluiced and sluice are

func TestMain(m *testing.M) {
	forbid.Main()
	os.Exit(func() int {
		var err error
		if bin, err = os.MkdirTemp("", "sluice-volumes-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(bin)
		out, err := exec.Command("go", "build", "-o", bin+"/", "github.com/sluice-storage/sluice/cmd/sluiced", "github.com/sluice-storage/sluice/cmd/sluice").CombinedOutput()
		if err != nil {
			fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// daemon is a sluiced process with a directory of its own, which outlives the process.
type daemon struct {
	t     *testing.T
	dir   string
	state string
	conf  string
	at    string     // the portals, one of any port where it is empty
	given []*os.File // sockets that the daemon inherits
	cmd   *exec.Cmd
	ended chan struct{}
	err   error
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

// prepare makes the directory of a daemon whose configuration has these volumes and LUNs 0, 1, ... of them.
func prepare(t *testing.T, volumes string, luns ...string) *daemon {
	t.Helper()
	d := &daemon{t: t, dir: t.TempDir()}
	d.state, d.conf = filepath.Join(d.dir, "state"), filepath.Join(d.dir, "sluiced.yaml")
	if err := os.Mkdir(d.state, 0o700); err != nil {
		t.Fatal(err)
	}
	d.configure(volumes, luns...)
	t.Cleanup(func() {
		if d.cmd != nil {
			d.kill()
		}
		if t.Failed() {
			t.Log(d.log.String())
		}
	})
	return d
}

func (d *daemon) configure(volumes string, luns ...string) {
	d.t.Helper()
	at := d.at
	if at == "" {
		at = `{address: "127.0.0.1:0"}`
	}
	var b strings.Builder
	fmt.Fprintf(&b, "state_dir: %q\ntimeouts: {drain: 1s}\nportals: [%s]\nvolumes:\n%s\n", d.state, at, volumes)
	fmt.Fprintf(&b, "targets:\n  - name: %q\n    luns:\n", target)
	for i, v := range luns {
		fmt.Fprintf(&b, "      - {lun: %d, volume: %q}\n", i, v)
	}
	if len(luns) == 0 {
		b.WriteString("      []\n")
	}
	if err := os.WriteFile(d.conf, []byte(b.String()), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

// start runs the daemon and waits until it says that it serves (sd_notify(3)).
func (d *daemon) start(wrap ...string) *daemon {
	d.t.Helper()
	sock := filepath.Join(d.dir, "notify")
	_ = os.Remove(sock)
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: sock, Net: "unixgram"})
	if err != nil {
		d.t.Fatal(err)
	}
	defer l.Close()
	args := append(wrap, filepath.Join(bin, "sluiced"), "--config", d.conf)
	d.cmd, d.ended = exec.Command(args[0], args[1:]...), make(chan struct{})
	d.cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+sock)
	d.cmd.Stdout, d.cmd.Stderr, d.cmd.ExtraFiles = &d.log, &d.log, d.given
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	go func() {
		d.err = d.cmd.Wait()
		close(d.ended)
		_ = l.Close()
	}()
	if err := l.SetReadDeadline(time.Now().Add(patience)); err != nil {
		d.t.Fatal(err)
	}
	b := make([]byte, 256)
	if n, err := l.Read(b); err != nil || string(b[:n]) != "READY=1" {
		d.t.Fatalf("sluiced does not become ready: %q, %v\n%s", b[:n], err, d.log.String())
	}
	return d
}

func (d *daemon) kill() {
	_ = d.cmd.Process.Kill() // it may have ended
	<-d.ended
	d.cmd = nil
}

// stop ends the daemon as a service manager would.
func (d *daemon) stop() {
	d.t.Helper()
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		d.t.Fatal(err)
	}
	select {
	case <-d.ended:
	case <-time.After(patience):
		d.t.Fatal("sluiced does not end")
	}
	if d.err != nil {
		d.t.Fatalf("sluiced ended with %v", d.err)
	}
	d.cmd = nil
}

// sluice runs one command at the daemon.
func (d *daemon) sluice(args ...string) (out string, code int) {
	d.t.Helper()
	c := exec.Command(filepath.Join(bin, "sluice"), append(args, "--socket", filepath.Join(d.state, "admin.sock"))...)
	b, err := c.CombinedOutput()
	var e *exec.ExitError
	if err != nil && !errors.As(err, &e) {
		d.t.Fatal(err)
	}
	return string(b), c.ProcessState.ExitCode()
}

func (d *daemon) must(args ...string) string {
	d.t.Helper()
	out, code := d.sluice(args...)
	if code != 0 {
		d.t.Fatalf("sluice %s: exit code %d\n%s", strings.Join(args, " "), code, out)
	}
	return out
}

// refused wants a command to fail and to say something of the reason.
func (d *daemon) refused(why string, args ...string) string {
	d.t.Helper()
	out, code := d.sluice(args...)
	if code == 0 || !strings.Contains(out, why) {
		d.t.Errorf("sluice %s: exit code %d, want a refusal with %q\n%s", strings.Join(args, " "), code, why, out)
	}
	return out
}

func read[T any](d *daemon, args ...string) T {
	d.t.Helper()
	var v T
	if err := json.Unmarshal([]byte(d.must(append(args, "-o", "json")...)), &v); err != nil {
		d.t.Fatal(err)
	}
	return v
}

func (d *daemon) volumes() map[string]admin.Volume {
	d.t.Helper()
	m := map[string]admin.Volume{}
	for _, v := range read[[]admin.Volume](d, "volume", "list") {
		m[v.Name] = v
	}
	return m
}

func (d *daemon) portals() []admin.Portal { d.t.Helper(); return read[[]admin.Portal](d, "portals") }

// says waits until the daemon's log, which comes by a pipe, has all of these words.
func (d *daemon) says(words ...string) {
	d.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) { // a log has no event
		log, missing := d.log.String(), ""
		for _, w := range words {
			if !strings.Contains(log, w) {
				missing = w
			}
		}
		if missing == "" {
			return
		}
		if time.Now().After(deadline) {
			d.t.Errorf("the log does not say %q:\n%s", missing, log)
			return
		}
	}
}

// url is a LUN as libiscsi's tools take it.
func (d *daemon) url(lun int) string {
	d.t.Helper()
	ps := d.portals()
	if len(ps) == 0 {
		d.t.Fatal("the daemon has no portal")
	}
	return fmt.Sprintf("iscsi://%s/%s/%d", ps[0].Address, target, lun)
}

// path is a file of the test's directory.
func (d *daemon) path(name string) string { return filepath.Join(d.dir, name) }

// file makes a file of n bytes that repeat b.
func (d *daemon) file(name string, n int, b byte) string {
	d.t.Helper()
	if err := os.WriteFile(d.path(name), bytes.Repeat([]byte{b}, n), 0o600); err != nil {
		d.t.Fatal(err)
	}
	return d.path(name)
}

// sparse makes an empty file of n bytes.
func (d *daemon) sparse(name string, n int64) string {
	d.t.Helper()
	d.file(name, 0, 0)
	if err := os.Truncate(d.path(name), n); err != nil {
		d.t.Fatal(err)
	}
	return d.path(name)
}

func (d *daemon) size(path string) int64 {
	d.t.Helper()
	fi, err := os.Stat(path)
	if err != nil {
		d.t.Fatal(err)
	}
	return fi.Size()
}

func (d *daemon) managed() string {
	b, _ := os.ReadFile(filepath.Join(d.state, "managed.yaml")) // there may be none yet
	return string(b)
}
