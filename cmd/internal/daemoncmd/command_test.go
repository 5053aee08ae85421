package daemoncmd

import (
	"os"
	"path/filepath"
	"testing"
)

// Wrong use of the daemon ends with 2, serves nothing and leaves nothing.
func TestWrongUseOfTheDaemonExitsWith2(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "c.yaml")
	if err := os.WriteFile(file, []byte("volumes: [{nme: a}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(dir, "state")
	for _, args := range [][]string{{file}, {"--confg", file}, {"--config"}, {"--config", file}, {"--log-level", "loud"}, {"--config", filepath.Join(dir, "none.yaml")}} {
		c := Command()
		c.SetArgs(append(args, "--state-dir", state))
		if len(args) == 1 && args[0] == "--config" {
			c.SetArgs(args)
		}
		if err := c.ExecuteContext(t.Context()); ExitCode(err) != 2 {
			t.Errorf("sluiced %v ends with %d (%v)", args, ExitCode(err), err)
		}
	}
	if _, err := os.Stat(state); err == nil {
		t.Error("a state directory was made")
	}
}
