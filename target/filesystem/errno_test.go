package filesystem

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// What may go well later is to be asked for again, but not behind a change that was made: its caller would meet its own.
func TestWhatWasDoneIsNotAskedForAgain(t *testing.T) {
	for _, no := range []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EAGAIN, unix.EBUSY} {
		if e := errnoOf(fmt.Errorf("opening: %w", no)); e != ErrLater {
			t.Errorf("%v is %v", no, e)
		}
		if e := errnoOf(afterwards(no)); e != ErrFault {
			t.Errorf("%v behind a change is %v", no, e)
		}
	}
	for err, want := range map[error]Errno{nil: OK, unix.ENOSPC: Errno(unix.ENOSPC), afterwards(unix.EIO): Errno(unix.EIO), errForged: ErrBadHandle,
		errors.New("no number"): ErrFault, afterwards(ErrLater): ErrFault, Errno(unix.EROFS): Errno(unix.EROFS)} {
		if e := errnoOf(err); e != want {
			t.Errorf("%v is %v, not %v", err, e, want)
		}
	}
}
