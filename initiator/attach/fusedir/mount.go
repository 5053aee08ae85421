package fusedir

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/sluice-storage/sluice/initiator/attach/fusemount"
	"github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/internal/logging"
)

// LockMode says where locks are kept.
type LockMode int

// The lock modes.
const (
	LocksAuto   LockMode = iota // the server's, if its lock manager answers; otherwise this machine's
	LocksLocal                  // this machine's: other clients do not see them
	LocksServer                 // the server's, or the mount fails
)

// Options configure a mount. The zero value is good for the user who mounts.
type Options struct {
	Source   string // shown as the file system's source, such as host:/path
	ReadOnly bool
	// AllowOther lets other users in, and root; an ordinary user needs user_allow_other in /etc/fuse.conf for it.
	AllowOther bool
	// Fixed makes every call with the identity of the mount's URL, not with that of the process.
	Fixed bool
	// AttrTimeout and EntryTimeout are how long attributes and names are good without asking; a second if 0, not at all if
	// negative.
	AttrTimeout, EntryTimeout time.Duration
	// Limit is how long a call waits for a server that is away before it fails with EIO; for ever if 0.
	Limit time.Duration
	Locks LockMode
	// State is a directory of this machine that keeps the name under which a mount's locks are known to the server, so that those of a
	// mount that was killed can be freed by the next. Without it they are not.
	State string
	Log   *slog.Logger // nil logs nothing
}

// Mounted is a mounted directory.
type Mounted struct {
	srv   *fuse.Server
	dir   string
	fs    *dirFS
	ready chan struct{} // closed when the server has ended
	why   string
}

// Mount shows v at dir until it is unmounted, by Unmount or from outside. The FS must outlive it.
func Mount(ctx context.Context, dir string, v *nfs.FS, o Options) (*Mounted, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if fi, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("the mount point %s cannot be used: %w", dir, err)
	} else if !fi.IsDir() {
		return nil, fmt.Errorf("the mount point %s is no directory", dir)
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoFUSE, err)
	}
	o.Log = logging.OrNone(o.Log)
	f := &dirFS{RawFileSystem: fuse.NewDefaultRawFileSystem(), v: v, o: o, self: v.Self(), attrFor: timeout(o.AttrTimeout), entryFor: timeout(o.EntryTimeout)}
	f.base, f.stop = context.WithCancel(context.Background())
	m := &Mounted{fs: f, dir: dir, ready: make(chan struct{})}
	if m.why, err = f.openLocks(ctx, dir); err != nil {
		f.stop()
		return nil, err
	}
	fail := func(err error) (*Mounted, error) {
		f.stop()
		return nil, errors.Join(err, f.closeLocks())
	}
	root, err := f.self.Getattr(ctx, v.Root())
	if err != nil {
		return fail(fmt.Errorf("the export's root: %w", err))
	}
	f.nodes.init(v.Root(), root)
	mo := &fuse.MountOptions{
		FsName: o.Source, Name: "sluice-nfs", MaxWrite: min(maxWrite, max(v.WriteSize(), 4096)), MaxBackground: maxBackground, DisableXAttrs: true,
		AllowOther: o.AllowOther, EnableLocks: f.locks != nil, DirectMount: os.Geteuid() == 0,
	}
	mo.DirectMountFlags = syscall.MS_NOSUID | syscall.MS_NODEV
	if o.ReadOnly {
		mo.Options = append(mo.Options, "ro")
		mo.DirectMountFlags |= syscall.MS_RDONLY
	}
	if o.AllowOther && !o.Fixed {
		// Several users share the kernel's cache: it must check the mode bits itself before it answers from there.
		mo.Options = append(mo.Options, "default_permissions")
	}
	if m.srv, err = fuse.NewServer(f, dir, mo); err != nil {
		// The library's words may end with a line's end.
		return fail(fmt.Errorf("%w: mount on %s: %s", ErrNoFUSE, dir, strings.TrimSpace(err.Error())))
	}
	go func() {
		m.srv.Serve()
		close(m.ready)
	}()
	if err := errors.Join(fusemount.KeepFromChildren(), m.srv.WaitMount()); err != nil {
		return nil, errors.Join(err, m.Unmount(true))
	}
	return m, nil
}

// ErrNoFUSE says that this machine or user cannot mount by FUSE.
var ErrNoFUSE = errors.New("FUSE cannot be used; it needs /dev/fuse and, for an ordinary user, fusermount3 (package fuse3)")

func timeout(d time.Duration) time.Duration {
	if d == 0 {
		return defaultTimeout
	}
	return max(d, 0)
}

// openLocks finds the server's lock manager, and says in a sentence where locks are kept.
func (f *dirFS) openLocks(ctx context.Context, dir string) (string, error) {
	if f.o.Locks == LocksLocal {
		return "locks hold on this machine only, as asked for", nil
	}
	i, err := newInstance(f.o.State, f.v.Machine(), f.o.Source, dir)
	if err != nil { // a machine whose state cannot be written: then the next life frees nothing
		f.o.Log.Warn("the name of the mount's locks cannot be kept", slog.Any("error", err))
		if i, err = newInstance("", f.v.Machine(), f.o.Source, dir); err != nil {
			return "", err
		}
	}
	l, err := f.announce(ctx, i)
	if err != nil {
		if derr := i.drop(); derr != nil {
			return "", errors.Join(err, derr)
		}
	}
	switch {
	case err == nil:
		f.locks = l
		return "locks are kept by the server", nil
	case f.o.Locks == LocksServer || !errors.Is(err, nfs.ErrNoLocks):
		return "", err
	}
	return fmt.Sprintf("locks hold on this machine only: %v", err), nil
}

// announce frees what the life before held, and makes the new name known.
func (f *dirFS) announce(ctx context.Context, i *instance) (*nfs.Locks, error) {
	if i.dead != "" {
		old, err := f.v.Locks(ctx, i.dead, f.o.Log) // which begins with FREE_ALL
		if err == nil {
			err = old.Close()
		}
		if err != nil {
			return nil, err
		}
	}
	l, err := f.v.Locks(ctx, i.name, f.o.Log)
	if err != nil {
		return nil, err
	}
	if err := i.keep(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	f.instance = i
	return l, nil
}

func (f *dirFS) closeLocks() error {
	if f.locks == nil {
		return nil
	}
	return errors.Join(f.locks.Close(), f.instance.end())
}

// Locks says where locks are kept, and why.
func (m *Mounted) Locks() string { return m.why }

// Done is closed when the directory is unmounted, by Unmount or by another program.
func (m *Mounted) Done() <-chan struct{} { return m.ready }

// Opens is how many files and directories are open there, in whatever mount namespace.
func (m *Mounted) Opens() int { return m.fs.open.count() }

// leaveTime is how long the end of a mount that is nowhere else takes at most on a busy machine.
const leaveTime = 5 * time.Second

// Unmount unmounts the directory; it fails with fusemount.ErrBusy while files there are open or processes are inside, unless it is lazy.
// What was written and closed is on the server then. Where another mount namespace has a copy of the mount, its calls fail from
// now on, and the end of this process ends it.
func (m *Mounted) Unmount(lazy bool) error {
	select {
	case <-m.ready:
	default:
		if err := fusemount.Unmount(m.dir, lazy); err != nil {
			return err
		}
		t := time.NewTimer(leaveTime)
		defer t.Stop()
		select {
		case <-m.ready:
		case <-t.C:
		}
	}
	err := m.Sync(m.fs.base)
	m.fs.stop()
	return errors.Join(err, m.fs.closeLocks())
}

// Sync makes durable what files still have unsynced: those whose last close failed to.
func (m *Mounted) Sync(ctx context.Context) error { return m.fs.nodes.sync(ctx, m.fs) }

// Abort ends every call that is under way with EIO, and all that come: Unmount does not wait for a server that is away then.
func (m *Mounted) Abort() { m.fs.stop() }

const wholeFile = math.MaxInt64
