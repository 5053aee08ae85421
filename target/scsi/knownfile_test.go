package scsi

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// Of targets that are not served any more the latest have kept what hosts took their LUNs for, and one that was deleted just now is the
// latest; of those that are served all have.
func TestTheLatestTargetsThatHaveGoneAreRemembered(t *testing.T) {
	dir := t.TempDir()
	name := func(k int) string { return fmt.Sprintf("iqn.2026-01.example:t%d", k) }
	for k := range maxGone + 3 {
		old := time.Now().Add(time.Duration(k-10000) * time.Hour)
		if err := os.WriteFile(knownPath(dir, name(k)), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(knownPath(dir, name(k)), old, old); err != nil {
			t.Fatal(err)
		}
	}
	for _, deleted := range []int{1, maxGone + 3} { // the last has no note
		if err := Forget(dir, name(deleted)); err != nil {
			t.Fatal(err)
		}
	}
	if err := Tidy(dir, []string{name(0)}); err != nil {
		t.Fatal(err)
	}
	for k := range maxGone + 3 {
		_, err := os.Stat(knownPath(dir, name(k)))
		if want := k != 2 && k != 3; (err == nil) != want {
			t.Errorf("target %d: %v", k, err)
		}
	}
}
