// Package errno says what a failed request of a volume is to a program that reads and writes it by system calls: one table for all faces.
package errno

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/initiator/block"
)

var table = []struct {
	err error
	no  unix.Errno
}{
	{block.ErrReadOnly, unix.EROFS},
	{block.ErrNoSpace, unix.ENOSPC},
	{block.ErrUnsupported, unix.EOPNOTSUPP},
	{block.ErrReserved, unix.EBADE}, // the block layer's code for a reservation conflict
	{context.Canceled, unix.EINTR},
}

// Of is the error number of err, 0 for none. What the table does not know is EIO.
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
