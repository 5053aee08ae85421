package fusedir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/initiator/attach/fusemount"
	"github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/nlm4"
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
		r.f.o.Log.Warn("the server did not answer within the limit", zap.Duration("limit", l))
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
		if errors.Is(err, nfs3.ErrJukebox) && r.Err() == nil {
			t := time.NewTimer(jukeboxPause)
			select {
			case <-t.C:
				continue
			case <-r.Done():
				t.Stop()
			}
		}
		if cause := context.Cause(r); cause != nil && !errors.As(err, new(nfs3.Status)) {
			err = cause
		}
		return fuse.Status(r.f.errno(err))
	}
}

var errnos = map[nfs3.Status]syscall.Errno{
	nfs3.ErrPerm: syscall.EPERM, nfs3.ErrNoent: syscall.ENOENT, nfs3.ErrIO: syscall.EIO, nfs3.ErrNxio: syscall.ENXIO, nfs3.ErrAcces: syscall.EACCES,
	nfs3.ErrExist: syscall.EEXIST, nfs3.ErrXdev: syscall.EXDEV, nfs3.ErrNodev: syscall.ENODEV, nfs3.ErrNotdir: syscall.ENOTDIR,
	nfs3.ErrIsdir: syscall.EISDIR, nfs3.ErrInval: syscall.EINVAL, nfs3.ErrFbig: syscall.EFBIG, nfs3.ErrNospc: syscall.ENOSPC,
	nfs3.ErrRofs: syscall.EROFS, nfs3.ErrMlink: syscall.EMLINK, nfs3.ErrNametoolong: syscall.ENAMETOOLONG, nfs3.ErrNotempty: syscall.ENOTEMPTY,
	nfs3.ErrDquot: syscall.EDQUOT, nfs3.ErrStale: syscall.ESTALE, nfs3.ErrRemote: syscall.EREMOTE, nfs3.ErrBadhandle: syscall.ESTALE,
	nfs3.ErrNotSync: syscall.EAGAIN, nfs3.ErrBadCookie: syscall.EIO, nfs3.ErrNotsupp: syscall.EOPNOTSUPP, nfs3.ErrToosmall: syscall.EINVAL,
	nfs3.ErrServerfault: syscall.EIO, nfs3.ErrBadtype: syscall.EINVAL, nfs3.ErrJukebox: syscall.EAGAIN,
}

var lockErrnos = map[nlm4.Stat]syscall.Errno{
	nlm4.DeniedNolocks: syscall.ENOLCK, nlm4.DeniedGrace: syscall.EAGAIN, nlm4.Deadlock: syscall.EDEADLK, nlm4.Rofs: syscall.EROFS,
	nlm4.StaleFH: syscall.ESTALE, nlm4.Fbig: syscall.EOVERFLOW,
}

func (f *dirFS) errno(err error) syscall.Errno {
	var st nfs3.Status
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
	f.o.Log.Warn("a call failed", zap.Error(err))
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
