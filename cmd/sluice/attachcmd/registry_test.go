package attachcmd

import (
	"os"
	"path/filepath"
	"testing"
)

// What is attached is found wherever it is recorded: a directory's name is no pattern.
func TestAttachmentsAreFoundInADirectoryThatIsNamedLikeAPattern(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run[1]")
	t.Setenv("SLUICE_RUNTIME_DIR", dir)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"a.json": `{"name": "a"}`, ".b.json": "{", "a.lock": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l, err := list()
	if err != nil || len(l) != 1 || l[0].Name != "a" {
		t.Errorf("%d are found, %v", len(l), err)
	}
}
