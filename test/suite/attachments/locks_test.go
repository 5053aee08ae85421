package attachments

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/test/lib/need"
)

// What a mount had locked whose helper was killed is free when that mount is made again.
func TestAMountFreesWhatItsDeadInstanceHeld(t *testing.T) {
	t.Parallel()
	need.Root(t)
	need.FUSE(t)
	s := start(t)
	s.up()
	mnt, other := filepath.Join(s.dir, "mnt"), filepath.Join(s.dir, "other")
	if err := os.Mkdir(other, 0o755); err != nil {
		t.Fatal(err)
	}
	s.must("mount", s.exportURL(), mnt, "--name", "a")
	s.must("mount", s.exportURL(), other, "--name", "b")
	open := func(dir string) *os.File {
		f, err := os.OpenFile(filepath.Join(dir, "f"), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	lock := func(f *os.File) error {
		return unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Len: 10})
	}
	a, b := open(mnt), open(other)
	if err := lock(a); err != nil {
		t.Fatal(err)
	}
	if err := lock(b); err != syscall.EAGAIN {
		t.Fatalf("what is locked: %v", err)
	}
	if err := syscall.Kill(s.attached()["a"].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.until("the helper is seen to be gone", func() bool { return s.attached()["a"].Broken })
	a.Close()
	if err := lock(b); err != syscall.EAGAIN {
		t.Errorf("what a client holds that was killed, which nothing has said yet: %v", err)
	}
	s.must("mount", s.exportURL(), mnt, "--name", "a")
	if err := lock(b); err != nil {
		t.Errorf("after the mount was made again: %v", err)
	}
	b.Close()
	s.must("umount", other)
	s.must("umount", mnt)
	if left, err := os.ReadDir(filepath.Join(s.dir, "state")); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// The log of the helper of a mount says what no call of a user's can: here, that the server was given up for the moment.
func TestTheLogOfAMountSaysThatTheServerIsAway(t *testing.T) {
	t.Parallel()
	need.Root(t)
	need.FUSE(t)
	s := start(t)
	s.up()
	mnt := filepath.Join(s.dir, "mnt")
	s.must("mount", s.exportURL(), mnt, "--name", "a", "--reconnect", "1s", "--attr-timeout", "-1s")
	s.down()
	if _, err := os.Stat(filepath.Join(mnt, "f")); err == nil || os.IsNotExist(err) {
		t.Fatalf("a name, with no server to ask: %v", err)
	}
	log, err := os.ReadFile(filepath.Join(s.dir, "run", "a.log"))
	if err != nil || !strings.Contains(string(log), "the server did not answer within the limit") {
		t.Errorf("the log of the helper: %v, %q", err, log)
	}
	s.up()
	s.must("umount", mnt)
}
