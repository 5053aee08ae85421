package shm

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/transport"
)

// A service that is known by host and port is found by its port, on this host and no other.
func TestAServiceIsFoundByItsPort(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "sockets")
	t.Setenv("XDG_RUNTIME_DIR", filepath.Dir(dir))
	t.Setenv("RUNTIME_DIRECTORY", "")
	b := newEnd(t, Options{Directory: dir}, transport.QPOptions{})
	ln, err := b.dev.Listen(context.Background(), "0.0.0.0:3260")
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(dir, "3260.sock"); ln.Addr().String() != want {
		t.Fatalf("listens at %s, want %s", ln.Addr(), want)
	}
	for addr, found := range map[string]bool{"127.0.0.1:3260": true, "127.9.9.9:3260": true, "localhost:3260": true, "[::1]:3260": true, ":3260": true,
		"127.0.0.1:3261": false, "192.0.2.77:3260": false, "[2001:db8::77]:3260": false} {
		a := newEnd(t, Options{Directory: dir}, transport.QPOptions{})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() {
			r, err := ln.Accept(ctx)
			if err == nil {
				err = r.Reject([]byte("found"))
			}
			done <- err
		}()
		_, err := a.dev.Dial(testCtx(t), addr, a.qp, transport.ConnParams{})
		cancel()
		<-done
		var no *transport.RejectedError
		var far *NotHereError
		if found && !errors.As(err, &no) || !found && !errors.As(err, &far) {
			t.Errorf("%s: %v", addr, err)
		}
	}
	for _, bad := range []string{"@abstract", "unix:@abstract", "unix:", "3260", "/" + strings.Repeat("x", 200), "/a\x00b"} {
		a := newEnd(t, Options{}, transport.QPOptions{})
		if _, err := a.dev.Dial(testCtx(t), bad, a.qp, transport.ConnParams{}); err == nil {
			t.Errorf("%q was dialled", bad)
		}
		if l, err := a.dev.Listen(testCtx(t), bad); err == nil {
			t.Errorf("%q was listened at", bad)
			l.Close()
		}
	}
}

func TestOnlyASocketThatMayBeConnectedToReaches(t *testing.T) {
	base := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", base)
	dir := filepath.Join(base, "sluice")
	if got := Reaches(context.Background(), "127.0.0.1:39999"); got != "" {
		t.Errorf("without a socket: %s", got)
	}
	b := newEnd(t, Options{Directory: dir, Socket: Socket{Mode: 0o600}}, transport.QPOptions{})
	ln, err := b.dev.Listen(context.Background(), "127.0.0.1:39999")
	if err != nil {
		t.Fatal(err)
	}
	if got := Reaches(context.Background(), "127.0.0.1:39999"); got != ln.Addr().String() {
		t.Errorf("found %q, want %s", got, ln.Addr())
	}
	if got := Reaches(context.Background(), "192.0.2.1:39999"); got != "" {
		t.Errorf("another host: %s", got)
	}
	if os.Geteuid() != 0 { // whom no rights of files stop
		if err := os.Chmod(ln.Addr().String(), 0o400); err != nil {
			t.Fatal(err)
		}
		if got := Reaches(context.Background(), "127.0.0.1:39999"); got != "" {
			t.Errorf("without the right: %s", got)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "39998.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := Reaches(context.Background(), "127.0.0.1:39998"); got != "" {
		t.Errorf("a file that is no socket: %s", got)
	}
}

// A socket that is found by its port is dialled only for the service that host and port mean: not for one at another address of this host, and not
// for one in another network.
func TestASocketIsOfOneService(t *testing.T) {
	dir := t.TempDir()
	b := newEnd(t, Options{Directory: dir}, transport.QPOptions{})
	ln, err := b.dev.Listen(context.Background(), "127.0.0.1:3260")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			r, err := ln.Accept(context.Background())
			if err != nil {
				return
			}
			_ = r.Reject(nil) // whether it hears of it or not
		}
	}()
	dial := func(addr string) error {
		a := newEnd(t, Options{Directory: dir}, transport.QPOptions{})
		_, err := a.dev.Dial(testCtx(t), addr, a.qp, transport.ConnParams{})
		return err
	}
	var there *transport.RejectedError // by who accepts
	for _, addr := range []string{"127.0.0.1:3260", "localhost:3260", ":3260", "[::ffff:127.0.0.1]:3260", ln.Addr().String()} {
		if err := dial(addr); !errors.As(err, &there) {
			t.Errorf("%s: %v", addr, err)
		}
	}
	var other *RefusedError
	for _, addr := range []string{"127.0.0.2:3260", "[::1]:3260"} {
		if err := dial(addr); !errors.As(err, &other) || !strings.Contains(err.Error(), "another address") {
			t.Errorf("%s: %v", addr, err)
		}
	}
	for text, want := range map[string]error{"": nil, network() + " 127.0.0.1": nil, network() + " 192.0.2.1 127.0.0.1": nil, " 127.0.0.1": nil,
		"net:[1] 127.0.0.1": errOtherNetwork, network() + " 127.0.0.3": errOtherAddress, network() + " x": errOtherAddress} {
		s, err := serviceAt(context.Background(), "127.0.0.1:3260")
		if err != nil {
			t.Fatal(err)
		}
		if err := s.isMeant(text); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", text, err, want)
		}
	}
	if network() == "" {
		t.Error("this process does not know its network")
	}
	if n := len(meant(make([]netip.Addr, 100))); n > maxDetail {
		t.Errorf("%d bytes", n)
	}
}

// The directory that the environment names is looked into only where it is this user's: root that has another's environment does not go to that user's
// processes.
func TestAnotherUsersDirectoryIsNotLookedInto(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", dir)
	if l := Directories(); l[len(l)-1] != filepath.Join(dir, "sluice") {
		t.Errorf("this user's own: %v", l)
	}
	if os.Geteuid() != 0 {
		t.Setenv("XDG_RUNTIME_DIR", "/")
	} else if err := os.Chown(dir, 12345, -1); err != nil {
		t.Fatal(err)
	}
	for _, d := range Directories() {
		if strings.HasPrefix(d, os.Getenv("XDG_RUNTIME_DIR")+"/") && os.Geteuid() == 0 || d == "/sluice" {
			t.Errorf("another user's: %s", d)
		}
	}
}

// The directory of sockets lets all in to whom a socket gives the right, whatever the umask.
func TestTheDirectoryOfSocketsIsNotClosed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "sockets")
	was := unix.Umask(0o077)
	defer unix.Umask(was)
	b := newEnd(t, Options{Directory: dir, Socket: Socket{Mode: 0o666}}, transport.QPOptions{})
	ln, err := b.dev.Listen(context.Background(), "127.0.0.1:3260")
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{dir: 0o755, ln.Addr().String(): 0o666} {
		if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want %v", path, fi.Mode(), err, want)
		}
	}
}

func TestSocketsAreListed(t *testing.T) {
	base := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", base)
	dir := filepath.Join(base, "sluice")
	b := newEnd(t, Options{Directory: dir}, transport.QPOptions{})
	ln, err := b.dev.Listen(context.Background(), "127.0.0.1:39997")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "39996.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	admin, err := b.dev.Listen(context.Background(), filepath.Join(dir, "admin.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	var found []Found
	for _, f := range Sockets() {
		if filepath.Dir(f.Path) == dir {
			found = append(found, f)
		}
	}
	if len(found) != 1 || found[0].Port != "39997" || found[0].Path != ln.Addr().String() || found[0].Problem != "" || found[0].Mode != "0600" || found[0].Owner != uint32(os.Geteuid()) {
		t.Errorf("found %+v", found)
	}
}
