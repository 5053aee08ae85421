package file

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
)

// loss is what the device knows of acknowledged writes that the medium did not keep. The kernel tells a descriptor of
// each failed writeback once, with the first call that waits for the medium (fsync(2)), and then drops the pages: the
// caller may not be the one that wrote them. So the first report makes all later promises fail, until the device is opened
// again. A note beside the state keeps it for that opening, because its flushes would claim the lost writes too.
type loss struct {
	mu     sync.Mutex
	failed error // of this opening
	more   bool  // it was found again after that
	owed   error // of an earlier one: the next flush fails
	taken  error // of an earlier one that another tells of, and has not written down yet
	before error // the same, for as long as the device is open

	noteMu sync.Mutex // while the note is written or removed
	noted  bool       // the loss of this opening is written down
	note   string     // its path, "" for none
	id     string     // of the device, so that another one at its path inherits nothing
}

// open reads the note. One that cannot be read counts: a loss that is told once too often harms less than one that is
// not told.
func (l *loss) open(path, id string) {
	l.note, l.id = path, id
	if path == "" {
		return
	}
	b, err := os.ReadFile(path)
	switch text, of, _ := strings.Cut(string(b), "\n"); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		l.owed = fmt.Errorf("%w: whether writes were lost before the start cannot be read: %w", blockdev.ErrMedium, err)
	case len(b) == 0 || strings.TrimSpace(of) == id:
		l.owed = fmt.Errorf("%w: writes that were not flushed before the start are lost: %s", blockdev.ErrMedium, text)
	}
	l.before = l.owed
}

// due is why a flush has to fail without asking the medium, nil where it may ask.
func (l *loss) due() error {
	l.mu.Lock()
	failed, owed := l.failed, l.owed
	l.owed = nil
	l.mu.Unlock()
	if failed != nil {
		return errors.Join(failed, l.remember(failed))
	}
	if owed != nil {
		l.forget()
	}
	return owed
}

// now is the loss of this opening.
func (l *loss) now() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed
}

// found remembers that err reported a loss, and returns what those are told who wait.
func (l *loss) found(err error) error {
	if !errors.Is(err, blockdev.ErrMedium) {
		err = fmt.Errorf("%w: %w", blockdev.ErrMedium, err)
	}
	l.mu.Lock()
	l.more = l.failed != nil
	if !l.more {
		l.failed = err
	}
	l.mu.Unlock()
	return errors.Join(err, l.remember(err))
}

// remember writes the note, if it is not written: each flush tries, and Close.
func (l *loss) remember(what error) error {
	l.noteMu.Lock()
	defer l.noteMu.Unlock()
	if l.note == "" || l.noted {
		return nil
	}
	if err := l.write(what); err != nil {
		return fmt.Errorf("blockdev/file: the loss could not be noted, and a restart would forget it: %w", err)
	}
	l.noted = true
	return nil
}

func (l *loss) write(what error) error {
	f, err := os.OpenFile(l.note, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%s\n%s\n", strings.ReplaceAll(what.Error(), "\n", "; "), l.id)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return syncDir(l.note)
}

// last writes the note of a loss that could not be written before, for the last time.
func (l *loss) last() error {
	if failed := l.now(); failed != nil {
		return l.remember(failed)
	}
	return nil
}

// forget removes the note. One that stays fails a flush too many at the next opening, which is no harm.
func (l *loss) forget() {
	if l.note == "" {
		return
	}
	l.noteMu.Lock()
	defer l.noteMu.Unlock()
	if l.now() == nil && os.Remove(l.note) == nil {
		_ = syncDir(l.note)
	}
}

// mended takes back what found was told, which has turned out not to be a loss, unless there was one besides. What an earlier opening lost is noted again.
func (l *loss) mended(err error) {
	l.noteMu.Lock()
	defer l.noteMu.Unlock()
	l.mu.Lock()
	ours, owed := l.failed == err && !l.more, cmp.Or(l.owed, l.taken) //nolint:errorlint // this very one
	if ours {
		l.failed = nil
	}
	l.mu.Unlock()
	if !ours || !l.noted {
		return
	}
	l.noted = false
	if owed != nil {
		_ = l.write(owed) // what is there fails a flush as well
	} else if os.Remove(l.note) == nil {
		_ = syncDir(l.note)
	}
}

// Lost implements blockdev.LossReporter.
func (d *Device) Lost() error { return d.loss.before }

// TakeLoss implements blockdev.LossReporter.
func (d *Device) TakeLoss(noted bool) {
	l := &d.loss
	l.mu.Lock()
	took := cmp.Or(l.owed, l.taken)
	l.owed, l.taken = nil, took
	if noted {
		l.taken = nil
	}
	l.mu.Unlock()
	if noted && took != nil {
		l.forget()
	}
}

// sync is fdatasync, or the loss that forbids to claim anything.
func (d *Device) sync() error {
	if err := d.loss.due(); err != nil {
		return err
	}
	// EINTR too: it may be what a writeback came to (FUSE), which is said once, and a second call would claim what that has dropped.
	if err := unix.Fdatasync(d.fd); err != nil {
		return d.loss.found(wrap("flush", err))
	}
	if s := d.behind.Load(); s != nil {
		s.lives()
	}
	return nil
}

// unsynced looks at the error of a write with RWF_DSYNC, which may be of that write or of any earlier one whose loss the
// call was the first to hear of. again does the write without waiting for the medium.
func (d *Device) unsynced(err error, again func() error) error {
	switch {
	case err == nil:
		return nil
	case refused(err):
		return err
	case errors.Is(err, blockdev.ErrNoSpace):
		// Where there still is no room it was this write that found none. Otherwise it may have been an earlier one, whose
		// room was to be found by its writeback.
		if aerr := again(); aerr != nil {
			return err
		}
	}
	return d.loss.found(err)
}

// refused reports an error of the call itself: the kernel looked at the arguments and did nothing.
func refused(err error) bool {
	for _, e := range [...]unix.Errno{unix.EINVAL, unix.EOPNOTSUPP, unix.ENOSYS, unix.EFAULT, unix.EFBIG, unix.EBADF, unix.EPERM, unix.EACCES, unix.ENOMEM, unix.EAGAIN} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
