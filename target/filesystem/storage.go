package filesystem

import (
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// kernel is the Storage that the kernel is.
type kernel struct{}

func (kernel) Pread(fd int, bufs [][]byte, n int, off int64, nowait bool) (int, error) {
	flags := 0
	if nowait {
		flags = unix.RWF_NOWAIT
	}
	return rwv2(unix.SYS_PREADV2, fd, bufs, n, off, flags)
}

func (kernel) Pwrite(fd int, bufs [][]byte, n int, off int64, sync Stability) (int, error) {
	flags := 0
	switch sync {
	case DataSync:
		flags = unix.RWF_DSYNC
	case FileSync:
		flags = unix.RWF_SYNC
	}
	return rwv2(unix.SYS_PWRITEV2, fd, bufs, n, off, flags)
}

func (kernel) Sync(fd int) error {
	return unix.Fsync(fd)
}

var pageSize = int64(os.Getpagesize())

// noCachestat is set where the kernel does not say what is cached (before Linux 6.5): then a worker lends.
var noCachestat atomic.Bool

// cached reports that a read of n bytes would find all in the page cache. What is being read from the medium counts as
// cached, so the last byte is tried too: it comes last.
func cached(fd, n int, off int64) bool {
	if noCachestat.Load() {
		return false
	}
	r := unix.CachestatRange{Off: uint64(off), Len: uint64(n)}
	var c unix.Cachestat_t
	if err := unix.Cachestat(uint(fd), &r, &c, 0); err != nil {
		if err == unix.ENOSYS || err == unix.EPERM {
			noCachestat.Store(true)
		}
		return false
	}
	first, last := off/pageSize, (off+int64(n)-1)/pageSize
	if int64(c.Cache) < last-first+1 {
		return false
	}
	var b [1]byte
	k, err := rwv2(unix.SYS_PREADV2, fd, [][]byte{b[:]}, 1, off+int64(n)-1, unix.RWF_NOWAIT)
	return k == 1 && err == nil
}

func (kernel) Lend(fd, pipe, n int, off int64, nowait bool) (int, error) {
	if nowait && n > 0 && !cached(fd, n, off) {
		return 0, unix.EAGAIN
	}
	for done := 0; ; {
		at := off + int64(done)
		k, err := unix.Splice(fd, &at, pipe, nil, n-done, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
		done += int(k)
		switch {
		case err == unix.EINTR:
		case err != nil && done == 0:
			return 0, err
		case err != nil, k == 0, done == n: // what is in the pipe already is an answer
			return done, nil
		}
	}
}
