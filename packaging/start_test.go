//go:build !race

// Other programs do the work here, in which the race detector sees nothing.

package main

import (
	"debug/elf"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-storage/sluice/test/lib/need"
)

// The programs start where there is a C library and nothing else, rdma-core least of all, and say what they have.
func TestProgramsStartWithTheCLibraryAlone(t *testing.T) {
	need.Root(t)
	_, c := built(t)
	root := t.TempDir()
	for _, p := range programs {
		file := filepath.Join(work.dir, "bin-"+c.arch, p)
		copyTo(t, file, filepath.Join(root, p))
		interp := interpreter(t, file)
		copyTo(t, interp, filepath.Join(root, interp))
		libc := filepath.Join("/lib", strings.TrimSuffix(compilers[c.arch].cc, "-gcc"), "libc.so.6")
		copyTo(t, libc, filepath.Join(root, libc))
		cmd := exec.Command("/"+p, "--version")
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
		cmd.Dir = "/"
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "verbs (RDMA adapters") {
			t.Errorf("%s: %v\n%s", p, err, out)
		}
	}
}

// What the package depends on and the tarball says is what the programs use of the C library.
func TestTheCLibraryIsNamed(t *testing.T) {
	_, c := built(t)
	if !regexp.MustCompile(`^2\.\d+$`).MatchString(c.libc) {
		t.Errorf("the C library is %q", c.libc)
	}
	control := string(must(render("control", map[string]any{"Libc": c.libc}))(t))
	if !strings.Contains(control, "Depends: libc6 (>= "+c.libc+"),") {
		t.Error(control)
	}
	if text := string(c.prefixed("x")["x/NEEDS"].data); !strings.Contains(text, "GNU C library "+c.libc+" or later") {
		t.Error(text)
	}
}

func interpreter(t *testing.T, file string) string {
	t.Helper()
	f := must(elf.Open(file))(t)
	defer func() { _ = f.Close() }()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return strings.TrimRight(string(must(io.ReadAll(p.Open()))(t)), "\x00")
		}
	}
	t.Fatalf("%s asks for no dynamic linker", file)
	return ""
}

func copyTo(t *testing.T, from, to string) {
	t.Helper()
	b := must(os.ReadFile(from))(t)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o755); err != nil {
		t.Fatal(err)
	}
}
