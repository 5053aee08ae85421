package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// source is the tree that is packaged.
type source struct {
	root    string // of the repository
	version string // for people: what git describe says
	commit  string
	time    time.Time // the commit's: every file of a package has it
}

// readSource asks git; VERSION, COMMIT and SOURCE_DATE_EPOCH stand in where there is none.
func readSource(dir string) (*source, error) {
	root, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	s := &source{root: root, version: os.Getenv("VERSION"), commit: os.Getenv("COMMIT")}
	if s.version == "" {
		if s.version, err = git(root, "describe", "--tags", "--always", "--dirty"); err != nil {
			return nil, err
		}
	}
	if s.commit == "" {
		if s.commit, err = git(root, "rev-parse", "HEAD"); err != nil {
			return nil, err
		}
	}
	epoch := os.Getenv("SOURCE_DATE_EPOCH")
	if epoch == "" {
		if epoch, err = git(root, "log", "-1", "--format=%ct"); err != nil {
			return nil, err
		}
	}
	n, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("SOURCE_DATE_EPOCH %q is no number of seconds", epoch)
	}
	s.time = time.Unix(n, 0).UTC()
	return s, nil
}

func git(root string, args ...string) (string, error) {
	out, err := output(root, nil, "git", args...)
	if err != nil {
		return "", fmt.Errorf("%w; outside a git clone set VERSION, COMMIT and SOURCE_DATE_EPOCH", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// output runs a program in dir with env added; what it says on standard error becomes the error.
func output(dir string, env []string, name string, args ...string) ([]byte, error) {
	cmd := exec.Command(name, args...) //nolint:gosec // build tools with arguments of ours
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, stderr.String())
	}
	return out, nil
}

var (
	tagged   = regexp.MustCompile(`^v?(\d[0-9A-Za-z.]*)((?:-\w+)?)(?:-(\d+)-g([0-9a-f]+))?(-dirty)?$`)
	untagged = regexp.MustCompile(`^[0-9a-f]{7,40}(-dirty)?$`)
)

// debianVersion makes a version that dpkg sorts rightly (deb-version(7)): v1.2-rc1 before v1.2, commits after their tag,
// and what has no tag at all before everything, by its date.
func (s *source) debianVersion() string {
	v := s.version
	if untagged.MatchString(v) {
		return "0~git" + s.time.Format("20060102.150405") + "." + strings.ReplaceAll(v, "-", "+") + "-1"
	}
	m := tagged.FindStringSubmatch(v)
	if m == nil {
		return "0~" + regexp.MustCompile(`[^0-9A-Za-z.+~]`).ReplaceAllString(v, ".") + "-1"
	}
	out := m[1] + strings.Replace(m[2], "-", "~", 1)
	if m[3] != "" {
		out += "+" + m[3] + ".g" + m[4]
	}
	if m[5] != "" {
		out += "+dirty"
	}
	return out + "-1"
}
