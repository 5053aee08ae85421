package file

import (
	"path/filepath"
	"testing"
)

// A medium that was slow and has taken a flush since is waited for at the end: what is about to be done is not noted as lost.
func TestAMediumThatHasTakenAFlushIsWaitedForAgain(t *testing.T) {
	d, err := Open(filepath.Join(t.TempDir(), "v"), Options{Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	slow := &settling{done: make(chan struct{}), moved: make(chan struct{}), hangs: true}
	d.behind.Store(slow)
	if err := d.sync(); err != nil {
		t.Fatal(err)
	}
	slow.mu.Lock()
	hangs := slow.hangs
	slow.mu.Unlock()
	if hangs {
		t.Error("nothing more is waited for")
	}
	go close(slow.done) // what was slow ends
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}
