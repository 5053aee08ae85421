package main

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const module = "github.com/sluice-storage/sluice"

// programs are what is linked, in the order of their mention.
var programs = []string{"sluice", "sluiced"}

// compilers are the C compilers by architecture, under the names that Debian gives them on every machine, and their packages.
var compilers = map[string]struct{ cc, debianPackage string }{
	"amd64": {"x86_64-linux-gnu-gcc", "gcc-x86-64-linux-gnu"},
	"arm64": {"aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"},
}

// compile links the programs into dir, for Linux on arch, with the provider for RDMA adapters. They need the C library and
// nothing else: rdma-core is opened when it is used. Nothing of the machine goes in: no paths (-trimpath), no time, no
// linker's note, and of git what src says, so that a build from an unpacked archive is the same.
func compile(src *source, arch, dir string) error {
	c, ok := compilers[arch]
	if !ok {
		return fmt.Errorf("nothing is handed out for %s", arch)
	}
	if _, err := exec.LookPath(c.cc); err != nil {
		return fmt.Errorf("%w; the programs have a part in C: install %s", err, c.debianPackage)
	}
	env := []string{"CGO_ENABLED=1", "GOARCH=" + arch, "CC=" + c.cc, "CGO_CFLAGS=-O2", "CGO_CPPFLAGS=", "CGO_LDFLAGS=", "LC_ALL=C"}
	err := link(src, dir, env, " -B none -linkmode=external -extldflags=-Wl,--build-id=none,-z,relro,-z,now", "-buildmode=pie", "-tags=verbs,ceph,netgo,osusergo")
	if err != nil {
		return fmt.Errorf("%w; the headers of rdma-core (libibverbs-dev, librdmacm-dev) and of the C library (libc6-dev-%s-cross) are needed", err, arch)
	}
	return nil
}

// compileStatic links them for this machine without any part in C.
func compileStatic(src *source, dir string) error {
	return link(src, dir, []string{"CGO_ENABLED=0"}, "")
}

func link(src *source, dir string, env []string, ldflags string, args ...string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	flags := fmt.Sprintf("-s -w -buildid= -X %[1]s/internal/version.Version=%[2]s -X %[1]s/internal/version.Commit=%[3]s", module, src.version, src.commit)
	args = append([]string{"build", "-trimpath", "-buildvcs=false", "-ldflags", flags + ldflags, "-o", dir + string(filepath.Separator)}, args...)
	for _, p := range programs {
		args = append(args, "./cmd/"+p)
	}
	_, err := output(src.root, append([]string{"GOOS=linux", "GOAMD64=v1", "GOARM64=v8.0", "GOFLAGS=", "GOEXPERIMENT="}, env...), "go", args...)
	return err
}

// libcFloor is the oldest version of the GNU C library that has all that the programs in bin use, and names what else they
// need: there must be nothing.
func libcFloor(bin string) (string, error) {
	floor := []int{0, 0}
	for _, p := range programs {
		f, err := elf.Open(filepath.Join(bin, p))
		if err != nil {
			return "", err
		}
		defer func() { _ = f.Close() }() // read only
		libs, err := f.ImportedLibraries()
		if err != nil {
			return "", fmt.Errorf("%s: %w", p, err)
		}
		for _, l := range libs {
			if l != "libc.so.6" && !strings.HasPrefix(l, "ld-linux-") {
				return "", fmt.Errorf("%s is linked with %s: it would not start without", p, l)
			}
		}
		syms, err := f.ImportedSymbols()
		if err != nil {
			return "", fmt.Errorf("%s: %w", p, err)
		}
		for _, s := range syms {
			v, ok := strings.CutPrefix(s.Version, "GLIBC_")
			if !ok {
				continue
			}
			var at []int
			for _, part := range strings.Split(v, ".") {
				n, err := strconv.Atoi(part)
				if err != nil {
					return "", fmt.Errorf("%s uses %s of %s: no version", p, s.Name, s.Version)
				}
				at = append(at, n)
			}
			if slices.Compare(at, floor) > 0 {
				floor = at
			}
		}
	}
	return strings.Trim(strings.Join(strings.Fields(fmt.Sprint(floor)), "."), "[]"), nil
}

// pages are the manual pages and completion scripts, by file name.
type pages struct {
	man, completions map[string][]byte
}

// readPages asks the programs in bin, built for this machine, and adds sluiced.yaml(5).
func readPages(src *source, bin, work string) (*pages, error) {
	// What a default says must not depend on who builds: it is root's.
	env := []string{fmt.Sprintf("SOURCE_DATE_EPOCH=%d", src.time.Unix()), "HOME=/root", "XDG_STATE_HOME=/var/lib", "XDG_RUNTIME_DIR=/run", "TZ=UTC"}
	p := &pages{}
	for verb, into := range map[string]*map[string][]byte{"man": &p.man, "completions": &p.completions} {
		dir := filepath.Join(work, verb)
		if _, err := output(src.root, env, filepath.Join(bin, "sluice"), verb, dir); err != nil {
			return nil, err
		}
		files, err := os.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		*into = map[string][]byte{}
		for _, f := range files {
			if (*into)[f.Name()], err = os.ReadFile(filepath.Join(dir, f.Name())); err != nil {
				return nil, err
			}
		}
	}
	conf, err := os.ReadFile(filepath.Join(src.root, "configs", "sluiced.yaml"))
	if err != nil {
		return nil, err
	}
	p.man["sluiced.yaml.5"] = configPage(src, conf)
	return p, nil
}

// configPage is sluiced.yaml(5): the documented file is its own reference.
func configPage(src *source, conf []byte) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, ".TH SLUICED.YAML 5 %q %q Sluice\n", src.time.Format("Jan 2006"), "Sluice "+src.version)
	b.WriteString(`.SH NAME
sluiced.yaml \- configuration of sluiced
.SH SYNOPSIS
.I /etc/sluice/sluiced.yaml
.br
.I /etc/sluice/sluiced.yaml.d/*.yaml
.SH DESCRIPTION
The file says what
.BR sluiced (8)
serves. A key that is not listed below is refused, with its line. Drop\-ins in the directory beside the file, in the order of
their names, add portals, volumes, targets and exports. What the administrative interface changes is kept in the state
directory, in managed.yaml, and never written here.
.PP
"sluice config check FILE" says what is wrong, "sluice config show FILE" what a file means with every default,
"sluice config schema" prints a JSON schema for editors.
.SH KEYS
Every key with its default and its unit, as the file that the package installs has them:
.PP
.nf
`)
	for line := range strings.Lines(string(conf)) {
		line = strings.TrimRight(line, "\n")
		line = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`).Replace(line)
		if strings.HasPrefix(line, ".") {
			line = `\&` + line
		}
		b.WriteString(line + "\n")
	}
	b.WriteString(`.fi
.SH "SEE ALSO"
.BR sluiced (8),
.BR sluice\-config (1),
.BR sluice\-reload (1)
`)
	return b.Bytes()
}
