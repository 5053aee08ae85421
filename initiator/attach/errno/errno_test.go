package errno

import (
	"context"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/initiator/block"
)

func TestAnErrorHasOneNumberForAllFaces(t *testing.T) {
	for err, want := range map[error]unix.Errno{
		nil: 0, block.ErrReadOnly: unix.EROFS, block.ErrNoSpace: unix.ENOSPC, block.ErrUnsupported: unix.EOPNOTSUPP, block.ErrReserved: unix.EBADE,
		context.Canceled: unix.EINTR, block.ErrMedium: unix.EIO, block.ErrClosed: unix.EIO, unix.EINVAL: unix.EINVAL,
	} {
		if got := Of(err); got != want {
			t.Errorf("%v is %v, want %v", err, got, want)
		}
		if err != nil && Of(fmt.Errorf("somewhere: %w", err)) != want {
			t.Errorf("%v is not found in another", err)
		}
	}
}
