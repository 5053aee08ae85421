package attachments

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-storage/sluice/transport/shm"
)

// through is what the sessions at the stand's daemon go through.
func (s *stand) through() (l []string) {
	s.t.Helper()
	out, code := s.sluice("session", "list", "--socket", filepath.Join(s.dir, "admin.sock"), "-o", "json")
	var ss []struct{ Path struct{ Provider string } }
	if err := json.Unmarshal([]byte(out), &ss); code != 0 || err != nil {
		s.t.Fatalf("session list: %d, %v: %s", code, err, out)
	}
	for _, x := range ss {
		l = append(l, x.Path.Provider)
	}
	return l
}

// A volume of a daemon on this host is attached through shared memory where the daemon has that and nothing else was asked for; by its address
// where it was, or where the socket is another daemon's. What is written by one way is read by the other.
func TestAVolumeOfThisHostIsAttachedThroughSharedMemory(t *testing.T) {
	s := start(t)
	xdg := filepath.Join(s.dir, "xdg")
	t.Setenv("XDG_RUNTIME_DIR", xdg)
	sockets := filepath.Join(xdg, "sluice")
	if err := os.MkdirAll(sockets, 0o700); err != nil {
		t.Fatal(err)
	}
	conf := filepath.Join(s.dir, "c.yaml")
	plain, err := os.ReadFile(conf)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(conf, append(plain, fmt.Sprintf("fabric: [{provider: iwarp}, {provider: shm, sockets: %q}]\n", sockets)...), 0o600); err != nil {
		t.Fatal(err)
	}
	s.up()
	_, port, err := net.SplitHostPort(s.addr)
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(sockets, port+".sock")
	s.until("the daemon's socket", func() bool { return exists(socket) })
	img := filepath.Join(s.dir, "img")
	want := bytes.Repeat([]byte("near "), 200_000)
	if err := os.WriteFile(img, want, 0o600); err != nil {
		t.Fatal(err)
	}
	s.must("cp", "--quiet", img, "iser:///"+target+"/0?provider=shm&socket="+socket)

	attach := func(want string, args ...string) {
		t.Helper()
		s.must(append([]string{"attach", "--name", "a", "--face", "socket"}, args...)...)
		if got := s.through(); len(got) != 1 || got[0] != want {
			t.Errorf("attach %v goes through %v, want %s", args, got, want)
		}
		pid := s.attached()["a"].PID
		s.must("detach", "a")
		s.nothing(pid)
		s.until("the session ends", func() bool { return len(s.through()) == 0 })
	}
	attach("shm", s.url())
	attach("shm", "--provider", "shm", s.url())
	attach("iwarp", "--provider", "iwarp", s.url())
	attach("iwarp", s.url()+"?provider=iwarp")

	// The same daemon without it, and another process at the place of its socket.
	s.down()
	if err := os.WriteFile(conf, plain, 0o600); err != nil {
		t.Fatal(err)
	}
	s.up()
	d := shm.New(shm.Options{Directory: sockets})
	defer d.Close()
	l, err := d.Listen(t.Context(), s.addr)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			r, err := l.Accept(t.Context())
			if err != nil {
				return
			}
			_ = r.Reject(nil) // whether it hears of it or not
		}
	}()
	attach("iwarp", s.url())
	if out, code := s.sluice("attach", "--name", "b", "--face", "socket", "--provider", "shm", s.url()); code == 0 {
		t.Errorf("another's socket was attached: %s", out)
	}
	back := filepath.Join(s.dir, "back")
	s.must("cp", "--quiet", "iscsi://"+s.addr+"/"+target+"/0", back)
	if got, err := os.ReadFile(back); err != nil || !bytes.HasPrefix(got, want) {
		t.Errorf("what was written through shared memory is not there: %v", err)
	}
}
