package files

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/test/lib/faultfs"
	"github.com/sluice-storage/sluice/test/lib/need"
	"github.com/sluice-storage/sluice/test/lib/proc"
)

// An export whose medium hangs holds up no other, not even over the same connection: its calls beyond some are asked for
// later, and those that were begun are done when the medium is back.
func TestAnExportThatHangsHoldsUpNoOther(t *testing.T) {
	need.FUSE(t)
	s := newStand(t, false)
	x, _, _ := s.begin(false)
	hang := make(chan struct{})
	release := sync.OnceFunc(func() { close(hang) })
	defer release() // the daemon could not be killed
	s.fs.Fault(func(faultfs.Call) syscall.Errno {
		<-hang
		return 0
	})
	const calls = 240
	answers := make(chan error, calls)
	for i := range calls {
		go func() {
			var err error
			switch c := []*client{s.a, s.b}[i%2]; i % 6 {
			case 0, 1:
				_, err = c.getattr(x.f)
			case 2, 3:
				_, err = c.lookup(x.dir, "g")
			default:
				_, err = c.commit(x.f)
			}
			answers <- err
		}()
	}
	later := 0
	for later < calls/3 { // while the others hang
		if err := <-answers; !errors.Is(err, nfs3.ErrJukebox) {
			t.Fatalf("a call to the export that hangs: %v", err)
		}
		later++
	}
	for _, c := range []*client{s.other, s.a, s.b} {
		if _, err := c.getattr(s.otherFH); err != nil {
			t.Errorf("GETATTR of another export: %v", err)
		}
		if _, err := c.lookup(s.otherFH, "none"); !errors.Is(err, nfs3.ErrNoent) {
			t.Errorf("LOOKUP in another export: %v", err)
		}
		if _, err := c.mount("/b"); err != nil {
			t.Errorf("MNT of another export: %v", err)
		}
	}
	s.others(&piece{name: "many calls"}, 0)
	release()
	done := 0
	for later+done < calls {
		switch err := <-answers; {
		case err == nil:
			done++
		case errors.Is(err, nfs3.ErrJukebox):
			later++
		default:
			t.Fatalf("a call that hung: %v", err)
		}
	}
	t.Logf("%d calls were done when the medium was back, %d asked for later", done, later)
	if _, err := s.a.lookup(x.dir, "g"); err != nil {
		t.Errorf("after it: %v", err)
	}
}

// An export whose medium hangs holds up no change of others: it stays as it is, and is not looked at for long.
func TestAnExportThatHangsHoldsUpNoReload(t *testing.T) {
	need.FUSE(t)
	s := newStand(t, false)
	hang := make(chan struct{})
	defer close(hang) // the daemon could not be killed
	s.fs.Fault(func(faultfs.Call) syscall.Errno {
		<-hang
		return 0
	})
	conf := filepath.Join(s.d.Dir, "sluiced.yaml")
	b, err := os.ReadFile(conf)
	must(t, err)
	must(t, os.WriteFile(conf, []byte(strings.Replace(string(b), "name: /b,", "name: /c,", 1)), 0o600))
	if out, code := s.d.Sluice("reload"); code != 0 {
		t.Fatalf("reload while a medium hangs: exit code %d: %s", code, out)
	}
	if _, err := s.other.mount("/c"); err != nil {
		t.Error(err)
	}
}

// The file service ends with its last export, also where that one hangs, and can be had again when it has come back.
func TestTheLastExportCanGoWhileItHangs(t *testing.T) {
	need.FUSE(t)
	s := newStand(t, false)
	x, _, _ := s.begin(false)
	_, err := s.a.writeAll(x.g, 0, []byte("unflushed"), nfs3.Unstable)
	must(t, err)
	hang := make(chan struct{})
	release := sync.OnceFunc(func() { close(hang) })
	defer release() // the daemon could not be killed
	hung := make(chan struct{})
	first := sync.OnceFunc(func() { close(hung) })
	s.fs.Fault(func(faultfs.Call) syscall.Errno {
		first()
		<-hang
		return 0
	})
	c, done := dial(s.addr), make(chan struct{})
	go func() {
		defer close(done)
		_, _ = c.commit(x.f) // its connection ends
	}()
	<-hung
	conf := filepath.Join(s.d.Dir, "sluiced.yaml")
	with, err := os.ReadFile(conf)
	must(t, err)
	without, _, _ := strings.Cut(string(with), "files:")
	must(t, os.WriteFile(conf, []byte(without), 0o600))
	if out, code := s.d.Sluice("reload"); code != 0 {
		t.Fatalf("the last export goes: exit code %d: %s", code, out)
	}
	must(t, os.WriteFile(conf, with, 0o600))
	if out, code := s.d.Sluice("reload"); code == 0 || !strings.Contains(out, "has not ended") {
		t.Errorf("exports come back while calls to the medium go on: exit code %d: %s", code, out)
	}
	release()
	out, code := "", 1
	for end := time.Now().Add(proc.Patience); code != 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		out, code = s.d.Sluice("reload")
	}
	if code != 0 {
		t.Errorf("the medium is back: exit code %d: %s", code, out)
	}
	must(t, c.c.Close())
	<-done
}
