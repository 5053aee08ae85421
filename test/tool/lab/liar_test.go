package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each lie still has its place in the source: a scenario that cannot tell it proves nothing, and runs seldom.
func TestEachLieCanBeTold(t *testing.T) {
	for _, l := range append(nfsLies, remapLie) {
		b, err := os.ReadFile(filepath.Join("../../..", l.file))
		if err != nil {
			t.Error(err)
		} else if n := strings.Count(string(b), l.truth); n != 1 {
			t.Errorf("%s: %s has %q %d times, not once", l.name, l.file, l.truth, n)
		}
	}
}
