package shm

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
