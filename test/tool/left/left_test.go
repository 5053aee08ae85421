package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-storage/sluice/test/lib/need"
)

const asLeft = "SLUICE_TEST_LEFT"

// The command under test is this program, which is the tool when it is told so.
func TestMain(m *testing.M) {
	if os.Getenv(asLeft) != "" {
		os.Args = append(os.Args[:1], os.Args[2:]...) // without the test's own flag
		main()
		return
	}
	os.Exit(m.Run())
}

func tool(t *testing.T, wait, script string) (string, int) {
	t.Helper()
	c := exec.Command(os.Args[0], "-test.run=^$", "-wait", wait, "--", "bash", "-c", script) //nolint:gosec // ourselves
	c.Env = append(os.Environ(), asLeft+"=1")
	out := filepath.Join(t.TempDir(), "out") // a file: a process that stays would keep a pipe open
	f, err := os.Create(out)
	if err != nil {
		t.Fatal(err)
	}
	c.Stdout, c.Stderr = f, f
	err = c.Run()
	var e *exec.ExitError
	if err != nil && !errors.As(err, &e) {
		t.Fatal(err)
	}
	b, err := os.ReadFile(out)
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return string(bytes.TrimSpace(b)), c.ProcessState.ExitCode()
}

var processes = regexp.MustCompile(`left behind: process (\d+): (.*)`)

func TestAProcessThatIsLeftFailsTheCommand(t *testing.T) {
	// It has a session of its own and its parent is gone, as with daemons.
	out, code := tool(t, "0s", "setsid sleep 600 </dev/null >/dev/null 2>&1 & true")
	found := processes.FindStringSubmatch(out)
	if code != 1 || found == nil || !strings.Contains(found[2], "sleep 600") {
		t.Errorf("exit code %d: %s", code, out)
	}
	if found != nil {
		if pid, err := strconv.Atoi(found[1]); err == nil && pid > 1 {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestWhatEndsByItselfIsNotLeft(t *testing.T) {
	// Other tests mount beside this one: what they have is not looked at here.
	if out, code := tool(t, "20s", "setsid sleep 0.5 & true"); processes.MatchString(out) || code != 0 && out == "" {
		t.Errorf("exit code %d: %s", code, out)
	}
}

func TestOrphansAreReapedAsInitDoes(t *testing.T) {
	// $! of the inner shell has no parent when that shell has ended.
	out, code := tool(t, "20s", `pid=$(setsid sleep 0.2 >/dev/null & echo $!)
for i in $(seq 600); do kill -0 $pid 2>/dev/null || exit 5; sleep 0.05; done; exit 6`)
	if code != 5 {
		t.Errorf("exit code %d: %s", code, out)
	}
}

func TestTheCommandsOwnFailureIsPassedOn(t *testing.T) {
	if out, code := tool(t, "0s", "echo said; exit 7"); code != 7 || !strings.HasPrefix(out, "said") {
		t.Errorf("exit code %d: %s", code, out)
	}
}

func TestWhatIsLeftBesidesProcessesFailsTheCommand(t *testing.T) {
	need.Mount(t)
	dir := t.TempDir()
	shm := filepath.Join("/dev/shm", "sluice-left-"+strconv.Itoa(os.Getpid()))
	for what, c := range map[string][3]string{
		"mount":              {"mount -t tmpfs left " + dir, "umount " + dir, "left on " + dir},
		"shared memory file": {"echo > " + shm, "rm " + shm, "shared memory " + shm},
		"SysV shared memory": {"ipcmk -M 4096 > " + filepath.Join(dir, "id"), "ipcrm -m $(tr -dc 0-9 < " + filepath.Join(dir, "id") + ")", "shared memory: segment"},
	} {
		t.Run(what, func(t *testing.T) {
			out, code := tool(t, "0s", c[0])
			undo, err := exec.Command("bash", "-c", c[1]).CombinedOutput()
			if err != nil {
				t.Errorf("%v: %s", err, undo)
			}
			if code != 1 || !strings.Contains(out, c[2]) {
				t.Errorf("exit code %d: %s", code, out)
			}
		})
	}
}
