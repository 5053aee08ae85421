package scsi

import (
	"bytes"
	"testing"

	"github.com/sluice-storage/sluice/internal/state"
	"github.com/sluice-storage/sluice/mem"
)

// illegal runs f, which has to panic with an illegal move of what.
func illegal(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if e, is := recover().(*state.IllegalError); !is || e.What != what {
			t.Errorf("%v instead of an illegal move of %s", e, what)
		}
	}()
	f()
}

// A command that has completed may be another one already: what comes for it then is a defect, which ends the process.
func TestAnEventAfterCompleteIsAnIllegalMove(t *testing.T) {
	r := newRig(t)
	c := r.run(r.n, nil, 512, "28 00 00 00 00 00 00 00 01 00").Command
	illegal(t, "a device request", func() { c.deviceDone(&c.x.tr.piece[0]) })
	illegal(t, "a command's runner", func() { c.noteLocked() })
}

// A device that ends a request twice, before or after its command is over, does not end the next request of that command's.
func TestASecondDoneEndsNoOtherRequest(t *testing.T) {
	for name, over := range map[string]bool{"while the command moves what was read": false, "after the command": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			copy(r.disk.data, "what is on the disk")
			c := &Command{}
			again := func() {
				illegal(t, "a device request", func() { c.deviceDone(&c.x.tr.piece[0]) })
				c.x.mu.TryLock() // a panic leaves it locked
				c.x.mu.Unlock()
			}
			read := func(hold chan func()) *host {
				h := &host{t: t, in: make([]byte, 512), done: make(chan struct{}), hold: hold}
				c.CDB, c.ExpectIn, c.Mover = cdb("28 00 00 00 00 00 00 00 01 00"), 512, h
				r.n.Execute(c)
				return h
			}
			moves := make(chan func(), 1)
			h := read(moves)
			if !over {
				again()
			}
			(<-moves)()
			<-h.done
			if over {
				again()
			}
			c.Reset()
			hold(r.disk)
			h = read(nil)
			<-r.disk.arrived
			select {
			case <-h.done:
				t.Errorf("a READ ended before the device: %q", h.in[:20])
			default:
			}
			r.disk.letGo()
			<-h.done
			if !bytes.HasPrefix(h.in, []byte("what is on the disk")) {
				t.Errorf("read %q", h.in[:20])
			}
		})
	}
}

// Memory that is in use is not given back by a piece that has no right to.
func TestAPieceThatIsFreeReleasesNothing(t *testing.T) {
	r := newRig(t)
	b, err := r.pool.Get(512)
	if err != nil {
		t.Fatal(err)
	}
	p := &piece{bufs: []*mem.Buf{b}}
	illegal(t, "a piece of a transfer", p.release)
	if len(p.bufs) != 1 {
		t.Fatal("its buffer was released")
	}
	b.Release()
}

// A mover that ends a move twice would end the next one, whose memory it may still touch.
func TestMovedWithoutAMoveIsAnIllegalMove(t *testing.T) {
	r := newRig(t)
	c := r.run(r.n, nil, 512, "28 00 00 00 00 00 00 00 01 00").Command
	illegal(t, "a command's move", func() { c.Moved(nil) })
}
