package unixsock

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// dead leaves a socket as a killed process does.
func dead(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
}

func TestOnlyADeadSocketOfThisUserIsReplaced(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	dead(t, at("dead"))
	must(os.WriteFile(at("file"), []byte("kept"), 0o600))
	must(os.Mkdir(at("dir"), 0o700))
	must(unix.Mkfifo(at("pipe"), 0o600))
	must(os.Symlink("dead", at("link"))) // what it leads to could be replaced, the link itself is another's
	must(os.Symlink("nowhere", at("dangling")))
	dead(t, at("theirs"))
	if os.Geteuid() == 0 {
		must(os.Lchown(at("theirs"), 12345, 12345))
	} else {
		must(os.Remove(at("theirs")))
		must(os.WriteFile(at("theirs"), nil, 0o600)) // only root can make one
	}
	living, err := net.Listen("unix", at("living"))
	must(err)
	defer living.Close()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	must(err)
	defer unix.Close(fd)
	must(unix.Bind(fd, &unix.SockaddrUnix{Name: at("datagrams")}))
	full, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(err)
	defer unix.Close(full)
	must(unix.Bind(full, &unix.SockaddrUnix{Name: at("full")}))
	must(unix.Listen(full, 0))
	for { // until its queue is full
		c, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		must(err)
		defer unix.Close(c)
		if err := unix.Connect(c, &unix.SockaddrUnix{Name: at("full")}); errors.Is(err, unix.EAGAIN) {
			break
		}
		must(err)
	}
	for _, name := range []string{"file", "dir", "pipe", "link", "dangling", "theirs", "living", "datagrams", "full"} {
		before, err := os.Lstat(at(name))
		must(err)
		l, err := Listen(at(name))
		var taken *TakenError
		if !errors.As(err, &taken) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			l.Close()
		}
		if after, err := os.Lstat(at(name)); err != nil || !os.SameFile(before, after) {
			t.Errorf("%s is another now: %v", name, err)
		}
	}
	if b, err := os.ReadFile(at("file")); string(b) != "kept" {
		t.Errorf("the file holds %q (%v)", b, err)
	}
	for _, name := range []string{"dead", "new"} {
		l, err := Listen(at(name))
		must(err)
		if fi, err := os.Lstat(at(name)); err != nil || fi.Mode() != fs.ModeSocket|0o600 {
			t.Errorf("%s: %v %v", name, fi, err)
		}
		must(l.Close())
		if _, err := os.Lstat(at(name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s stays: %v", name, err)
		}
	}
	if _, err := Listen(at(strings.Repeat("x", 120))); err == nil || !strings.Contains(err.Error(), "shorter") {
		t.Errorf("a long path: %v", err)
	}
}

// A name that is another file's when the listener ends is left.
func TestAListenerRemovesItsOwnNameOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(path), os.WriteFile(path, []byte("kept"), 0o600), l.Close()); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(path); string(b) != "kept" {
		t.Errorf("%q (%v)", b, err)
	}
}

// Of many that find one dead socket, one gets its place, and keeps it.
func TestOneOfManyTakesADeadSocketsPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	dead(t, path)
	var wg sync.WaitGroup
	var won atomic.Int32
	all := make([]net.Listener, 16)
	for k := range all {
		wg.Go(func() {
			if l, err := Listen(path); err == nil {
				won.Add(1)
				all[k] = l
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("%d have the place", won.Load())
	}
	if c, err := net.Dial("unix", path); err != nil {
		t.Error(err)
	} else {
		c.Close()
	}
	for _, l := range all {
		if l != nil {
			l.Close()
		}
	}
}

// A socket of packets takes no stream, and has the rights that were asked for.
func TestASocketIsWhatWasAskedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	group := os.Getegid()
	if os.Geteuid() == 0 {
		group = 12345
	}
	l, err := Socket{Packets: true, Mode: 0o660, Group: group}.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil || st.Mode != unix.S_IFSOCK|0o660 || int(st.Gid) != group {
		t.Errorf("mode %o, group %d (%v)", st.Mode, st.Gid, err)
	}
	if c, err := net.Dial("unix", path); !errors.Is(err, unix.EPROTOTYPE) {
		t.Errorf("a stream was taken: %v", c)
	}
	c, err := net.Dial("unixpacket", path)
	if err != nil {
		t.Error(err)
	} else {
		c.Close()
	}
	if _, err := (Socket{Packets: true}).Listen(path); err == nil {
		t.Error("a socket that is in use was replaced")
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if os.Geteuid() != 0 { // root may give a file to any group
		if _, err := (Socket{Group: 12345}).Listen(path); err == nil {
			t.Error("a group that this user is not in")
		} else if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the name of a socket that was not made stays: %v", err)
		}
	}
}
