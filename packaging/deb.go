package main

import (
	"bytes"
	"crypto/md5" //nolint:gosec // dpkg's own checksum of installed files, no protection
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"
)

//go:embed debian
var debian embed.FS

// writeDeb makes the package of c in out and returns its path. dpkg-deb sorts members, owns everything to root and takes
// SOURCE_DATE_EPOCH for its own times.
func writeDeb(src *source, c *contents, work, out, compression string) (string, error) {
	t := tree{}
	for name, f := range c.files {
		if !strings.HasPrefix(name, "usr/share/man/") {
			t[name] = f
			continue
		}
		if err := t.addGz(name, f.data); err != nil {
			return "", err
		}
	}
	facts := map[string]any{
		"Version": src.debianVersion(), "Arch": c.arch, "Libc": c.libc, "Commit": src.commit, "Year": src.time.Year(),
		"Date": src.time.Format("Mon, 02 Jan 2006 15:04:05 -0700"),
	}
	changelog, err := render("changelog", facts)
	if err != nil {
		return "", err
	}
	for name, b := range map[string][]byte{"changelog.Debian": changelog, "third-party": c.notices, "sluice.spdx.json": c.sbom} {
		if err := t.addGz(docDir+"/"+name, b); err != nil {
			return "", err
		}
	}
	for name, to := range map[string]string{"copyright": docDir + "/copyright", "overrides": "usr/share/lintian/overrides/sluice"} {
		b, err := render(name, facts)
		if err != nil {
			return "", err
		}
		t.add(to, 0o644, b)
	}
	facts["Size"] = t.kibibytes()
	root := filepath.Join(work, "deb-"+c.arch)
	if err := os.RemoveAll(root); err != nil {
		return "", err
	}
	if err := t.write(root, src.time); err != nil {
		return "", err
	}
	info, err := controlFiles(t, facts)
	if err != nil {
		return "", err
	}
	if err := info.write(filepath.Join(root, "DEBIAN"), src.time); err != nil {
		return "", err
	}
	if err := os.Chtimes(root, src.time, src.time); err != nil {
		return "", err
	}
	path := filepath.Join(out, fmt.Sprintf("sluice_%s_%s.deb", facts["Version"], c.arch))
	_, err = output(src.root, []string{fmt.Sprintf("SOURCE_DATE_EPOCH=%d", src.time.Unix())},
		"dpkg-deb", "--root-owner-group", "--threads-max=1", "-Z"+compression, "--build", root, path)
	if err != nil {
		return "", fmt.Errorf("%w; a Debian package is built on Debian", err)
	}
	st, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	fmt.Printf("%s: %d bytes\n", path, st.Size())
	return path, nil
}

// controlFiles are the package's control area: facts, configuration files, checksums and maintainer scripts.
func controlFiles(t tree, facts map[string]any) (tree, error) {
	info := tree{}
	for _, name := range []string{"control", "postinst", "prerm", "postrm", "triggers"} {
		b, err := render(name, facts)
		if err != nil {
			return nil, err
		}
		mode := os.FileMode(0o644)
		if strings.HasPrefix(name, "p") {
			mode = 0o755
		}
		info.add(name, mode, b)
	}
	var conf, sums strings.Builder
	for _, name := range t.names() {
		if strings.HasPrefix(name, "etc/") {
			fmt.Fprintf(&conf, "/%s\n", name)
			continue
		}
		if t[name].mode&os.ModeSymlink != 0 {
			continue
		}
		fmt.Fprintf(&sums, "%x  %s\n", md5.Sum(t[name].data), name) //nolint:gosec // as above
	}
	info.add("conffiles", 0o644, []byte(conf.String()))
	info.add("md5sums", 0o644, []byte(sums.String()))
	return info, nil
}

// kibibytes is what Installed-Size wants: each file rounded up, one for a directory (deb-substvars(5)).
func (t tree) kibibytes() int {
	n := len(t.dirs())
	for _, f := range t {
		n += (len(f.data) + 1023) / 1024
	}
	return n
}

func render(name string, facts map[string]any) ([]byte, error) {
	tpl, err := template.ParseFS(debian, "debian/"+name)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := tpl.Execute(&b, facts); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// lintian shows what Debian's checker says of the package, and fails on errors and warnings. Without lintian it says so.
func lintian(path string) error {
	if _, err := exec.LookPath("lintian"); err != nil {
		fmt.Println("lintian is not installed: the package is not checked")
		return nil
	}
	cmd := exec.Command("lintian", "--allow-root", "--fail-on", "error,warning", path) //nolint:gosec // the path is ours
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("lintian: %w", err)
	}
	fmt.Println("lintian: no errors, no warnings")
	return nil
}
