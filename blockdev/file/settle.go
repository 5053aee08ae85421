package file

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
)

// Settle implements blockdev.Settler. The page cache goes to the medium in pieces, so that one that works is waited for
// and one that hangs is not. A process that ends meanwhile leaves the rest to the kernel, with the report of its failure: each
// call that waits takes that report, and a long one would take it to the grave.
func (d *Device) Settle(ctx context.Context) error {
	if err := d.use(); err != nil {
		return err
	}
	defer d.running.Done()
	if err := d.settle(ctx, false); err != nil {
		return err
	}
	return d.loss.now()
}

// settling is one run through the page cache, which a medium that hangs may keep beyond the call that began it.
type settling struct {
	done chan struct{} // closed when it is over
	err  error         // after that

	mu         sync.Mutex
	moved      chan struct{} // closed at the next piece
	committing bool          // all pieces are there
	hangs      bool          // a call has run out of patience, and the medium has not answered since
	over       bool
	left       error // what Close has noted of it, which is taken back where the medium takes all of it yet
}

// settle makes durable what was written. With last nothing comes after it: what the medium does not take is noted as lost. Otherwise
// hosts may go on waiting for it, and nothing is lost before the medium says so.
func (d *Device) settle(ctx context.Context, last bool) error {
	if s := d.behind.Load(); s != nil { // it may have passed over what was written since it began
		if err := d.await(ctx, s, last); err != nil {
			return err
		}
	}
	s, err := d.beginSettling()
	if err != nil {
		return err
	}
	return d.await(ctx, s, last)
}

func (d *Device) await(ctx context.Context, s *settling, last bool) error {
	err := s.wait(ctx)
	switch {
	case err == nil:
		d.behind.CompareAndSwap(s, nil)
		return s.err
	case !last:
		d.behind.Store(s)
		return fmt.Errorf("settle %s: %w", d.path, err)
	}
	err = fmt.Errorf("%w: %s takes nothing any more; whether it has what was written and not flushed is not known", blockdev.ErrMedium, d.path)
	if noted, left := s.leave(d, err); left {
		d.left = true
		return noted
	}
	<-s.done
	return s.err
}

// wait is patient as long as pieces reach the medium.
func (s *settling) wait(ctx context.Context) error {
	for {
		s.mu.Lock()
		moved, patience, hangs := s.moved, settlePatience, s.hangs
		if s.committing {
			patience = commitPatience
		}
		s.mu.Unlock()
		if hangs {
			patience = 0
		}
		t := time.NewTimer(patience)
		select {
		case <-s.done: // whatever else has happened
			t.Stop()
			return nil
		default:
		}
		select {
		case <-s.done:
			t.Stop()
			return nil
		case <-moved:
			t.Stop()
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		case <-t.C:
			s.mu.Lock()
			same := s.moved == moved
			s.hangs = same
			s.mu.Unlock()
			if same {
				return fmt.Errorf("%w: it takes nothing at the moment", blockdev.ErrMedium)
			}
		}
	}
}

// on is called after each piece, and with committing after the last.
func (s *settling) on(committing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.moved)
	s.moved, s.committing, s.hangs = make(chan struct{}), committing, false
}

// lives is called when the medium has answered: who waits for the run is patient again, for it may be about to end.
func (s *settling) lives() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hangs = false
}

// leave notes as lost what the run has not done. It reports false where the run is over.
func (s *settling) leave(d *Device, what error) (noted error, left bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return nil, false
	}
	s.left = what
	return d.loss.found(what), true
}

// ends says what Close has noted of the run, nil where it has not and will not.
func (s *settling) ends() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	return s.left
}

func (d *Device) beginSettling() (*settling, error) {
	// Of the same open file: it knows of losses that another one has been told of, and keeps the lock until this is over.
	fd, err := unix.FcntlInt(uintptr(d.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, wrap("settle "+d.path, err)
	}
	size := d.size.Load()
	s := &settling{done: make(chan struct{}), moved: make(chan struct{})}
	go func() {
		err := settlePieces(fd, size, s.on)
		if left := s.ends(); left != nil && err == nil {
			if err = unix.Fdatasync(fd); err == nil { // what was written after the run had passed
				d.loss.mended(left)
			}
		}
		if err != nil {
			err = d.loss.found(wrap("flush "+d.path, err))
		}
		s.err = errors.Join(err, unix.Close(fd))
		close(s.done)
	}()
	return s, nil
}

// settlePieces says on on each piece that the medium has taken.
func settlePieces(fd int, size int64, on func(committing bool)) error {
	for off := int64(0); off < size; off += settlePiece {
		switch data, err := unix.Seek(fd, off, unix.SEEK_DATA); { // nothing else uses the position
		case errors.Is(err, unix.ENXIO):
			off = size // a hole to the end
			continue
		case err == nil && data > off:
			off = min(data, size)
		}
		err := unix.SyncFileRange(fd, off, min(settlePiece, size-off), unix.SYNC_FILE_RANGE_WAIT_BEFORE|unix.SYNC_FILE_RANGE_WRITE|unix.SYNC_FILE_RANGE_WAIT_AFTER)
		switch {
		case err != nil && refused(err):
			off = size // fdatasync does all of it
		case err != nil:
			return err
		}
		on(false)
	}
	on(true)
	return unix.Fdatasync(fd)
}
