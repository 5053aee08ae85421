package faultfs

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/test/lib/need"
)

// Other tests of a run make mount namespaces, which keep copies of what is mounted at the time.
func TestACopyOfTheMountInAnotherNamespaceIsNotWaitedFor(t *testing.T) {
	need.FUSE(t)
	need.Mount(t)
	f, end, err := New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("unshare", "--mount", "sleep", "600")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = c.Process.Kill() // it sleeps
		_ = c.Wait()
	}()
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	for limit := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		other, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", c.Process.Pid)) // it may not have begun
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", c.Process.Pid))
		if other != "" && other != own && bytes.Contains(b, []byte(f.Dir)) {
			break
		}
		if time.Now().After(limit) {
			t.Fatal("no copy of the mount")
		}
	}
	done := make(chan error, 1)
	go func() { done <- end() }()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Error("the end of the mount waits for its copy")
	}
}

// A process that a test runs has nothing of the connection: where the test is killed, what it has run must not wait for it.
func TestAChildHasNothingOfTheConnection(t *testing.T) {
	MountThrough(t, false)
	out, err := exec.Command("ls", "-l", "/proc/self/fd").CombinedOutput()
	if err != nil || bytes.Contains(out, []byte("/dev/fuse")) {
		t.Errorf("%v\n%s", err, out)
	}
}
