package file

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
)

// Settle implements blockdev.Settler. The page cache goes to the medium in pieces, so that one that works is waited for
// and one that hangs is not. A process that ends meanwhile leaves the rest to the kernel, with the report of its failure: each
// call that waits takes that report, and a long one would take it to the grave.
func (d *Device) Settle() error {
	if err := d.use(); err != nil {
		return err
	}
	defer d.running.Done()
	if err := d.settle(); err != nil {
		return err
	}
	return d.loss.now()
}

func (d *Device) settle() error {
	if d.stuck.Load() {
		return d.loss.now()
	}
	// Of the same open file: it knows of losses that another one has been told of, and keeps the lock until this is over.
	fd, err := unix.FcntlInt(uintptr(d.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return wrap("settle "+d.path, err)
	}
	size := d.size.Load()
	on, done, over := make(chan struct{}, 1), make(chan error, 1), make(chan error, 1)
	go func() {
		err := settlePieces(fd, size, on)
		if err != nil {
			err = d.loss.found(wrap("flush "+d.path, err))
		}
		done <- err
		stuck := <-over
		if stuck == nil {
			return
		}
		if err == nil {
			d.loss.mended(stuck)
			d.stuck.Store(false)
		}
		_ = unix.Close(fd) // nothing is left to be told
	}()
	patience := time.NewTimer(settlePatience)
	defer patience.Stop()
	for pieces := on; ; {
		select {
		case err := <-done:
			over <- nil
			return errors.Join(err, unix.Close(fd))
		case _, more := <-pieces:
			patience.Reset(settlePatience)
			if !more {
				pieces = nil
				patience.Reset(commitPatience)
			}
		case <-patience.C:
			err := fmt.Errorf("%w: %s takes nothing any more; whether it has what was written and not flushed is not known", blockdev.ErrMedium, d.path)
			d.stuck.Store(true)
			noted := d.loss.found(err)
			over <- err
			return noted
		}
	}
}

// settlePieces says on on each piece that the medium has taken, and closes it after the last.
func settlePieces(fd int, size int64, on chan<- struct{}) error {
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
			close(on)
			return err
		}
		select {
		case on <- struct{}{}:
		default:
		}
	}
	close(on)
	return unix.Fdatasync(fd)
}
