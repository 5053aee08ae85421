package threads

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAThreadThatWasAwayServesNoOther(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here, want := unix.Gettid(), errors.New("what it says")
	tid := 0
	there := func() error { tid = unix.Gettid(); return want }
	if err := Alone(there); err != want || tid == here {
		t.Fatalf("thread %d of %d, %v", tid, here, err)
	}
	for { // it ends, sooner or later; the test's own limit is for one that does not
		if _, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", tid)); os.IsNotExist(err) || tid == os.Getpid() {
			break
		}
		runtime.Gosched()
	}
	func() {
		defer func() {
			if p := recover(); p != "mine" {
				t.Errorf("the panic is %v", p)
			}
		}()
		_ = Alone(func() error { panic("mine") })
	}()
}
