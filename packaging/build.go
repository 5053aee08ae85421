package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const module = "github.com/sluice-storage/sluice"

// programs are what is linked, in the order of their mention.
var programs = []string{"sluice", "sluiced"}

// compile links the programs into dir, for Linux on arch, without cgo. Nothing of the machine goes in: no paths
// (-trimpath), no time, and of git what src says, so that a build from an unpacked archive is the same.
func compile(src *source, arch, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	flags := fmt.Sprintf("-s -w -buildid= -X %[1]s/internal/version.Version=%[2]s -X %[1]s/internal/version.Commit=%[3]s", module, src.version, src.commit)
	args := []string{"build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", dir + string(filepath.Separator)}
	for _, p := range programs {
		args = append(args, "./cmd/"+p)
	}
	env := []string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + arch, "GOAMD64=v1", "GOARM64=v8.0", "GOFLAGS=", "GOEXPERIMENT="}
	_, err := output(src.root, env, "go", args...)
	return err
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
