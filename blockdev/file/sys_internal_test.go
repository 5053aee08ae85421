package file

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
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
	good := d.fd
	d.fd = -1 // the next fdatasync fails, with EBADF
	if err := d.sync(); !errors.Is(err, blockdev.ErrMedium) {
		t.Fatalf("got %v", err)
	}
	d.fd = good
	if err := d.sync(); !errors.Is(err, blockdev.ErrMedium) {
		t.Errorf("the next flush made a promise: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

// What is at a path, or is a loop device of one, may be another medium each time; a file that says when it was made is not.
func TestOnlyWhatHasANameOfItsOwnIsDistinct(t *testing.T) {
	path := t.TempDir() + "/v"
	d, err := Open(path, Options{Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if _, place := d.blockIdentity(0); !place { // no such device: it has no name
		t.Error("a path is the device's own name")
	}
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_BTIME, &st); err != nil {
		t.Fatal(err)
	}
	if distinct, err := d.Distinct(); err != nil || distinct != (st.Mask&unix.STATX_BTIME != 0) {
		t.Errorf("%t, %v", distinct, err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

// performer performs what it is offered, at once.
type performer struct{ n int }

func (p *performer) Defer(by blockdev.Performer, r *blockdev.Request) bool {
	p.n++
	by.Perform(r)
	return true
}

// A write that fails on the submitter's goroutine is tried by a worker, who says what is wrong.
func TestAWriteThatItsSubmitterPerforms(t *testing.T) {
	d, err := Open(t.TempDir()+"/v", Options{Size: 1 << 20, Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	slab, err := mem.NewSlab(4096)
	if err != nil {
		t.Fatal(err)
	}
	var p performer
	write := func(fua bool) error {
		return blockdev.Do(t.Context(), d, &blockdev.Request{Op: blockdev.Write, FUA: fua, Length: 4096, Data: []mem.Span{{Slab: slab, Len: 4096}}, Deferrer: &p})
	}
	if err := write(false); err != nil || p.n != 1 {
		t.Errorf("%v, %d performed", err, p.n)
	}
	if err := write(true); err != nil || p.n != 1 {
		t.Errorf("a write that waits for the medium: %v, %d performed", err, p.n)
	}
	good := d.fd
	d.fd = -1
	if err := write(false); !errors.Is(err, unix.EBADF) || !strings.Contains(err.Error(), "write of 4096 bytes at 0") || p.n != 2 {
		t.Errorf("%v, %d performed", err, p.n)
	}
	d.fd = good
	if err := errors.Join(d.Close(), slab.Close()); err != nil {
		t.Error(err)
	}
}
