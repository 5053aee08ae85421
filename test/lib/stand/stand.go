// Package stand puts servers up for a test, in the process of the test: a block target (NewBlocks), a file server (NewFiles), a daemon
// (NewDaemon). What a test leaves to the stand is ended with it: the stand waits for all that it began, and fails the test for what is
// left, be it an error, a buffer or a daemon that does not end.
package stand

import (
	"errors"
	"fmt"
	"log"
	"slices"
	"time"
)

// T is what a stand asks of a test: testing.TB has it. A Script has it for what is no test.
type T interface {
	Helper()
	Cleanup(func())
	Failed() bool
	Log(args ...any)
	Errorf(format string, args ...any)
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// Script is the T of an example.
type Script struct {
	ends []func()
	errs []error
}

// End does what was left to the script's end, the last first, and returns what went wrong.
func (s *Script) End() error {
	for _, end := range slices.Backward(s.ends) {
		end()
	}
	s.ends = nil
	return errors.Join(s.errs...)
}

// Helper implements T.
func (s *Script) Helper() {}

// Cleanup implements T.
func (s *Script) Cleanup(f func()) { s.ends = append(s.ends, f) }

// Failed implements T.
func (s *Script) Failed() bool { return len(s.errs) > 0 }

// Log implements T.
func (s *Script) Log(args ...any) { log.Print(args...) }

// Errorf implements T.
func (s *Script) Errorf(format string, args ...any) {
	s.errs = append(s.errs, fmt.Errorf(format, args...))
}

// Fatal implements T: a program without its servers has nothing to go on with.
func (s *Script) Fatal(args ...any) { log.Fatal(args...) }

// Fatalf implements T.
func (s *Script) Fatalf(format string, args ...any) { log.Fatalf(format, args...) }

// patience is how long an end may take: long, because a loaded machine is not a wrong one.
const patience = 2 * time.Minute

func must(t T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// check is must where the rest of an end has yet to come.
func check(t T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}
