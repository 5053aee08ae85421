package fusedir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/sluice-storage/sluice/initiator/attach/fusemount"
	"github.com/sluice-storage/sluice/initiator/nfs"
)

// request is one request of the kernel's under way.
type request struct {
	context.Context
	end    context.CancelCauseFunc
	f      *dirFS
	cancel <-chan struct{}
	pid    uint32
	began  time.Time
	mu     sync.Mutex
	watch  *time.Timer // with mu: the timer may run before begin has it
}

var (
	errKilled = errors.New("the process was killed")
	errLimit  = errors.New("the server did not answer within the limit")
)

// begin makes the context of a request. The kernel says that a request is interrupted for every signal, and only once; file
// operations are expected to go on then, unless the signal kills. So the process is looked at, every now and then, when an
// answer takes long.
func (f *dirFS) begin(cancel <-chan struct{}, h *fuse.InHeader) *request {
	r := &request{f: f, cancel: cancel, pid: h.Pid, began: time.Now()}
	r.Context, r.end = context.WithCancelCause(f.base)
	r.mu.Lock()
	r.watch = time.AfterFunc(watchAfter, r.look)
	r.mu.Unlock()
	return r
}

func (r *request) done() {
	r.watch.Stop()
	r.end(nil)
}

func (r *request) look() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.Err() != nil {
		return
	}
	if l := r.f.o.Limit; l > 0 && time.Since(r.began) >= l {
		r.f.o.Log.Warn("the server did not answer within the limit", slog.Duration("limit", l))
		r.end(errLimit)
		return
	}
	select {
	case <-r.cancel:
		if fusemount.Dying(r.pid) {
			r.end(errKilled)
			return
		}
	default:
	}
	r.watch.Reset(watchAfter)
}

// run does g, again while the server asks to be called later, and gives the status for the kernel.
func (r *request) run(g func() error) fuse.Status {
	for {
		err := g()
		if err == nil {
			return fuse.OK
		}
		if errors.Is(err, nfs.ErrJukebox) && r.Err() == nil {
			t := time.NewTimer(jukeboxPause)
			select {
			case <-t.C:
				continue
			case <-r.Done():
				t.Stop()
			}
		}
		if cause := context.Cause(r); cause != nil && !errors.As(err, new(nfs.Status)) {
			err = cause
		}
		return fuse.Status(r.f.errno(err))
	}
}

var errnos = map[nfs.Status]syscall.Errno{
	nfs.ErrNotOwner: syscall.EPERM, nfs.ErrNoEntry: syscall.ENOENT, nfs.ErrIO: syscall.EIO, nfs.ErrNoAddress: syscall.ENXIO, nfs.ErrAccess: syscall.EACCES,
	nfs.ErrExists: syscall.EEXIST, nfs.ErrCrossDevice: syscall.EXDEV, nfs.ErrNoSuchDevice: syscall.ENODEV, nfs.ErrNotDir: syscall.ENOTDIR,
	nfs.ErrIsDir: syscall.EISDIR, nfs.ErrInvalid: syscall.EINVAL, nfs.ErrTooBig: syscall.EFBIG, nfs.ErrNoSpace: syscall.ENOSPC,
	nfs.ErrReadOnly: syscall.EROFS, nfs.ErrManyLinks: syscall.EMLINK, nfs.ErrNameTooLong: syscall.ENAMETOOLONG, nfs.ErrNotEmpty: syscall.ENOTEMPTY,
	nfs.ErrQuota: syscall.EDQUOT, nfs.ErrStale: syscall.ESTALE, nfs.ErrRemote: syscall.EREMOTE, nfs.ErrBadHandle: syscall.ESTALE,
	nfs.ErrNotSync: syscall.EAGAIN, nfs.ErrBadCookie: syscall.EIO, nfs.ErrNotSupported: syscall.EOPNOTSUPP, nfs.ErrTooSmall: syscall.EINVAL,
	nfs.ErrServerFault: syscall.EIO, nfs.ErrBadType: syscall.EINVAL, nfs.ErrJukebox: syscall.EAGAIN,
}

var lockErrnos = map[nfs.LockStat]syscall.Errno{
	nfs.LockNoRoom: syscall.ENOLCK, nfs.LockGrace: syscall.EAGAIN, nfs.LockDeadlock: syscall.EDEADLK, nfs.LockReadOnly: syscall.EROFS,
	nfs.LockStale: syscall.ESTALE, nfs.LockTooLarge: syscall.EOVERFLOW,
}

func (f *dirFS) errno(err error) syscall.Errno {
	var st nfs.Status
	var le *nfs.LockError
	var no syscall.Errno
	switch {
	case errors.As(err, &no):
		return no
	case errors.As(err, &st):
		if no, ok := errnos[st]; ok {
			return no
		}
	case errors.Is(err, nfs.ErrLocked):
		return syscall.EAGAIN
	case errors.As(err, &le):
		if no, ok := lockErrnos[le.Stat]; ok {
			return no
		}
		return syscall.ENOLCK
	case errors.Is(err, errKilled):
		return syscall.EINTR
	case errors.Is(err, fs.ErrInvalid):
		return syscall.EINVAL
	}
	f.o.Log.Warn("a call failed", slog.Any("error", err))
	return syscall.EIO
}

// ofTheKernel is the identity of what the kernel does for itself (Linux fs/fuse, FUSE_INVALID_UIDGID).
const ofTheKernel = 1<<32 - 1

// caller is the identity that a request goes out with: the process's, also where its number cannot be seen from here, because it is in
// a PID namespace that is not the mounter's (a container). Its groups cannot be seen then, and are not guessed.
func (f *dirFS) caller(h *fuse.InHeader) *nfs.Caller {
	if f.o.Fixed || h.Uid == ofTheKernel {
		return f.self
	}
	return f.v.As(nfs.Identity{UID: h.Uid, GID: h.Gid, Groups: groups(h.Pid)})
}

// groups are the supplementary groups of a thread (proc(5)); none if it is gone, or is in a PID namespace that is not ours.
func groups(tid uint32) []uint32 {
	if tid == 0 {
		return nil
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return nil
	}
	_, rest, _ := strings.Cut(string(b), "\nGroups:")
	line, _, _ := strings.Cut(rest, "\n")
	var l []uint32
	for _, s := range strings.Fields(line) {
		if n, err := strconv.ParseUint(s, 10, 32); err == nil {
			l = append(l, uint32(n))
		}
	}
	return l
}
