// Package attachments holds each face of a volume, and an export's directory, to what docs/attach.md says becomes of it: its helper
// is told to end or killed, its target is away, it is in use or not. The binaries are the ones a user has.
package attachments

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/test/lib/port"
)

const target = "iqn.2026-11.io.sluice:attachments"

// patience is for what another process does, on a machine that is busy, or in a guest whose clock runs ahead of its processors.
var patience = func() time.Duration {
	if os.Getenv(envFaces) != "" {
		return 10 * time.Minute
	}
	return 90 * time.Second
}()

// What the lab, which runs this test in its guest, tells it: where the programs are, and which faces it has drivers for.
const (
	envBin   = "SLUICE_ATTACHMENTS_BIN"
	envFaces = "SLUICE_ATTACHMENTS_FACES"
)

var built string

func TestMain(m *testing.M) {
	flag.Parse()
	if os.Getenv(envFaces) == "" { // they wait more than they work, but for a guest's
		if err := flag.Set("test.parallel", "24"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	code, err := func() (int, error) {
		if built = os.Getenv(envBin); built != "" {
			return m.Run(), nil
		}
		var err error
		if built, err = os.MkdirTemp("", "attachments-bin"); err != nil {
			return 1, err
		}
		defer os.RemoveAll(built)
		build := exec.Command("go", "build", "-o", built+"/", "../../../cmd/sluiced", "../../../cmd/sluice")
		if out, err := build.CombinedOutput(); err != nil {
			return 1, fmt.Errorf("%w: %s", err, out)
		}
		return m.Run(), nil
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// stand is a target with a volume and an export, and a user of its own of the attachments' records.
type stand struct {
	t                *testing.T
	dir, addr, files string
	daemon           *exec.Cmd
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func start(t *testing.T) *stand {
	t.Helper()
	dir, err := os.MkdirTemp("", "att") // a test's own directory can have too long a name for a socket
	if err != nil {
		t.Fatal(err)
	}
	s := &stand{t: t, dir: dir}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "export"), 0o777), os.Mkdir(filepath.Join(dir, "mnt"), 0o755)); err != nil {
		t.Fatal(err)
	}
	var ferr error
	s.addr, err = port.Loopback() // a daemon that starts again finds its own free
	if s.files, ferr = port.Loopback(); errors.Join(err, ferr) != nil {
		t.Fatal(err, ferr)
	}
	conf := fmt.Sprintf("state_dir: %[1]s\nportals: [{address: %[2]q}]\nvolumes: [{name: v, size: 64MiB}]\ntargets: [{name: %[3]q, luns: [{lun: 0, volume: v}]}]\ntimeouts: {drain: 1s}\n"+
		"exports: [{path: %[1]s/export, name: /x, clients: [{match: 127.0.0.1, squash: none, any_port: true}]}]\nfiles: {tcp: %[4]q, rdma: none, rpcbind: none, grace: 1s}\n", dir, s.addr, target, s.files)
	if err := os.WriteFile(filepath.Join(dir, "c.yaml"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	img := filepath.Join(dir, "v.img") // the daemon makes no volume's file by itself
	if err := errors.Join(os.WriteFile(img, nil, 0o600), os.Truncate(img, 64<<20)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.down() })
	t.Cleanup(s.clear)
	return s
}

func (s *stand) up() {
	s.t.Helper()
	log, err := os.Create(filepath.Join(s.dir, "daemon.log"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	s.daemon = exec.Command(filepath.Join(built, "sluiced"), "--config", filepath.Join(s.dir, "c.yaml"))
	s.daemon.Stderr = log
	if err := s.daemon.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if b, err := os.ReadFile(log.Name()); s.t.Failed() {
			s.t.Logf("the daemon says %s %v", b, err)
		}
	})
	for _, a := range []string{s.addr, s.files} {
		s.until("the daemon answers at "+a, func() bool {
			c, err := net.Dial("tcp", a)
			if err != nil {
				var st unix.WaitStatus
				if pid, _ := unix.Wait4(s.daemon.Process.Pid, &st, unix.WNOHANG, nil); pid > 0 {
					s.t.Fatalf("the daemon has ended: %v", st)
				}
				return false
			}
			c.Close()
			return true
		})
	}
}

func (s *stand) down() {
	if s.daemon == nil {
		return
	}
	_ = s.daemon.Process.Kill()
	_ = s.daemon.Wait() // it was killed
	s.daemon = nil
}

// clear ends what a failed test left.
func (s *stand) clear() {
	for _, a := range s.attached() {
		s.sluice("detach", a.Name, "--force")
	}
}

// until waits for what another process does and has no event.
func (s *stand) until(what string, ok func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("%s: not after %v", what, patience)
		}
	}
}

// command is sluice with this stand's records.
func (s *stand) command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, filepath.Join(built, "sluice"), args...)
	c.Env = append(os.Environ(), "SLUICE_RUNTIME_DIR="+filepath.Join(s.dir, "run"), "SLUICE_STATE_DIR="+filepath.Join(s.dir, "state"))
	c.WaitDelay = patience // of whom it leaves, none has its output
	return c
}

// sluice runs a command; what it says and its exit code are the answer.
func (s *stand) sluice(args ...string) (string, int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience) // clean-ups run it too, when the test's context has ended
	defer cancel()
	out, err := s.command(ctx, args...).CombinedOutput()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		s.t.Errorf("sluice %s does not end: %s", strings.Join(args, " "), out)
		return string(out), -1
	case errors.As(err, &exit):
		return string(out), exit.ExitCode()
	case err != nil:
		s.t.Error(err)
		return "", -1
	}
	return string(out), 0
}

// must is sluice for what has to go well.
func (s *stand) must(args ...string) {
	s.t.Helper()
	if out, code := s.sluice(args...); code != 0 {
		s.t.Fatalf("sluice %s: exit code %d: %s", strings.Join(args, " "), code, out)
	}
}

type attachment struct {
	Name, Path, Loop, Mount, Away, Log string
	PID                                int
	Broken, Starting                   bool
	Status                             struct {
		Paths []struct {
			URL, State, Error        string
			Logins, Losses, Commands int
		}
		Log []string
	}
}

func (s *stand) attached() map[string]attachment {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var as []attachment
	out, err := s.command(ctx, "attachments", "-o", "json").Output()
	if err == nil {
		err = json.Unmarshal(out, &as)
	}
	if err != nil {
		s.t.Errorf("attachments: %v: %s", err, out)
	}
	m := map[string]attachment{}
	for _, a := range as {
		m[a.Name] = a
	}
	return m
}

func (s *stand) url() string { return "iser://" + s.addr + "/" + target + "/0" }

func (s *stand) exportURL() string {
	_, port, _ := net.SplitHostPort(s.files)
	return "nfs://127.0.0.1:" + port + "/x?mountport=" + port
}

// nothing checks that neither record nor mount nor process of an attachment is left.
func (s *stand) nothing(pid int) {
	s.t.Helper()
	if as := s.attached(); len(as) != 0 {
		s.t.Errorf("left: %+v", as)
	}
	entries, err := os.ReadDir(filepath.Join(s.dir, "run"))
	if err != nil || len(entries) != 1 || entries[0].Name() != ".lock" {
		s.t.Errorf("left in the records' directory: %v %v", entries, err)
	}
	s.until("its mounts go", func() bool { // while others mount, a reader of mountinfo can see lines twice or not at all
		b, err := os.ReadFile("/proc/self/mountinfo")
		return err == nil && !strings.Contains(string(b), s.dir)
	})
	s.until("the helper goes", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
}

// free checks that a kernel's device is gone. It goes when the last program that has it open closes it.
func (s *stand) free(path string) {
	s.t.Helper()
	switch name := filepath.Base(path); {
	case strings.HasPrefix(path, "/dev/ublk"):
		s.until(name+" goes", func() bool { return !exists(path) && !exists("/dev/ublkc"+strings.TrimPrefix(name, "ublkb")) })
	case strings.HasPrefix(path, "/dev/nbd"):
		s.until(name+" is free", func() bool { return !exists("/sys/block/" + name + "/pid") })
	}
}
