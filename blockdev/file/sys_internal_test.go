package file

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
)

func TestSystemErrorsKeepTheirMeaning(t *testing.T) {
	for errno, want := range map[unix.Errno]error{
		unix.ENOSPC: blockdev.ErrNoSpace, unix.EDQUOT: blockdev.ErrNoSpace, unix.EIO: blockdev.ErrMedium, unix.EUCLEAN: blockdev.ErrMedium,
	} {
		if err := wrap("x", errno); !errors.Is(err, want) || !errors.Is(err, errno) {
			t.Errorf("%v became %v", errno, err)
		}
	}
	if err := wrap("x", unix.EPERM); errors.Is(err, blockdev.ErrMedium) || !errors.Is(err, unix.EPERM) {
		t.Errorf("EPERM became %v", err)
	}
}

// TestAFailedFlushIsNotForgotten: the kernel reports a lost write once, to one fdatasync.
func TestAFailedFlushIsNotForgotten(t *testing.T) {
	d, err := Open(t.TempDir()+"/v", Options{Size: 1 << 20, Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	w := &worker{d: d}
	good := d.fd
	d.fd = -1 // the next fdatasync fails, with EBADF
	if err := w.sync(); !errors.Is(err, blockdev.ErrMedium) {
		t.Fatalf("got %v", err)
	}
	d.fd = good
	if err := w.sync(); !errors.Is(err, blockdev.ErrMedium) {
		t.Errorf("the next flush made a promise: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}
