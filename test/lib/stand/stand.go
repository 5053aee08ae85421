// Package stand puts servers up for a test, in the process of the test: a block target (NewBlocks), a file server (NewFiles), a daemon
// (NewDaemon). What a test leaves to the stand is ended with it: the stand waits for all that it began, and fails the test for what is
// left, be it an error, a buffer or a daemon that does not end.
package stand

import (
	"testing"
	"time"
)

// patience is how long an end may take: long, because a loaded machine is not a wrong one.
const patience = 2 * time.Minute

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// check is must where the rest of an end has yet to come.
func check(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}
