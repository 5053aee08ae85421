package api

import (
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// without are the packages that have no example, each with the reason.
var without = map[string]string{
	"blockdev/blockdevtest":      "a suite that tests call: test/outside does, and docs/library.md shows it",
	"transport/transporttest":    "a suite that tests call: test/outside does, and docs/library.md shows it",
	"target/admin":               "the daemon's administrative interface, which programs reach by HTTP",
	"target/daemon":              "the daemon, whose interface is its configuration",
	"target/hist":                "counts latencies for the servers, whose Stats give its snapshots",
	"target/iscsi/isns":          "a part of target/iscsi, used by Server.RegisterISNS",
	"initiator/attach/bdev":      "a step that ublk and sluice attach have in common",
	"initiator/attach/errno":     "the table of error numbers that nbd, ublk and fusefile have in common",
	"initiator/attach/fusemount": "how fusefile and fusedir end their mounts; its ErrBusy is theirs",
	"initiator/attach/nbdlink":   "sluice attach makes /dev/nbdN with it; programs connect to the socket of nbd",
}

// Whoever looks at a package sees a program that uses it.
func TestEachPackageHasAnExample(t *testing.T) {
	const root = "../../.."
	left := map[string]bool{}
	for name := range without {
		left[name] = true
	}
	packages := 0
	for _, dir := range public {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, e fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case !e.IsDir():
				return nil
			case e.Name() == "internal" || e.Name() == "testdata":
				return fs.SkipDir
			}
			is, has := examples(t, path)
			if !is {
				return nil
			}
			packages++
			name := filepath.ToSlash(strings.TrimPrefix(path, root+"/"))
			reason := without[name]
			delete(left, name)
			if !has && reason == "" {
				t.Errorf("%s has no example", name)
			}
			if has && reason != "" {
				t.Errorf("%s has an example, and stands in the list of those without", name)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for name := range left {
		t.Errorf("%s stands in the list and is no package", name)
	}
	if packages < 30 {
		t.Errorf("only %d packages were found", packages)
	}
}

// examples looks at a directory: whether it is a package, and has an example.
func examples(t *testing.T, dir string) (is, has bool) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !strings.HasSuffix(f, "_test.go") {
			is = true
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), f, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		has = has || len(doc.Examples(parsed)) > 0
	}
	return is, has
}
