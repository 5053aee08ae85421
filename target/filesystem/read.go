package filesystem

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/mem"
)

// Memory is where a read puts data.
type Memory interface {
	// Loan returns the end of an empty pipe for up to n bytes, the first of which lies skew bytes into a page, or ok false. Unlend says that
	// nothing was put there.
	Loan(n, skew int) (pipe int, ok bool)
	Unlend()
	// Sink returns memory for n bytes, or mem.ErrNoMemory.
	Sink(n int) ([][]byte, error)
}

// Read is what a read is about, and what came of it.
type Read struct {
	Offset uint64
	Want   int // bytes, of MaxTransfer at most
	Into   Memory

	N    int // bytes read
	EOF  bool
	Attr Attr
}

// Read reads into the transport's memory.
func (o *Object) Read(r *Read) Errno {
	for try := 0; ; try++ {
		f := o.n.opened(&o.id, false)
		if f == nil {
			if o.inline {
				return ErrWait
			}
			var err error
			if f, err = o.s.open(o.n, &o.id, false); err != nil {
				o.After(&r.Attr)
				return errnoOf(err)
			}
		}
		e, stale := o.readOpen(r, f)
		o.n.closeOpen(f)
		switch {
		case !stale:
			return e
		case try == 2:
			return ErrLater // another client changes its mode or size all the time
		case o.inline:
			return ErrWait
		}
	}
}

// nowait says how a caller reads. What has no medium below it waits for none; nor could tmpfs be asked, which has no reads that do not
// wait, so that each would be begun in vain and go to a worker.
func (o *Object) nowait() bool { return o.inline && !o.n.e.inMemory }

// readOpen reads by a descriptor. stale says that the rights, or the size, are not what they were: the caller opens the file again.
func (o *Object) readOpen(r *Read, f *openFile) (e Errno, stale bool) {
	s, want := o.s, r.Want
	if r.Offset > 1<<63-1-MaxTransfer {
		want = 0 // beyond what a file can have: the end
	}
	if s.lender != nil && !o.n.e.noLoans.Load() {
		if pipe, ok := r.Into.Loan(want, int(r.Offset%uint64(pageSize))); ok {
			if e, stale, ok = o.lend(r, f, pipe, want); ok {
				return e, stale
			}
		}
	}
	n := 0
	var err error
	if want > 0 {
		var sink [][]byte
		if sink, err = r.Into.Sink(want); errors.Is(err, mem.ErrNoMemory) {
			return ErrNoMemory, false
		} else if err != nil {
			return ErrLater, false
		}
		n, err = s.storage.Pread(f.fd, sink, want, int64(r.Offset), o.nowait())
		if o.inline && (errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EOPNOTSUPP)) {
			return ErrWait, false
		}
	}
	var st unix.Stat_t
	if serr := s.stat(o.n, &st); err == nil {
		err = serr
	}
	if err != nil {
		return errnoOf(err), false
	}
	if !o.n.still(f, &st) {
		return OK, true
	}
	end := r.Offset+uint64(n) >= uint64(st.Size)
	if n < want && !end && o.inline {
		return ErrWait, false // a part was in the cache; the rest may take time
	}
	if n == 0 && want > 0 && !end {
		return OK, true // it was shorter a moment ago: nothing, and no end either, would be no answer
	}
	o.readDone(r, &st, n, end)
	return OK, false
}

func (o *Object) readDone(r *Read, st *unix.Stat_t, n int, end bool) {
	r.N, r.EOF = n, end
	r.Attr.fill(o.n.e, st)
}

// lend reads by lending pages of the file. ok is false when the file system has none to lend. The attributes are those
// of before: pages may show later writes, and a client that took attributes for newer than they are would not look again.
func (o *Object) lend(r *Read, f *openFile, pipe, want int) (e Errno, stale, ok bool) {
	s := o.s
	var st unix.Stat_t
	if err := s.stat(o.n, &st); err != nil {
		r.Into.Unlend()
		return errnoOf(err), false, true
	}
	if !o.n.still(f, &st) {
		r.Into.Unlend()
		return OK, true, true
	}
	have := int(min(max(st.Size-int64(r.Offset), 0), int64(want)))
	n, err := 0, error(nil)
	if have > 0 {
		n, err = s.lender.Lend(f.fd, pipe, have, int64(r.Offset), o.nowait())
	}
	if n == 0 {
		r.Into.Unlend()
	}
	switch {
	case errors.Is(err, unix.EAGAIN) && o.inline:
		return ErrWait, false, true
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EOPNOTSUPP):
		o.n.e.noLoans.Store(true)
		return OK, false, false
	case err != nil:
		return errnoOf(err), false, true
	case n == 0 && have > 0:
		return OK, false, false // it became shorter just now
	}
	if n < have {
		// The same, or the rest could not be had: as many bytes as there are, and what is true now.
		if err := s.stat(o.n, &st); err != nil {
			return errnoOf(err), false, true
		}
	}
	o.readDone(r, &st, n, r.Offset+uint64(n) >= uint64(st.Size))
	return OK, false, true
}
