package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/internal/state"
)

// What a daemon says of a defect of its own fails the run, though it went on and every test passed.
func TestADefectThatTheLogTellsOfIsFound(t *testing.T) {
	d := &daemon{log: filepath.Join(t.TempDir(), "log")}
	for text, want := range map[string]bool{
		"serving\nended\n": false,
		"serving\n" + (&state.IllegalError{What: "a task", From: "free", To: "answered"}).Error() + "; it goes on.\nended\n": true,
		"ERROR a defect of this program ends a connection {\"remote\": \"127.0.0.1:1\"}\n":                                   true,
	} {
		if err := os.WriteFile(d.log, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := d.defects(); (err != nil) != want {
			t.Errorf("of %q: %v", text, err)
		}
	}
}

// The daemon runs so that an illegal move ends it.
func TestTheDaemonPanicsAtAnIllegalMove(t *testing.T) {
	d := &daemon{log: filepath.Join(t.TempDir(), "log")}
	err := d.start(t.Context(), "127.0.0.1:1", "/bin/sh", "-c", "echo strict: $"+state.Strict+"; exit 1")
	if err == nil || !strings.Contains(err.Error(), "strict: 1") {
		t.Errorf("its environment: %v", err)
	}
}
