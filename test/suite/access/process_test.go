package access

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/test/lib/need"
)

// sluiced runs the daemon's program with flags until it ends by itself.
func sluiced(t *testing.T, dir string, flags ...string) (stdout, stderr string, code int) {
	t.Helper()
	c := exec.Command(filepath.Join(bin, "sluiced"), flags...)
	var out, errs strings.Builder
	c.Dir, c.Stdout, c.Stderr = dir, &out, &errs
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(patience, func() { _ = c.Process.Kill() })
	defer late.Stop()
	_ = c.Wait() // the code says how it went
	return out.String(), errs.String(), c.ProcessState.ExitCode()
}

// What is wrong with a file or a command line ends the daemon with 2, what goes wrong while it serves with 1, and neither makes
// anything.
func TestExitCodesAndFlagsOfTheDaemon(t *testing.T) {
	s := prepare(t, twoVolumes+`
targets: [{name: "`+disks+`", luns: [{lun: 0, volume: a}]}]
`)
	s.write("wrong.yaml", "volumes:\n  - {name: a, engine: men, size: 1MiB}\n")
	for _, c := range []struct {
		flags   []string
		code    int
		out, er string
	}{
		{[]string{"--config", "sluiced.yaml", "--check"}, 0, "2 volumes, 1 targets, 0 exports: the configuration is good", ""},
		{[]string{"--config", "wrong.yaml", "--check"}, 2, "", "wrong.yaml"},
		{[]string{"--config", "wrong.yaml"}, 2, "", "men"},
		{[]string{"--config", "nowhere.yaml"}, 2, "", "nowhere.yaml"},
		{[]string{"--log-level", "loud", "--config", "sluiced.yaml"}, 2, "", "loud"},
		{[]string{"--colour"}, 2, "", "unknown flag"},
		{[]string{"sluiced.yaml"}, 2, "", "wants no arguments"},
		{[]string{"--print-default"}, 0, "iqn.2026-11.io.sluice:default", ""},
		{[]string{"--version"}, 0, "sluice", ""},
		{[]string{"--help"}, 0, "SIGUSR1", ""},
	} {
		out, er, code := sluiced(t, s.dir, c.flags...)
		if code != c.code || !strings.Contains(out, c.out) || !strings.Contains(er, c.er) {
			t.Errorf("sluiced %v: exit %d, wanted %d\n%s\n%s", c.flags, code, c.code, out, er)
		}
	}
	if _, err := os.Stat(filepath.Join(s.dir, "state")); !os.IsNotExist(err) {
		t.Errorf("a daemon that did not serve has made its state directory: %v", err)
	}
	// The default that is printed is a file to begin with.
	out, _, _ := sluiced(t, s.dir, "--print-default")
	s.write("default.yaml", out)
	if out, er, code := sluiced(t, s.dir, "--config", "default.yaml", "--state-dir", filepath.Join(s.dir, "other"), "--check"); code != 0 || !strings.Contains(out, "good") {
		t.Errorf("exit %d\n%s%s", code, out, er)
	}
	// A port that is taken is no fault of the file.
	s.start()
	s.write("second.yaml", "state_dir: second\nportals: [{address: \""+s.portals[0]+"\"}]\n")
	if _, er, code := sluiced(t, s.dir, "--config", "second.yaml"); code != 1 || !strings.Contains(er, "is another target running") {
		t.Errorf("exit %d\n%s", code, er)
	}
	if code := s.stop(); code != 0 {
		t.Errorf("exit %d after SIGTERM", code)
	}
}

// --state-dir and --log-level count more than the file, and SIGUSR1 logs more, then as configured again.
func TestFlagsCountMoreThanTheFile(t *testing.T) {
	s := prepare(t, strings.Replace(head, "state_dir: state", "state_dir: never", 1)+"log: {format: json, level: error}\n")
	s.flags = []string{"--state-dir", filepath.Join(s.dir, "state"), "--log-level", "info"}
	s.start()
	if _, err := os.Stat(filepath.Join(s.dir, "never")); !os.IsNotExist(err) {
		t.Errorf("the file's state directory is there: %v", err)
	}
	levels := func() (l []string) {
		for line := range strings.Lines(s.out.String()) {
			// The line's own level comes first, the one that is told of last.
			if i := strings.LastIndex(line, `"level":"`); i >= 0 && strings.Contains(line, "log level changed") {
				level, _, _ := strings.Cut(line[i+len(`"level":"`):], `"`)
				l = append(l, level)
			}
		}
		return l
	}
	for _, want := range [][]string{{"debug"}, {"debug", "info"}} {
		if err := s.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(patience); !slices.Equal(levels(), want); time.Sleep(time.Millisecond) { // a log has no event
			if time.Now().After(deadline) {
				t.Fatalf("levels %v, wanted %v\n%s", levels(), want, s.out.String())
			}
		}
	}
}

// sluice demo shows what it says on a machine with nothing else, and leaves nothing behind.
func TestTheDemoShowsItAll(t *testing.T) {
	dir, tmp := t.TempDir(), t.TempDir()
	image := filepath.Join(dir, "image")
	if out, err := exec.Command(need.Tool(t, "mkfs.ext4", "e2fsprogs"), "-q", image, "8M").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c := exec.Command(filepath.Join(bin, "sluice"), "demo", "--image", image, "-o", "json")
	c.Env = append(os.Environ(), "TMPDIR="+tmp, "HOME="+tmp)
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var errs strings.Builder
	c.Stderr = &errs
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%v\n%s%s", err, out, errs.String())
	}
	var steps []struct {
		What, Saw, SHA256 string
		Bytes             int64
	}
	if err := json.Unmarshal(out, &steps); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var did []string
	sums := map[string]bool{}
	for _, s := range steps {
		did = append(did, s.What)
		if s.SHA256 != "" {
			sums[s.SHA256] = true
		}
	}
	for _, want := range []string{"written over iSER and flushed", "target killed", "target started again", "read back over iSER", "read back over iSCSI/TCP", "e2fsck of what was read back", "target ended on SIGTERM"} {
		if !slices.ContainsFunc(did, func(s string) bool { return strings.HasPrefix(s, want) }) {
			t.Errorf("%q is not among %q", want, did)
		}
	}
	if len(sums) != 1 {
		t.Errorf("checksums %v", sums)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) != 0 {
		t.Errorf("%v: left behind: %v", err, left)
	}
}
