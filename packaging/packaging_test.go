//go:build !race

// Other programs do the work here, in which the race detector sees nothing.

package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/test/lib/need"
)

// work is built once for all tests: linking both programs costs seconds.
var work struct {
	once sync.Once
	src  *source
	dir  string
	c    *contents
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if work.dir != "" {
		_ = os.RemoveAll(work.dir)
	}
	os.Exit(code)
}

func built(t *testing.T) (*source, *contents) {
	t.Helper()
	need.File(t, "/usr/include/infiniband/verbs.h", "libibverbs-dev")
	need.File(t, "/usr/include/rdma/rdma_cma.h", "librdmacm-dev")
	work.once.Do(func() {
		work.src = &source{version: "v1.2.3", commit: strings.Repeat("c0ffee00", 5), time: time.Unix(1_700_000_000, 0).UTC()}
		if work.src.root, work.err = filepath.Abs(".."); work.err != nil {
			return
		}
		if work.dir, work.err = os.MkdirTemp("", "packaging-test"); work.err != nil {
			return
		}
		work.c, work.err = collect(work.src, work.dir, runtime.GOARCH)
	})
	if work.err != nil {
		t.Fatal(work.err)
	}
	return work.src, work.c
}

// The same commit gives the same tarball, bill of materials and Debian package, built twice, in another directory, by a
// builder with another umask, home, time zone and configuration of Go.
func TestTwoBuildsAreTheSameBytes(t *testing.T) {
	need.Tool(t, "dpkg-deb", "dpkg")
	src, first := built(t)
	ball := must(archive(first.prefixed("sluice"), src.time))(t)
	debOf := func(c *contents) []byte {
		dir := t.TempDir()
		path := must(writeDeb(src, c, dir, dir, "none"))(t) // compression is xz's business, and slow
		return must(os.ReadFile(path))(t)
	}
	deb := debOf(first)

	for _, v := range []string{"GOCACHE", "GOMODCACHE"} { // what is compiled already stays compiled
		t.Setenv(v, strings.TrimSpace(string(must(output(src.root, nil, "go", "env", v))(t))))
	}
	t.Setenv("HOME", t.TempDir())
	t.Setenv("TZ", "Pacific/Chatham")
	t.Setenv("LC_ALL", "C.UTF-8")
	t.Setenv("GOAMD64", "v3")
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	// The repository by another path: what is compiled in must not say where it was.
	other := *src
	other.root = filepath.Join(t.TempDir(), "elsewhere")
	if err := os.Symlink(src.root, other.root); err != nil {
		t.Fatal(err)
	}
	second, err := collect(&other, t.TempDir(), runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range first.files.names() {
		if !bytes.Equal(first.files[name].data, second.files[name].data) {
			t.Errorf("%s differs", name)
		}
	}
	if !bytes.Equal(first.sbom, second.sbom) {
		t.Error("the bill of materials differs")
	}
	if !bytes.Equal(ball, must(archive(second.prefixed("sluice"), src.time))(t)) {
		t.Error("the tarball differs")
	}
	if !bytes.Equal(deb, debOf(second)) {
		t.Error("the Debian package differs")
	}
}

// The bill of materials names what is linked, as the go command sees it: every module of every package that a program
// imports, at the version that go.mod selects, and no other.
func TestBillNamesEveryLinkedModule(t *testing.T) {
	src, c := built(t)
	var doc spdxDoc
	if err := json.Unmarshal(c.sbom, &doc); err != nil {
		t.Fatal(err)
	}
	out := must(output(src.root, []string{"CGO_ENABLED=1"}, "go", "list", "-tags=verbs,ceph,netgo,osusergo", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}@{{.Version}}{{end}}{{end}}", "./cmd/sluice", "./cmd/sluiced"))(t)
	want := strings.Fields(string(out))
	slices.Sort(want)
	want = slices.Compact(want)
	var got []string
	ids := map[string]bool{doc.SPDXID: true}
	for _, p := range doc.Packages {
		if ids[p.SPDXID] {
			t.Errorf("%s is there twice", p.SPDXID)
		}
		ids[p.SPDXID] = true
		if p.LicenseDeclared == "NOASSERTION" {
			t.Errorf("the license of %s is not recognised", p.Name)
		}
		if p.Purpose == "LIBRARY" && p.Name != "stdlib" {
			got = append(got, p.Name+"@"+p.VersionInfo)
			if !strings.Contains(string(c.notices), "\n"+p.Name+" "+p.VersionInfo+"\n") {
				t.Errorf("the terms of %s are not handed on", p.Name)
			}
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) || len(got) < 10 {
		t.Errorf("the bill has\n%s\nlinked are\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	used := map[string]bool{}
	for _, l := range doc.Relationships {
		if !ids[l.From] || !ids[l.To] {
			t.Errorf("%v names what is not there", l)
		}
		used[l.To] = true
	}
	for id := range ids {
		if id != doc.SPDXID && !used[id] {
			t.Errorf("%s hangs in the air", id)
		}
	}
}

// The programs say which release and commit they are.
func TestProgramsNameTheirCommit(t *testing.T) {
	src, c := built(t)
	for _, p := range programs {
		out := string(must(output(src.root, nil, filepath.Join(work.dir, "bin-"+c.arch, p), "--version"))(t))
		if !strings.Contains(out, src.version) || !strings.Contains(out, src.commit) {
			t.Errorf("%s --version says %q", p, out)
		}
	}
}

// Every page is a manual page with a name and a synopsis, and there is one for each command, the daemon and its file.
func TestManualPages(t *testing.T) {
	_, c := built(t)
	n := 0
	for name, f := range c.files {
		if !strings.HasPrefix(name, "usr/share/man/") {
			continue
		}
		n++
		if ref, ok := strings.CutPrefix(string(f.data), ".so "); ok {
			if _, ok := c.files["usr/share/man/"+strings.TrimSpace(ref)]; !ok {
				t.Errorf("%s stands for %s, which is not there", name, ref)
			}
			continue
		}
		for _, want := range []string{".TH", ".SH NAME", ".SH SYNOPSIS"} {
			if !bytes.Contains(f.data, []byte(want)) {
				t.Errorf("%s has no %s", name, want)
			}
		}
		if bytes.Contains(f.data, []byte(os.Getenv("HOME")+"/.local")) {
			t.Errorf("%s knows its builder's home", name)
		}
	}
	for _, name := range []string{"man1/sluice.1", "man1/sluice-cp.1", "man1/sluice-volume-create.1", "man8/sluiced.8", "man5/sluiced.yaml.5"} {
		if _, ok := c.files["usr/share/man/"+name]; !ok {
			t.Errorf("no page %s", name)
		}
	}
	if n < 40 {
		t.Errorf("%d pages", n)
	}
}

// Files that a Debian package must have are in it, as root's, and everything below /etc is the operator's.
func TestDebianPackage(t *testing.T) {
	dpkg := need.Tool(t, "dpkg-deb", "dpkg")
	src, c := built(t)
	dir := t.TempDir()
	path := must(writeDeb(src, c, dir, dir, "none"))(t)
	if got := filepath.Base(path); got != "sluice_1.2.3-1_"+c.arch+".deb" {
		t.Errorf("it is called %s", got)
	}
	list := string(must(output(dir, nil, dpkg, "--contents", path))(t))
	for _, want := range []string{
		"-rwxr-xr-x root/root .* ./usr/bin/sluice\n", "-rwxr-xr-x root/root .* ./usr/bin/sluiced\n", "-rw-r--r-- root/root .* ./etc/sluice/sluiced.yaml\n",
		" ./usr/lib/systemd/system/sluiced.service\n", " ./usr/lib/systemd/system/sluiced.socket\n", "lrwxrwxrwx root/root .* ./usr/sbin/mount.sluice -> ../bin/sluice\n", " ./usr/lib/sysusers.d/sluice.conf\n",
		" ./usr/share/man/man8/sluiced.8.gz\n", " ./usr/share/bash-completion/completions/sluice\n", " ./usr/share/zsh/vendor-completions/_sluice\n",
		" ./usr/share/fish/vendor_completions.d/sluice.fish\n", " ./usr/share/doc/sluice/copyright\n", " ./usr/share/doc/sluice/changelog.Debian.gz\n",
	} {
		if !regexp.MustCompile(want).MatchString(list) {
			t.Errorf("no %q", want)
		}
	}
	for line := range strings.Lines(list) {
		if !strings.Contains(line, " root/root ") {
			t.Errorf("not root's: %s", line)
		}
	}
	info := t.TempDir()
	must(output(dir, nil, dpkg, "--control", path, info))(t)
	if got := string(must(os.ReadFile(filepath.Join(info, "conffiles")))(t)); got != "/etc/sluice/files.yaml\n/etc/sluice/sluiced.yaml\n" {
		t.Errorf("conffiles are %q", got)
	}
	for _, script := range []string{"postinst", "prerm", "postrm"} {
		must(output(info, nil, "sh", "-n", script))(t)
	}
}

// What the tarball installs is what it says, and nothing leaves its directory.
func TestTarball(t *testing.T) {
	src, c := built(t)
	ball := must(archive(c.prefixed("sluice-x"), src.time))(t)
	seen := map[string]bool{}
	for r := tar.NewReader(bytes.NewReader(ball)); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		seen[h.Name] = true
		if !strings.HasPrefix(h.Name, "sluice-x/") || h.Uid != 0 || h.Gid != 0 || !h.ModTime.Equal(src.time) {
			t.Errorf("%+v", h)
		}
	}
	for _, name := range []string{"sluice-x/usr/bin/sluiced", "sluice-x/sluice.spdx.json", "sluice-x/THIRD-PARTY", "sluice-x/NEEDS", "sluice-x/usr/share/doc/sluice/quickstart.md"} {
		if !seen[name] {
			t.Errorf("no %s", name)
		}
	}
}

// dpkg sorts versions as time went.
func TestDebianVersionsSort(t *testing.T) {
	dpkg := need.Tool(t, "dpkg", "dpkg")
	var last string
	for i, v := range []string{"0a1b2c3d4e5f", "v1.2.0-rc1", "v1.2.0-rc1-3-gabcdef0", "v1.2.0", "v1.2.0-4-gabcdef0", "v1.2.0-4-gabcdef0-dirty", "v1.10.0"} {
		s := &source{version: v, time: time.Unix(1_700_000_000+int64(i)*86400, 0).UTC()}
		next := s.debianVersion()
		if last != "" {
			if _, err := output(".", nil, dpkg, "--compare-versions", last, "lt", next); err != nil {
				t.Errorf("%s is not before %s", last, next)
			}
		}
		last = next
	}
}

// must unwraps a result: must(f())(t).
func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
