// Command packaging makes what is handed out: manual pages, a Debian package, release tarballs with their bill of
// materials. The same commit gives the same bytes, wherever and whenever it is built.
//
//	go run ./packaging [-out DIR] [-compression KIND] man|deb|release
package main

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

func main() {
	out := flag.String("out", "dist", "where results go")
	compression := flag.String("compression", "xz", "of the Debian package: xz, or none for one that is only to be tried")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: packaging [-out DIR] [-compression KIND] man|deb|release")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *out, *compression); err != nil {
		fmt.Fprintln(os.Stderr, "packaging:", err)
		os.Exit(1)
	}
}

func run(what, out, compression string) error {
	src, err := readSource(".")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "sluice-packaging")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }() // scratch
	switch what {
	case "man":
		return makeMan(src, work, filepath.Join(out, "man"))
	case "deb":
		path, err := makeDeb(src, work, out, runtime.GOARCH, compression)
		if err != nil || compression == "none" {
			return err
		}
		return lintian(path)
	case "release":
		return makeRelease(src, work, out, "amd64", "arm64")
	}
	return fmt.Errorf("%q is none of man, deb, release", what)
}

// makeMan writes the manual pages as they are in the packages, not compressed.
func makeMan(src *source, work, out string) error {
	if err := compileStatic(src, filepath.Join(work, "bin")); err != nil {
		return err
	}
	p, err := readPages(src, filepath.Join(work, "bin"), work)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	t := tree{}
	for name, b := range p.man {
		t.add(filepath.Join("man"+name[len(name)-1:], name), 0o644, b)
	}
	if err := t.write(out, src.time); err != nil {
		return err
	}
	fmt.Printf("%d manual pages in %s\n", len(p.man), out)
	return nil
}

// makeDeb builds the Debian package and returns its path.
func makeDeb(src *source, work, out, arch, compression string) (string, error) {
	c, err := collect(src, work, arch)
	if err != nil {
		return "", err
	}
	return writeDeb(src, c, work, out, compression)
}

// makeRelease builds one tarball and one bill of materials an architecture, and SHA256SUMS over them.
func makeRelease(src *source, work, out string, archs ...string) error {
	var sums strings.Builder
	for _, arch := range archs {
		c, err := collect(src, work, arch)
		if err != nil {
			return err
		}
		base := fmt.Sprintf("sluice-%s-linux-%s", src.version, arch)
		raw, err := archive(c.prefixed(base), src.time)
		if err != nil {
			return err
		}
		ball, err := compress(raw)
		if err != nil {
			return err
		}
		for name, b := range map[string][]byte{base + ".tar.gz": ball, base + ".spdx.json": c.sbom} {
			if err := os.WriteFile(filepath.Join(out, name), b, 0o644); err != nil { //nolint:gosec // for everyone
				return err
			}
		}
		for _, name := range []string{base + ".spdx.json", base + ".tar.gz"} {
			b, err := os.ReadFile(filepath.Join(out, name))
			if err != nil {
				return err
			}
			fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(b), name)
			fmt.Printf("%s: %d bytes\n", filepath.Join(out, name), len(b))
		}
	}
	return os.WriteFile(filepath.Join(out, "SHA256SUMS"), []byte(sums.String()), 0o644) //nolint:gosec // for everyone
}
