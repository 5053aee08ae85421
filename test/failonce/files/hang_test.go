package files

import (
	"errors"
	"sync"
	"syscall"
	"testing"

	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/test/faultfs"
	"github.com/sluice-storage/sluice/test/need"
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
