package filesystem

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/threads"
)

// Write is what a write is about, and what came of it.
type Write struct {
	Offset uint64
	N      int // bytes of Data
	Data   [][]byte
	Stable Stability
	// By is asked, in the order of the file's changes, whether the write is still to take effect.
	By interface{ Superseded() bool }

	Done   int    // bytes written
	Verf   uint64 // the write verifier that was in force when the data was taken
	Change Change
}

// Write writes with the caller's rights. Its answer is ErrSuperseded where the call is not to be answered.
func (o *Object) Write(w *Write) Errno {
	if w.Offset > 1<<63-1-uint64(w.N) {
		o.After(&w.Change.After)
		return Errno(unix.EFBIG)
	}
	for try := 0; ; try++ {
		f, err := o.s.open(o.n, &o.id, true)
		if err != nil {
			o.After(&w.Change.After)
			return errnoOf(err)
		}
		if e, again := o.writeBy(w, f, try == 2); !again {
			return e
		}
	}
}

// errReopen says that the rights that a file was opened with are not what they were: it has to be opened again.
var errReopen = errors.New("nfs: rights have changed")

// writeBy writes by the descriptor f. again says the same of the file, but not at the last try.
func (o *Object) writeBy(w *Write, f *openFile, last bool) (e Errno, again bool) {
	defer o.n.closeOpen(f)
	s := o.s
	done := 0
	var st unix.Stat_t
	err := s.changing(o.n, &w.Change, &st, func() (err error) {
		if !o.n.still(f, &st) && !last {
			return errReopen
		}
		// The call may have waited, for room, for the medium or for the file. No change of the file comes between this and
		// the write.
		if w.By.Superseded() {
			return ErrSuperseded
		}
		if w.Stable == Unstable {
			if err := o.n.file.begin(o.n, f); err != nil {
				return err
			}
			defer o.n.file.end()
		}
		// RFC 1813 section 3.3.7: the verifier is the one in force when the data was taken. If it changes in between, the
		// client is told the old one and finds when it commits that it has to send again.
		w.Verf = s.verf.Load()
		done, err = s.pwrite(f.fd, o, &st, w)
		return err
	})
	if errors.Is(err, errReopen) {
		return OK, true
	}
	if errors.Is(err, ErrSuperseded) {
		return ErrSuperseded, false
	}
	if w.Stable != Unstable && err != nil && (errors.Is(err, unix.EIO) || o.n.file.dirty()) {
		// The medium failed under a synchronous write; what others wrote to the same file may be gone with it. A medium
		// that is full may have said so of the write, or of making it durable: the next flush need not hear of that.
		s.writebackFailed(o.n, err)
		o.n.retire()
	}
	w.Done = done
	if err != nil && (done == 0 || w.Stable != Unstable) {
		return errnoOf(err), false
	}
	return OK, false
}

// pwrite writes with the caller's rights, and returns how many bytes went before an error. st is of the file.
func (s *FS) pwrite(fd int, o *Object, st *unix.Stat_t, w *Write) (done int, err error) {
	if s.ids.apart(&o.id) {
		if o.n.e.overData(fd, st, int64(w.Offset), w.N) {
			return s.pwriteAll(fd, w.Offset, w.Stable, w.Data, w.N)
		}
		return s.pwriteApart(fd, o.id, w.Offset, w.Stable, slices.Clone(w.Data), w.N)
	}
	err = s.ids.here(&o.id, func() (err error) {
		done, err = s.pwriteAll(fd, w.Offset, w.Stable, w.Data, w.N)
		return err
	})
	return done, err
}

// pwriteApart is pwrite on a thread of its own.
func (s *FS) pwriteApart(fd int, id identity, off uint64, stable Stability, data [][]byte, n int) (done int, err error) {
	err = threads.OnDedicated(func() error {
		return s.ids.here(&id, func() (err error) {
			done, err = s.pwriteAll(fd, off, stable, data, n)
			return err
		})
	})
	return done, err
}

func (s *FS) pwriteAll(fd int, off uint64, stable Stability, data [][]byte, n int) (done int, err error) {
	for done < n {
		k, err := s.storage.Pwrite(fd, skip(data, done), n-done, int64(off)+int64(done), stable)
		if err == nil && k == 0 {
			err = unix.EIO
		}
		if done += k; err != nil {
			return done, err
		}
	}
	return done, nil
}

// skip returns bufs without their first n bytes.
func skip(bufs [][]byte, n int) [][]byte {
	if n == 0 {
		return bufs
	}
	for i, b := range bufs {
		if n < len(b) {
			return append([][]byte{b[n:]}, bufs[i+1:]...)
		}
		n -= len(b)
	}
	return nil
}

// Commit makes all of the file durable, whatever the range: fsync has none.
func (o *Object) Commit(w *Change) (verf uint64, e Errno) {
	if o.n.fmt != unix.S_IFREG {
		return 0, Errno(unix.EINVAL)
	}
	s := o.s
	var st unix.Stat_t
	if err := s.stat(o.n, &st); err != nil {
		return 0, errnoOf(err)
	}
	err := s.flush(o.n)
	// Read after the flush: a loss that this one or another has heard of has changed it.
	verf = s.verf.Load()
	if err == nil {
		err = s.stat(o.n, &st)
	}
	if err != nil {
		o.After(&w.After)
		return verf, errnoOf(err)
	}
	// It changes no attributes, so those before it are those after it, of one instant: a client that sees others than
	// it knows of has missed another's write, and must not take it for its own (RFC 1813 section 2.6).
	w.before(&st)
	w.After.fill(o.n.e, &st)
	return verf, OK
}
