package tgt

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/initiator/block"
)

// A LUN of tgt goes away below writes and comes back as another unit: nothing is written to that one, and the writes fail
// and say why. (tgt 1.0.85 tells nothing to a session that sends no command in between.)
func TestALUNThatIsAnotherUnitIsNotWritten(t *testing.T) {
	s := start(t, "127.0.0.1")
	s.admin("--op", "update", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "--params", "scsi_sn=first")
	v := open(t, initiator(t, block.Options{MaxBackoff: 100 * time.Millisecond}), s.url("", ""))
	if _, err := v.WriteAt(fill(4096, 1), 0); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(s.dir, "other")
	if err := os.WriteFile(other, make([]byte, 64<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	s.admin("--op", "delete", "--mode", "logicalunit", "--tid", "1", "--lun", "1")
	done := make(chan error, 1)
	go func() {
		_, err := v.WriteAt(fill(4096, 2), 0)
		done <- err
	}()
	for deadline := time.Now().Add(30 * time.Second); v.Paths()[0].Up; time.Sleep(time.Millisecond) { // the write meets no unit
		if time.Now().After(deadline) {
			t.Fatal("the path stays up")
		}
	}
	s.admin("--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", other)
	if err := <-done; !errors.Is(err, block.ErrOtherUnit) {
		t.Errorf("a write to another unit: %v", err)
	}
	if _, err := v.WriteAt(fill(4096, 2), 0); !errors.Is(err, block.ErrOtherUnit) {
		t.Errorf("a second one: %v", err)
	}
	got, err := os.ReadFile(other)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, make([]byte, 64<<20)) {
		t.Error("the other unit has been written to")
	}
}
