package scsi

import (
	"testing"

	"github.com/sluice-storage/sluice/internal/state"
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
	illegal(t, "a command's runner", func() { c.deviceDone(&c.x.tr.piece[0]) })
}

// A mover that ends a move twice would end the next one, whose memory it may still touch.
func TestMovedWithoutAMoveIsAnIllegalMove(t *testing.T) {
	r := newRig(t)
	c := r.run(r.n, nil, 512, "28 00 00 00 00 00 00 00 01 00").Command
	illegal(t, "a command's move", func() { c.Moved(nil) })
}
