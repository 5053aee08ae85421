package fusedir_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/initiator/attach/fusedir"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/test/lib/need"
)

// as runs a shell line as another user.
func as(uid uint32, groups []uint32, dir, line string) (string, error) {
	// The shell goes there, not the fork before it: that one holds this process, which serves the mount, from collecting garbage.
	cmd := exec.Command("sh", "-c", `cd "$1" || exit; `+line, "sh", dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid, Groups: groups}}
	b, err := cmd.CombinedOutput()
	return string(b), err
}

// passable makes the directories above a path passable to everybody: a test's own are for its user alone.
func passable(t testing.TB, path string) {
	t.Helper()
	for d := path; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		must(t, os.Chmod(d, 0o755))
	}
}

// Calls carry the identity of who makes them, with the supplementary groups; the server's squashing holds for root.
func TestIdentity(t *testing.T) {
	need.Root(t)
	s := newServer(t, "tcp", false)
	c := s.mount(t, fusedir.Options{AllowOther: true})
	passable(t, filepath.Dir(c.dir))
	must(t, os.Chmod(s.dir, 0o777))
	const me, group = 65534, 4242
	for _, f := range []struct {
		name string
		uid  int
		gid  int
		mode os.FileMode
	}{{"private", 0, 0, 0o600}, {"grouped", 0, group, 0o640}, {"mine", me, me, 0o600}} {
		p := filepath.Join(s.dir, f.name)
		must(t, os.WriteFile(p, []byte(f.name+"\n"), 0o600))
		must(t, os.Chown(p, f.uid, f.gid))
		must(t, os.Chmod(p, f.mode))
	}
	for _, tc := range []struct {
		line string
		ok   bool
	}{{"cat mine && echo new >made && mkdir d && ln -s x l", true}, {"cat grouped", true}, {"cat private", false}, {"echo x >grouped", false}, {"chmod 666 private", false}, {"chown 0 made", false}} {
		if out, err := as(me, []uint32{1, 2, group}, c.dir, tc.line); (err == nil) != tc.ok {
			t.Errorf("%s: %v, %s", tc.line, err, out)
		}
	}
	if _, err := as(me, nil, c.dir, "cat grouped"); err == nil {
		t.Error("a group that the process does not have")
	}
	for _, name := range []string{"made", "d", "l"} {
		fi, err := os.Lstat(filepath.Join(s.dir, name))
		must(t, err)
		if st := fi.Sys().(*syscall.Stat_t); st.Uid != me || st.Gid != me {
			t.Errorf("%s belongs to %d:%d", name, st.Uid, st.Gid)
		}
	}
	c.close(t)

	s.stop(t)
	s.rights = nfs.Rights{Squash: nfs.SquashRoot, Insecure: true}
	s.start(t)
	c = s.mount(t, fusedir.Options{AllowOther: true})
	if _, err := os.ReadFile(c.path("private")); !errors.Is(err, os.ErrPermission) {
		t.Errorf("root, squashed, reads a file of root's: %v", err)
	}
	if err := os.WriteFile(c.path("root's"), nil, 0o644); err != nil {
		t.Error(err)
	}
	if fi, err := os.Stat(filepath.Join(s.dir, "root's")); err != nil || fi.Sys().(*syscall.Stat_t).Uid == 0 {
		t.Errorf("root's file: %v, %v", fi, err)
	}
}

// A server that is away is waited for as long as the limit says; then the calls fail, and work again when it is back.
func TestLimit(t *testing.T) {
	s := newServer(t, "tcp", false)
	c := s.mount(t, fusedir.Options{Limit: time.Second, AttrTimeout: -1, EntryTimeout: -1})
	must(t, os.WriteFile(c.path("f"), []byte("here"), 0o600))
	s.stop(t)
	began := time.Now()
	if _, err := os.ReadFile(c.path("f")); !errors.Is(err, syscall.EIO) || time.Since(began) < time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
	s.start(t)
	for end := time.Now().Add(patience); ; { // the client pauses between its attempts, for longer than the limit
		b, err := os.ReadFile(c.path("f"))
		if err == nil && string(b) == "here" {
			return
		}
		if !errors.Is(err, syscall.EIO) || time.Now().After(end) {
			t.Fatalf("%q, %v", b, err)
		}
	}
}

// Without a limit a process waits; signals that do not kill it change nothing, and one that does ends it at once.
func TestWaitingProcesses(t *testing.T) {
	s := newServer(t, "tcp", false)
	c := s.mount(t, fusedir.Options{AttrTimeout: -1, EntryTimeout: -1})
	must(t, os.WriteFile(c.path("f"), []byte("at last"), 0o600))
	s.stop(t)
	begin := func() (*exec.Cmd, *strings.Builder) {
		cmd, out := exec.Command("cat", c.path("f")), &strings.Builder{}
		cmd.Stdout, cmd.Stderr = out, out
		must(t, cmd.Start())
		// It waits in the file system when the kernel says so.
		for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) { // another process's state has no event
			b, err := os.ReadFile(filepath.Join("/proc", itoa(cmd.Process.Pid), "wchan"))
			if err == nil && (strings.Contains(string(b), "fuse") || strings.Contains(string(b), "request_wait")) {
				return cmd, out
			}
			st, err := os.ReadFile(filepath.Join("/proc", itoa(cmd.Process.Pid), "syscall"))
			if err == nil && (string(b) == "0" || string(b) == "") && !strings.HasPrefix(string(st), "running") {
				return cmd, out
			}
			if time.Now().After(end) {
				t.Fatalf("cat does not wait: %s", b)
			}
		}
	}
	patient, said := begin()
	doomed, _ := begin()
	must(t, patient.Process.Signal(syscall.SIGWINCH))
	must(t, patient.Process.Signal(syscall.SIGCONT))
	must(t, doomed.Process.Signal(syscall.SIGTERM))
	ended := make(chan error, 1)
	go func() { ended <- doomed.Wait() }()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the process that was killed ended well")
		}
	case <-time.After(patience):
		t.Error("a process that waits for a server cannot be killed")
	}
	s.start(t)
	if err := patient.Wait(); err != nil || said.String() != "at last" {
		t.Errorf("%q, %v", said, err)
	}
}
