// Package bdev claims block devices that are to be taken away.
package bdev

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// What Claim refuses.
var (
	ErrBusy = errors.New("the device is in use")
	ErrSlow = errors.New("what the kernel holds of it cannot be written")
)

// Claim opens a block device for this process alone, which a mount or another exclusive user refuses with ErrBusy, and writes back the
// pages that the kernel holds of it. It asks for no flush: that is the volume's to know, and a target that is away answers none.
// Pages that are not written within the limit are ErrSlow; the claim ends when they are.
func Claim(path string, limit time.Duration) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_EXCL, 0)
	if errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		f, err = os.OpenFile(path, os.O_RDONLY|unix.O_EXCL, 0)
	}
	if errors.Is(err, unix.EBUSY) {
		return nil, fmt.Errorf("%w: %s", ErrBusy, path)
	}
	if err != nil {
		return nil, err
	}
	var synced error
	done := make(chan struct{})
	go func() {
		defer close(done)
		synced = unix.SyncFileRange(int(f.Fd()), 0, 0, unix.SYNC_FILE_RANGE_WAIT_BEFORE|unix.SYNC_FILE_RANGE_WRITE|unix.SYNC_FILE_RANGE_WAIT_AFTER)
	}()
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-done:
		if synced != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", path, synced), f.Close())
		}
		return f, nil
	case <-t.C:
		go func() {
			<-done
			f.Close()
		}()
		return nil, fmt.Errorf("%s: %w", path, ErrSlow)
	}
}
