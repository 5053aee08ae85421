package savefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/sluice-storage/sluice/test/lib/faultfs"
)

// asSaver has this program save a file: a process that serves a file system had better not wait for it.
const asSaver = "SLUICE_TEST_SAVE"

func TestMain(m *testing.M) {
	if path := os.Getenv(asSaver); path != "" {
		if err := Replace(path, []byte(os.Args[1])); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func inAnother(path, text string) error {
	c := exec.Command(os.Args[0], text)
	c.Env = append(os.Environ(), asSaver+"="+path)
	out, err := c.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// What is saved is there whole, what was there before is replaced or refused, and nothing else stays in the directory.
// a test of target/nfs cuts the power under it.
func TestSave(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a/b/c")
	if err := MkdirAll(dir); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "f")
	for _, c := range []struct {
		save func(string, []byte) error
		b    string
		want error
		is   string
	}{{Create, "one", nil, "one"}, {Create, "two", fs.ErrExist, "one"}, {Replace, "three", nil, "three"}, {Replace, "", nil, ""}} {
		if err := c.save(path, []byte(c.b)); !errors.Is(err, c.want) {
			t.Fatalf("%q: %v", c.b, err)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != c.is {
			t.Fatalf("%q, %v; want %q", b, err, c.is)
		}
	}
	if l, err := os.ReadDir(dir); err != nil || len(l) != 1 {
		t.Fatalf("%v, %v", l, err)
	}
	if err := Replace(filepath.Join(dir, "gone", "f"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in a directory that is not there: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	if Replace(filepath.Join(dir, "d"), nil) == nil {
		t.Error("a directory was replaced")
	}
	if l, err := os.ReadDir(dir); err != nil || len(l) != 2 {
		t.Fatalf("after refusals: %v, %v", l, err)
	}
}

// A change that is refused is not found made at the next start: where the directory cannot be made durable the old content is there
// again, or none where there was none.
func TestAFailedPutLeavesTheOldContent(t *testing.T) {
	for _, old := range []string{"old", ""} {
		fs := faultfs.MountThrough(t, false)
		path := filepath.Join(fs.Dir, "f")
		if old != "" {
			if err := inAnother(path, old); err != nil {
				t.Fatal(err)
			}
		}
		for _, call := range []string{"create", "write", "fsync", "rename", "fsyncdir"} {
			first := true
			fs.Fault(func(c faultfs.Call) syscall.Errno {
				if c.Name == call && first {
					first = false
					return syscall.EIO
				}
				return 0
			})
			err := inAnother(path, "new")
			fs.Fault(nil)
			b, rerr := os.ReadFile(filepath.Join(fs.Below, "f"))
			if err == nil || string(b) != old || (rerr != nil) != (old == "") {
				t.Errorf("%s fails, %q before: %v; now %q, %v", call, old, err, b, rerr)
			}
			if l, err := os.ReadDir(fs.Below); err != nil || len(l) != len(old)/3 {
				t.Errorf("%s fails, %q before: %v, %v", call, old, l, err)
			}
		}
	}
}
