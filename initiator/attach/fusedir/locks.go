package fusedir

import (
	"context"
	"errors"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/sluice-storage/sluice/initiator/nfs"
)

// lockOwner makes one number of the kernel's owner and the kind of lock: fcntl(2) and flock(2) do not see one another on a
// local file system, and on NFS they do, as Linux's client has it; but one process's must not stand for the other's.
func lockOwner(id uint64, flock bool) nfs.LockOwner {
	if flock {
		id ^= 1 << 63
	}
	return nfs.LockOwner{ID: id}
}

// lockRequest reads a request's owner and range. The process is shown to others, and must not tell owners apart: threads and
// forks of a process share what it has.
func lockRequest(in *fuse.LkIn) (nfs.LockOwner, nfs.LockRange) {
	flock := in.LkFlags&fuse.FUSE_LK_FLOCK != 0
	r := nfs.LockRange{Start: in.Lk.Start, End: in.Lk.End, Exclusive: in.Lk.Typ == syscall.F_WRLCK}
	if flock {
		r.Start, r.End = 0, wholeFile
	}
	return lockOwner(in.Owner, flock), r
}

// GetLk asks who is in the way (fcntl F_GETLK).
func (f *dirFS) GetLk(cancel <-chan struct{}, in *fuse.LkIn, out *fuse.LkOut) fuse.Status {
	return f.at(cancel, &in.InHeader, func(ctx context.Context, _ *nfs.Caller, n *node) error {
		o, r := lockRequest(in)
		other, pid, found, err := f.locks.Test(ctx, n.fh, o, r)
		if err != nil {
			return err
		}
		out.Lk = fuse.FileLock{Typ: syscall.F_UNLCK}
		if found {
			out.Lk = fuse.FileLock{Start: other.Start, End: other.End, Typ: syscall.F_RDLCK, Pid: pid}
			if other.Exclusive {
				out.Lk.Typ = syscall.F_WRLCK
			}
		}
		return nil
	})
}

// SetLk takes or gives back a lock without waiting.
func (f *dirFS) SetLk(cancel <-chan struct{}, in *fuse.LkIn) fuse.Status {
	return f.setLock(cancel, in, false)
}

// SetLkw takes a lock and waits for it. A signal ends the wait, as fcntl(2) has it.
func (f *dirFS) SetLkw(cancel <-chan struct{}, in *fuse.LkIn) fuse.Status {
	return f.setLock(cancel, in, true)
}

func (f *dirFS) setLock(cancel <-chan struct{}, in *fuse.LkIn, wait bool) fuse.Status {
	return f.at(cancel, &in.InHeader, func(ctx context.Context, c *nfs.Caller, n *node) error {
		o, r := lockRequest(in)
		if in.Lk.Typ == syscall.F_UNLCK {
			// The next holder of the lock reads what was written under this one.
			return errors.Join(f.syncNode(ctx, c, n), f.locks.Unlock(ctx, n.fh, o, r))
		}
		if wait {
			var end context.CancelFunc
			ctx, end = context.WithCancel(ctx)
			defer end()
			go func() {
				select {
				case <-cancel:
					end()
				case <-ctx.Done():
				}
			}()
		}
		err := f.locks.Lock(ctx, n.fh, o, r, wait)
		if errors.Is(err, context.Canceled) {
			return syscall.EINTR
		}
		if err == nil {
			// What is cached may be older than what its last holder wrote.
			n.mu.Lock()
			n.cached = version{}
			n.mu.Unlock()
			f.srv.InodeNotify(n.id, 0, -1)
		}
		return err
	})
}

// unlockAll gives back all that an owner has of a file.
func (f *dirFS) unlockAll(ctx context.Context, n *node, o nfs.LockOwner) error {
	if f.locks == nil || !f.locks.Holds(n.fh, o) {
		return nil
	}
	return f.locks.Unlock(ctx, n.fh, o, nfs.LockRange{End: wholeFile})
}
