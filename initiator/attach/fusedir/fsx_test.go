package fusedir_test

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/sluice-storage/sluice/initiator/attach/fusedir"
)

// The exerciser's models of a file, of names and of listings hold on a mount: reads, writes, mappings, truncation, renames
// from several processes, listings that change.
func TestExerciser(t *testing.T) {
	for _, over := range overs {
		t.Run(over, func(t *testing.T) { exercise(t, newServer(t, over, false).mount(t, fusedir.Options{})) })
	}
}

func exercise(t *testing.T, c *client) {
	t.Helper()
	fsx := filepath.Join(t.TempDir(), "fsx")
	if out, err := exec.Command("go", "build", "-o", fsx, "github.com/sluice-storage/sluice/test/tool/lab/fsx").CombinedOutput(); err != nil {
		t.Fatalf("build the exerciser: %v: %s", err, out)
	}
	for what, args := range map[string][]string{
		"file":   {"-ops", "1000", c.path("file")},
		"direct": {"-ops", "600", "-direct", c.path("direct")},
		"churn":  {"-churn", "-ops", "100", c.path()},
		"list":   {"-list", "-files", "500", "-rounds", "2", c.path()},
	} {
		t.Run(what, func(t *testing.T) {
			if out, err := exec.Command(fsx, args...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %v: %s", args, err, out)
			}
		})
	}
}
