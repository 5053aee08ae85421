package verbs

import (
	"os"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// afterFunc is time.After, which tests replace.
type afterFunc func(time.Duration) <-chan time.Time

func realAfter(d time.Duration) <-chan time.Time { return time.After(d) }

// pollable makes a descriptor of the library's one of Go's poller: a duplicate, which is ours to close.
func pollable(fd int, name string) (*os.File, error) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(dup), name), nil
}

// watch calls take whenever f may have something to read, until f is closed. An error of take's is one of the library's:
// there is nothing to do but to ask again, not in a circle, and more and more seldom: some stay, as that of a device which is gone
// (kernels before 5.6).
func watch(d *Device, f *os.File, take func() error) {
	rc, err := f.SyscallConn()
	nap := shortestAsk
	for err == nil {
		var terr error
		err = rc.Read(func(uintptr) bool {
			if terr = take(); terr == nil {
				nap = shortestAsk
			}
			return terr != nil
		})
		if terr == nil {
			continue
		}
		d.opt.Log.Warn("the RDMA library could not hand out an event", zap.String("of", f.Name()), zap.Error(terr))
		select {
		case <-d.stop:
			return
		case <-d.opt.after(nap):
			nap = min(2*nap, longestAsk)
		}
	}
	select {
	case <-d.stop: // the file is closed
	default:
		d.opt.Log.Warn("no more events of the RDMA library", zap.String("of", f.Name()), zap.Error(err))
	}
}
