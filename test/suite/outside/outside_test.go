// Package outside tries Sluice as a library: test/outside is a module of its own, which can import what any program can and no more.
package outside

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/sluice-storage/sluice/test/lib/race"
)

const module = "../../outside"

// A program that is no part of the repository opens volumes and files, brings a provider and an engine, and serves them. All modules that
// it needs are the repository's own, so that their versions and sums are too, and nothing comes by a network.
func TestAModuleOfOthersBuildsAndRuns(t *testing.T) {
	mod := filepath.Join(t.TempDir(), "go.mod")
	for to, from := range map[string]string{mod: module + "/go.mod", filepath.Join(filepath.Dir(mod), "go.sum"): "../../../go.sum"} {
		b, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(to, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	tests := []string{"test", "-count=1", "./..."}
	if race.Enabled { // in this process alone it would see nothing
		tests = slices.Insert(tests, 1, "-race")
	}
	for _, args := range [][]string{{"vet", "./..."}, tests} {
		c := exec.CommandContext(t.Context(), "go", slices.Insert(args, 1, "-mod=mod", "-modfile="+mod)...)
		c.Dir = module
		c.Env = append(os.Environ(), "GOPROXY=off", "GOSUMDB=off", "GOWORK=off")
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("go %v in test/outside: %v\n%s", args, err, out)
		}
	}
}
