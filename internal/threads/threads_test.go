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
	if err := OnDedicated(there); err != want || tid == here {
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
		_ = OnDedicated(func() error { panic("mine") })
	}()
}

// Where threads are kept apart, which is for good, the same few serve again and again; no other work is done on them.
func TestThreadsAreUsedAgainForTheSame(t *testing.T) {
	KeepApart()
	t.Cleanup(func() { apart.Store(false) })
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here := unix.Gettid()
	seen := map[int]bool{}
	for range 200 {
		tid := 0
		if err := OnDedicated(func() error { tid = unix.Gettid(); return nil }); err != nil || tid == 0 || tid == here {
			t.Fatalf("thread %d of %d, %v", tid, here, err)
		}
		seen[tid] = true
		for idle.Load() == 0 { // it waits for the next
			runtime.Gosched()
		}
		if err := OnDedicated(func() error { return errors.New("this one") }); err == nil || err.Error() != "this one" {
			t.Fatal(err)
		}
	}
	if len(seen) > mostIdle {
		t.Errorf("%d threads for one call at a time", len(seen))
	}
}
