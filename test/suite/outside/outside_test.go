//go:build !race

// Another process does the work here, in which the race detector sees nothing.

// Package outside tries Sluice as a library: test/outside is a module of its own, which can import what any program can and no more.
package outside

import (
	"bytes"
	"os"
	"os/exec"
	"testing"
)

const module = "../../outside"

// golang runs the Go command in the outside module, with the versions of the repository's modules and no network.
func golang(t *testing.T, args ...string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), "go", args...)
	c.Dir = module
	c.Env = append(os.Environ(), "GOPROXY=off", "GOWORK=off")
	out, err := c.CombinedOutput()
	if err != nil {
		t.Errorf("go %v in test/outside: %v\n%s", args, err, out)
	}
	return string(out)
}

// A program that is no part of the repository opens volumes and files, brings a provider and an engine, and serves them.
func TestAModuleOfOthersBuildsAndRuns(t *testing.T) {
	ours, err := os.ReadFile("../../../go.sum")
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := os.ReadFile(module + "/go.sum")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(ours, theirs) {
		t.Fatal("the outside module has other sums than the repository: cp go.sum test/outside/ && (cd test/outside && go vet -mod=mod ./...)")
	}
	golang(t, "vet", "-mod=readonly", "./...")
	golang(t, "test", "-mod=readonly", "-count=1", "./...")
}
