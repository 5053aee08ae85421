// Package errno says what a failed request of a volume is to a program that reads and writes it by system calls: one table
// for NBD, ublk and FUSE. NBD knows fewer numbers, and reduces these to its own.
package errno

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/initiator/block"
)

// table has every error of package blockdev and of a volume's requests; the first that matches counts.
var table = []struct {
	err error
	no  unix.Errno
}{
	{blockdev.ErrReadOnly, unix.EROFS},
	{blockdev.ErrNoSpace, unix.ENOSPC},
	{blockdev.ErrUnsupported, unix.EOPNOTSUPP},
	{block.ErrReserved, unix.EBADE}, // the block layer's code for a reservation conflict
	{context.Canceled, unix.EINTR},
	{blockdev.ErrRange, unix.EIO}, // as of a disk that has become smaller
	{blockdev.ErrMiscompare, unix.EIO},
	{blockdev.ErrClosed, unix.EIO},
	{blockdev.ErrMedium, unix.EIO},
	{blockdev.ErrBusy, unix.EIO},
	{blockdev.ErrAway, unix.EIO},
	{blockdev.ErrFenced, unix.EIO},
	{block.ErrTimeout, unix.EIO},
	{block.ErrOtherUnit, unix.EIO},
	{block.ErrPowerLost, unix.EIO},
	{block.ErrCancelled, unix.EIO},
	{block.ErrOutcomeUnknown, unix.EIO},
	{block.ErrUnsettled, unix.EIO},
	{block.ErrNoPath, unix.EIO},
	{block.ErrBadRequest, unix.EIO},
	{block.ErrBusy, unix.EIO},
	{block.ErrAuth, unix.EIO},
	{block.ErrDenied, unix.EIO},
	{block.ErrNoTarget, unix.EIO},
	{block.ErrNoUnit, unix.EIO},
}

// Of is the error number of err, 0 for none. What is not in the table is the operating system's number in it, or EIO.
func Of(err error) unix.Errno {
	if err == nil {
		return 0
	}
	for _, t := range table {
		if errors.Is(err, t.err) {
			return t.no
		}
	}
	var no unix.Errno
	if errors.As(err, &no) {
		return no
	}
	return unix.EIO
}
