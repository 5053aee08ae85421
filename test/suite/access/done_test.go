package access

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What goes wrong after a change was made and written down is said, and takes nothing back: its volume's file stays, and so do secrets.
func TestWhatFailsAfterAChangeDoesNotUndoHalfOfIt(t *testing.T) {
	s := begin(t, twoVolumes+"targets: [{name: \""+disks+"\", luns: [{lun: 0, volume: a}]}]\n")
	s.does("target set-group " + disks + " 1 standby")
	files, err := filepath.Glob(filepath.Join(s.dir, "state", "scsi", "target-*.json"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%v %v", files, err)
	}
	if err := errors.Join(os.Remove(files[0]), os.MkdirAll(filepath.Join(files[0], "cannot-be-removed"), 0o700)); err != nil {
		t.Fatal(err)
	}
	s.write("sluiced.yaml", twoVolumes) // the target goes with the next change
	if out := s.does("volume create v 1MiB"); !strings.Contains(out, "it is done, but") {
		t.Errorf("what failed is not said:\n%s", out)
	}
	s.does("target create " + others)
	s.does("target map " + others + " 0 v")
	s.restart()
	s.sees(login{name: alice}, others, 0)
	if _, err := os.Stat(filepath.Join(s.dir, "state", "v.img")); err != nil {
		t.Error(err)
	}
}
