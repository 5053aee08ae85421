package access

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-storage/sluice/test/lib/need"
)

// at is a URL below an export, for the programs of libnfs and for sluice.
func (s *stand) at(path string) string {
	base, query, _ := strings.Cut(s.export(), "?")
	return base + "/" + path + "?" + query
}

// An export's read_only: every client reads what is there, and no client writes.
func TestAReadOnlyExportIsOnlyRead(t *testing.T) {
	s := prepare(t, head+`
exports: [{name: /data, path: data, clients: [{match: 127.0.0.1, any_port: true, squash: none, read_only: true}]}]
files: {tcp: "127.0.0.1:0", rdma: none}
`)
	s.write("data/there", "content")
	for _, path := range []string{s.dir, filepath.Join(s.dir, "data")} {
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	s.start()
	if out, err := s.put(0, "new"); err == nil || !strings.Contains(out, "ROFS") {
		t.Errorf("%v: a file was written:\n%s", err, out)
	}
	if out, err := exec.Command(need.Tool(t, "nfs-cat", "libnfs-utils"), s.at("there")).CombinedOutput(); err != nil || !strings.Contains(string(out), "content") {
		t.Errorf("%v: what is there is not read:\n%s", err, out)
	}
	if left, err := os.ReadDir(filepath.Join(s.dir, "data")); err != nil || len(left) != 1 {
		t.Errorf("%v %v", left, err)
	}
}

// An export's async: a change of names waits for the disk without it, and does not with it.
func TestAsyncIsWhatWaitsForNoDisk(t *testing.T) {
	for _, async := range []bool{false, true} {
		s := prepare(t, head+fmt.Sprintf(`
exports: [{name: /data, path: data, async: %v, clients: [{match: 127.0.0.1, any_port: true, squash: none}]}]
files: {tcp: "127.0.0.1:0", rdma: none}
`, async))
		s.write("data/there", "content")
		s.start()
		calls := s.syncs(func() {
			for _, line := range []string{"mkdir " + s.at("made"), "rm " + s.at("there")} {
				if out, err := exec.Command(filepath.Join(bin, "sluice"), strings.Fields(line)...).CombinedOutput(); err != nil {
					t.Fatalf("sluice %s: %v\n%s", line, err, out)
				}
			}
		})
		if (len(calls) == 0) != async {
			t.Errorf("async: %v: the daemon has called %v", async, calls)
		}
	}
}

// syncs returns what the daemon asked of the disk during do, as strace sees it.
func (s *stand) syncs(do func()) []string {
	s.t.Helper()
	out := filepath.Join(s.dir, "strace")
	c := exec.Command(need.Tool(s.t, "strace", "strace"), "-f", "-e", "trace=fsync,fdatasync,syncfs,sync", "-o", out, "-p", fmt.Sprint(s.cmd.Process.Pid))
	said, err := c.StderrPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		s.t.Fatal(err)
	}
	r := bufio.NewReader(said)
	line, _ := r.ReadString('\n')
	if !strings.Contains(line, "attached") {
		_ = c.Wait()
		s.t.Skipf("needs ptrace(2): strace says %q", line)
	}
	do()
	if err := c.Process.Signal(syscall.SIGINT); err != nil {
		s.t.Fatal(err)
	}
	for err == nil {
		_, err = r.ReadString('\n')
	}
	_ = c.Wait() // ends by the signal
	var calls []string
	for line := range strings.Lines(s.read("strace")) {
		if strings.Contains(line, "sync(") || strings.Contains(line, "syncfs(") {
			calls = append(calls, strings.TrimSpace(line))
		}
	}
	return calls
}
