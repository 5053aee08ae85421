package main

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
)

// contents is what both the package and the tarball are made of.
type contents struct {
	arch    string
	files   tree // by installed path
	sbom    []byte
	notices []byte
	libc    string // the oldest GNU C library that the programs run with
}

// Where things are installed below /.
const (
	unitDir = "usr/lib/systemd/system"
	docDir  = "usr/share/doc/sluice"
)

// installed says where files of the repository go; a directory's files keep their names.
var installed = []struct {
	from, to string
	mode     os.FileMode
}{
	{"configs/sluiced.yaml", "etc/sluice/sluiced.yaml", 0o644},
	{"configs/files.yaml", "etc/sluice/files.yaml", 0o644},
	{"configs/systemd/sluiced.service", unitDir + "/sluiced.service", 0o644},
	{"configs/systemd/sluiced-files.service", unitDir + "/sluiced-files.service", 0o644},
	{"configs/systemd/sluiced.socket", unitDir + "/sluiced.socket", 0o644},
	{"configs/systemd/sluice-map.service", unitDir + "/sluice-map.service", 0o644},
	{"configs/systemd/sluice-attach@.service", unitDir + "/sluice-attach@.service", 0o644},
	{"configs/systemd/10-notify-reload.conf", "usr/share/sluice/10-notify-reload.conf", 0o644},
	{"configs/sysusers.d/sluice.conf", "usr/lib/sysusers.d/sluice.conf", 0o644},
	{"configs/tmpfiles.d/sluice.conf", "usr/lib/tmpfiles.d/sluice.conf", 0o644},
	{"configs/monitoring", docDir + "/examples/monitoring", 0o644},
	{"docs", docDir, 0o644},
	{"README.md", docDir + "/README.md", 0o644},
}

// collect builds the programs for arch and everything that goes with them.
func collect(src *source, work, arch string) (*contents, error) {
	bin, host := filepath.Join(work, "bin-"+arch), filepath.Join(work, "bin-"+runtime.GOARCH)
	for _, a := range []string{arch, runtime.GOARCH} {
		if _, err := os.Stat(filepath.Join(work, "bin-"+a)); err == nil {
			continue
		}
		if err := compile(src, a, filepath.Join(work, "bin-"+a)); err != nil {
			return nil, err
		}
	}
	c := &contents{arch: arch, files: tree{}}
	for _, p := range programs {
		b, err := os.ReadFile(filepath.Join(bin, p))
		if err != nil {
			return nil, err
		}
		c.files.add("usr/bin/"+p, 0o755, b)
	}
	var err error
	if c.libc, err = libcFloor(bin); err != nil {
		return nil, err
	}
	for _, helper := range []string{"mount.sluice", "umount.sluice"} { // mount(8) and umount(8) run them
		c.files.link("usr/sbin/"+helper, "../bin/sluice")
		c.files.add("usr/share/man/man8/"+helper+".8", 0o644, []byte(".so man1/sluice-"+strings.TrimSuffix(helper, ".sluice")+".1\n"))
	}
	for _, i := range installed {
		if err := c.install(src.root, i.from, i.to, i.mode); err != nil {
			return nil, err
		}
	}
	p, err := readPages(src, host, work)
	if err != nil {
		return nil, err
	}
	c.addPages(p)
	mods, goVersion, err := linkedModules(bin)
	if err != nil {
		return nil, err
	}
	if err := locate(src.root, mods); err != nil {
		return nil, err
	}
	if c.sbom, err = bill(src, arch, bin, mods, goVersion); err != nil {
		return nil, err
	}
	goroot, err := output(src.root, nil, "go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	c.notices, err = notices(mods, strings.TrimSpace(string(goroot)))
	return c, err
}

func (c *contents) install(root, from, to string, mode os.FileMode) error {
	st, err := os.Stat(filepath.Join(root, from))
	if err != nil {
		return err
	}
	if !st.IsDir() {
		b, err := os.ReadFile(filepath.Join(root, from))
		if err == nil {
			c.files.add(to, mode, b)
		}
		return err
	}
	files, err := os.ReadDir(filepath.Join(root, from))
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := c.install(root, filepath.Join(from, f.Name()), path.Join(to, f.Name()), mode); err != nil {
			return err
		}
	}
	return nil
}

func (c *contents) addPages(p *pages) {
	for name, b := range p.man {
		c.files.add(fmt.Sprintf("usr/share/man/man%c/%s", name[len(name)-1], name), 0o644, b)
	}
	for name, b := range p.completions {
		switch {
		case strings.HasSuffix(name, ".bash"):
			c.files.add("usr/share/bash-completion/completions/"+strings.TrimSuffix(name, ".bash"), 0o644, b)
		case strings.HasSuffix(name, ".fish"):
			c.files.add("usr/share/fish/vendor_completions.d/"+name, 0o644, b)
		default:
			c.files.add("usr/share/zsh/vendor-completions/"+name, 0o644, b)
		}
	}
}

// needs is what a tarball says of the machine that it is for.
const needs = `The programs run on Linux (%s) with the GNU C library %s or later, and need nothing else.
For RDMA adapters the machine wants rdma-core: its libraries libibverbs.so.1 and librdmacm.so.1 and the library of the adapter
(Debian: rdma-core, librdmacm1, ibverbs-providers; docs/rdma.md). They are opened when an adapter is used; without them all else works.
For volumes on Ceph it wants librados.so.2 and librbd.so.1 (Debian: librados2, librbd1; docs/ceph.md), opened when such a volume is.
`

// prefixed is the tarball's form: everything as it would lie below /, in one directory, with the terms beside it.
func (c *contents) prefixed(dir string) tree {
	t := tree{}
	for name, f := range c.files {
		t[path.Join(dir, name)] = f
	}
	t.add(path.Join(dir, "NEEDS"), 0o644, fmt.Appendf(nil, needs, c.arch, c.libc))
	t.add(path.Join(dir, "sluice.spdx.json"), 0o644, c.sbom)
	t.add(path.Join(dir, "THIRD-PARTY"), 0o644, c.notices)
	return t
}
