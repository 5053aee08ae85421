package attachcmd

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/sluice-storage/sluice/test/lib/need"
)

const envWaiter = "SLUICE_TEST_WAITS_IN"

// mute is a directory whose server never answers a question for a name.
type mute struct{ fs.Inode }

func (*mute) Lookup(context.Context, string, *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	fmt.Println("asked")
	select {}
}

// waiter is a process with a thread that waits in a mount of its own.
func waiter(dir string) error {
	if _, err := fs.Mount(dir, &mute{}, &fs.Options{MountOptions: fuse.MountOptions{FsName: "sluice", Name: "sluice", DirectMount: true}}); err != nil {
		return err
	}
	_, err := os.Stat(filepath.Join(dir, "name"))
	return err
}

// A SIGKILL does not end a thread that waits for an answer of its own process, as one does while the helper mounts. What such a helper
// left is cleared away all the same, and it with that.
func TestAHelperThatWasKilledWhileItWaitsInItsOwnMountIsClearedAway(t *testing.T) {
	if dir := os.Getenv(envWaiter); dir != "" {
		t.Fatal(waiter(dir))
	}
	need.Root(t)
	need.FUSE(t)
	t.Setenv("SLUICE_RUNTIME_DIR", t.TempDir())
	dir := t.TempDir()
	c := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	c.Env = append(os.Environ(), envWaiter+"="+dir)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	for l := bufio.NewScanner(out); ; {
		if !l.Scan() {
			t.Fatalf("it does not mount: %v", l.Err())
		}
		if l.Text() == "asked" {
			break
		}
	}
	start, err := startOf(c.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	r := &Record{Name: "a", Face: faceFile, Dir: dir, Path: filepath.Join(dir, "volume"), PID: c.Process.Pid, Start: start}
	if err := r.save(); err != nil {
		t.Fatal(err)
	}
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // the directory cannot be removed below a mount whose server is dead
		r.abort()
		ended := make(chan struct{})
		go func() {
			_ = c.Wait() // it was killed
			close(ended)
		}()
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Error("the kernel still waits in the process")
		}
	})
	for deadline := time.Now().Add(time.Minute); !r.dying(); runtime.Gosched() {
		if time.Now().After(deadline) || !r.alive() {
			t.Fatal("the thread does not wait: the test shows nothing")
		}
	}
	done := make(chan error, 1)
	go func() { done <- r.end(false) }()
	select {
	case err := <-done:
		if err != nil || r.alive() || mounted(dir) {
			t.Errorf("%v; alive %v, mounted %v", err, r.alive(), mounted(dir))
		}
	case <-time.After(time.Minute):
		t.Error("it stays")
	}
}
