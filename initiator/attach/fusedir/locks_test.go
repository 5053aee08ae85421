package fusedir_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/initiator/attach/fusedir"
	infs "github.com/sluice-storage/sluice/initiator/nfs"
)

func lockOf(kind int16, from, n int64) *unix.Flock_t {
	return &unix.Flock_t{Type: kind, Start: from, Len: n}
}

func opened(t testing.TB, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

// Locks of one mount hold against another: ranges, readers and writers, waiting, and their end with the file's close.
func TestLocksOfTheServer(t *testing.T) {
	for _, over := range overs {
		t.Run(over, func(t *testing.T) {
			s := newServer(t, over, false)
			a, b := s.mount(t, fusedir.Options{Locks: fusedir.LocksServer}), s.mount(t, fusedir.Options{})
			if why := b.m.Locks(); why != "locks are kept by the server" {
				t.Fatal(why)
			}
			fa, fb := opened(t, a.path("f")), opened(t, b.path("f"))
			set := func(f *os.File, l *unix.Flock_t) error { return unix.FcntlFlock(f.Fd(), unix.F_SETLK, l) }
			must(t, set(fa, lockOf(unix.F_WRLCK, 100, 50)))
			if err := set(fb, lockOf(unix.F_RDLCK, 120, 1)); !errors.Is(err, syscall.EAGAIN) {
				t.Fatalf("a locked range: %v", err)
			}
			must(t, set(fb, lockOf(unix.F_WRLCK, 150, 10)))
			q := lockOf(unix.F_RDLCK, 0, 0)
			must(t, unix.FcntlFlock(fb.Fd(), unix.F_GETLK, q))
			if q.Type != unix.F_WRLCK || q.Start != 100 || q.Len != 50 {
				t.Fatalf("F_GETLK: %+v", q)
			}
			must(t, set(fa, lockOf(unix.F_UNLCK, 120, 10))) // a hole in the middle
			must(t, set(fb, lockOf(unix.F_WRLCK, 120, 10)))
			if err := set(fb, lockOf(unix.F_WRLCK, 110, 1)); !errors.Is(err, syscall.EAGAIN) {
				t.Fatalf("what is left before the hole: %v", err)
			}
			// A waiter gets the lock when the holder closes the file, and sees what was written under it.
			got := make(chan error, 1)
			go func() { got <- unix.FcntlFlock(fb.Fd(), unix.F_SETLKW, lockOf(unix.F_WRLCK, 100, 20)) }()
			_, err := fa.WriteAt([]byte("under the lock"), 0)
			must(t, err)
			must(t, fa.Close())
			must(t, <-got)
			buf := make([]byte, 14)
			if _, err := fb.ReadAt(buf, 0); err != nil || string(buf) != "under the lock" {
				t.Fatalf("%q, %v", buf, err)
			}
			// flock is between open files, of one mount too.
			f1, f2, f3 := opened(t, a.path("g")), opened(t, a.path("g")), opened(t, b.path("g"))
			must(t, unix.Flock(int(f1.Fd()), unix.LOCK_EX))
			for _, f := range []*os.File{f2, f3} {
				if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, syscall.EAGAIN) {
					t.Fatalf("flock of what is locked: %v", err)
				}
			}
			must(t, f1.Close())
			must(t, unix.Flock(int(f3.Fd()), unix.LOCK_EX)) // the kernel releases behind close's back
		})
	}
}

// A server that restarts gets the locks back from who held them, before anybody else can have them.
func TestLocksOverARestart(t *testing.T) {
	s := newServer(t, "tcp", false)
	a, b := s.mount(t, fusedir.Options{}), s.mount(t, fusedir.Options{})
	fa, fb := opened(t, a.path("f")), opened(t, b.path("f"))
	must(t, unix.FcntlFlock(fa.Fd(), unix.F_SETLK, lockOf(unix.F_WRLCK, 0, 10)))
	s.stop(t)
	s.grace = 12 * time.Second // more than twice what a client takes to notice
	s.start(t)
	if err := unix.FcntlFlock(fb.Fd(), unix.F_SETLK, lockOf(unix.F_WRLCK, 5, 1)); !errors.Is(err, syscall.EAGAIN) {
		t.Fatalf("after the restart: %v", err)
	}
	must(t, unix.FcntlFlock(fa.Fd(), unix.F_SETLK, lockOf(unix.F_UNLCK, 0, 10)))
	must(t, unix.FcntlFlock(fb.Fd(), unix.F_SETLK, lockOf(unix.F_WRLCK, 5, 1)))
}

// Without a lock manager locks hold on this machine, and the mount says so; who insists on the server's is refused.
func TestLocksOfThisMachine(t *testing.T) {
	s := newServer(t, "tcp", true)
	c := s.mount(t, fusedir.Options{})
	if why := c.m.Locks(); !strings.HasPrefix(why, "locks hold on this machine only: nfs: the server's lock manager (NLM) cannot be reached") {
		t.Error(why)
	}
	f1, f2 := opened(t, c.path("f")), opened(t, c.path("f"))
	must(t, unix.Flock(int(f1.Fd()), unix.LOCK_EX))
	if err := unix.Flock(int(f2.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("flock of what is locked: %v", err)
	}
	dir := filepath.Join(t.TempDir(), "m")
	must(t, os.Mkdir(dir, 0o755))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := fusedir.Mount(ctx, dir, c.v, fusedir.Options{Locks: fusedir.LocksServer}); !errors.Is(err, infs.ErrNoLocks) {
		t.Errorf("insisting: %v", err)
	}
}
