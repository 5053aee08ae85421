package access

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/test/lib/need"
)

// own is the embedded default on ports that are free.
func own(t *testing.T) string {
	t.Helper()
	out, err := exec.Command(filepath.Join(bin, "sluiced"), "--print-default").Output()
	if err != nil {
		t.Fatal(err)
	}
	return "state_dir: state\ntimeouts: {drain: 1s}\n" + regexp.MustCompile(`127\.0\.0\.1:\d+`).ReplaceAllString(string(out), `"127.0.0.1:0"`)
}

var exportURL = regexp.MustCompile(`"url": "(nfs://[^"]+)"`)

// export is the URL of an export that the daemon logs for this machine's clients.
func (s *stand) export() string {
	s.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) { // its log comes by a pipe
		if m := exportURL.FindStringSubmatch(s.out.String()); m != nil {
			return m[1]
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("no export is logged:\n%s", s.out.String())
		}
	}
}

// put copies a file to an export with libnfs, as a user of this machine.
func (s *stand) put(as uint32, name string) (string, error) {
	s.t.Helper()
	src := filepath.Join(bin, "hello") // where every user can read
	if err := os.WriteFile(src, []byte("hello"), 0o644); err != nil {
		s.t.Fatal(err)
	}
	base, query, _ := strings.Cut(s.export(), "?")
	c := exec.Command(need.Tool(s.t, "nfs-cp", "libnfs-utils"), src, base+"/"+name+"?"+query)
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: as, Gid: as}}
	out, err := c.CombinedOutput()
	return string(out), err
}

// The export of the embedded default can be written by the user that started the daemon, root or not, and by this machine's users.
func TestTheDefaultExportCanBeWritten(t *testing.T) {
	need.Root(t) // to be both
	if err := os.Chmod(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, by := range map[string]uint32{"by root": 0, "by a user": 4321} {
		t.Run(name, func(t *testing.T) {
			s := prepare(t, own(t))
			for dir := s.dir; dir != os.TempDir(); dir = filepath.Dir(dir) {
				if err := os.Chmod(dir, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			for _, path := range []string{s.dir, s.conf} {
				if err := os.Chown(path, int(by), int(by)); err != nil {
					t.Fatal(err)
				}
			}
			s.as = &syscall.Credential{Uid: by, Gid: by}
			s.start()
			for _, as := range []uint32{0, 4321, 4322} {
				if out, err := s.put(as, fmt.Sprint("from", as)); err != nil {
					t.Errorf("uid %d cannot write: %v\n%s", as, err, out)
				}
			}
		})
	}
}

// A directory that the daemon did not make for the default, or that an operator has rules for, is opened to none.
func TestAnExportWithRulesIsNotOpened(t *testing.T) {
	need.Root(t)
	s := begin(t, head+`
exports: [{name: /ruled, clients: [{match: 127.0.0.1, any_port: true}]}]
files: {tcp: "127.0.0.1:0", rdma: none}
`)
	fi, err := os.Stat(filepath.Join(s.dir, "state", "exports", "ruled"))
	if err != nil || fi.Mode().Perm() != 0o755 {
		t.Fatalf("%v %v", fi.Mode(), err)
	}
	if out, err := s.put(4321, "x"); err == nil {
		t.Errorf("another user has written:\n%s", out)
	}
}
