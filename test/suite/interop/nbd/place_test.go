package nbd

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// attach --socket takes the place of no file, and of no socket that a process listens on; after a killed helper it takes its own.
func TestASocketsPlaceIsNeverAnotherFile(t *testing.T) {
	l := start(t)
	file := filepath.Join(l.dir, "kept")
	want := noise(t, file, 1000)
	attach := func(path, name string) (string, int) {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), filepath.Join(l.bin, "sluice"), "attach", l.url(), "--face", "socket", "--socket", path, "--name", name).CombinedOutput()
		var ee *exec.ExitError
		if err != nil && !errors.As(err, &ee) {
			t.Fatal(err)
		}
		if err != nil {
			return string(out), ee.ExitCode()
		}
		return string(out), 0
	}
	for what, path := range map[string]string{"a file": file, "the daemon's own socket": filepath.Join(l.dir, "admin.sock"), "a directory": l.bin} {
		if out, code := attach(path, "x"); code != 4 || !strings.Contains(out, path) {
			t.Errorf("in place of %s: exit %d\n%s", what, code, out)
		}
	}
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the file holds %d bytes (%v)", len(got), err)
	}
	if out := l.sluice("status", "--socket", filepath.Join(l.dir, "admin.sock")); !strings.Contains(out, "serving") {
		t.Errorf("the daemon says %s", out)
	}
	if s := strings.TrimSpace(l.sluice("attachments", "-o", "json")); s != "[]" {
		t.Errorf("what was refused left %s", s)
	}
}
