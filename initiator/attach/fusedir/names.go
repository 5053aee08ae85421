package fusedir

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/initiator/nfs"
)

// dirFS answers the kernel. What it does not define the library answers with ENOSYS, which the kernel takes as "not this
// file system": extended attributes, fallocate, SEEK_DATA, copy_file_range, O_TMPFILE.
type dirFS struct {
	fuse.RawFileSystem
	v                 *nfs.FS
	self              *nfs.Caller
	o                 Options
	attrFor, entryFor time.Duration
	nodes             nodes
	open              handles
	locks             *nfs.Locks // nil: the kernel keeps locks
	instance          *instance
	srv               *fuse.Server
	base              context.Context
	stop              context.CancelFunc
}

func (f *dirFS) String() string       { return "sluice-nfs" }
func (f *dirFS) Init(s *fuse.Server)  { f.srv = s }
func (f *dirFS) Forget(id, n uint64)  { f.nodes.forget(id, n) }
func (f *dirFS) writable() error      { return map[bool]error{true: syscall.EROFS}[f.o.ReadOnly] }
func (f *dirFS) node(id uint64) *node { return f.nodes.get(id) }

// at runs g for a request on a node.
func (f *dirFS) at(cancel <-chan struct{}, h *fuse.InHeader, g func(ctx context.Context, c *nfs.Caller, n *node) error) fuse.Status {
	n := f.node(h.NodeId)
	if n == nil {
		return fuse.Status(syscall.ESTALE)
	}
	r := f.begin(cancel, h)
	defer r.done()
	c := f.caller(h)
	return r.run(func() error { return g(r, c, n) })
}

// change is at for what a read-only mount refuses.
func (f *dirFS) change(cancel <-chan struct{}, h *fuse.InHeader, g func(ctx context.Context, c *nfs.Caller, n *node) error) fuse.Status {
	return f.at(cancel, h, func(ctx context.Context, c *nfs.Caller, n *node) error {
		if err := f.writable(); err != nil {
			return err
		}
		return g(ctx, c, n)
	})
}

// Lookup resolves a name.
func (f *dirFS) Lookup(cancel <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	return f.at(cancel, h, func(ctx context.Context, c *nfs.Caller, n *node) error {
		o, err := c.Lookup(ctx, n.fh, name)
		if err == nil {
			f.entry(out, f.nodes.ref(o), &o.Attr)
		}
		return err
	})
}

// GetAttr asks the server; the kernel asks when its attributes are older than AttrTimeout.
func (f *dirFS) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	return f.at(cancel, &in.InHeader, func(ctx context.Context, c *nfs.Caller, n *node) error {
		a, err := c.Getattr(ctx, n.fh)
		if err == nil {
			f.attr(out, &a)
		}
		return err
	})
}

// SetAttr changes attributes. A change of size goes out after what was written: unsynced data must not come back beyond the
// new end.
func (f *dirFS) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	return f.change(cancel, &in.InHeader, func(ctx context.Context, c *nfs.Caller, n *node) error {
		s, ok := sattr(in)
		if !ok {
			return syscall.EOVERFLOW
		}
		if id, ok := in.GetFh(); ok {
			if h := f.open.get(id); h != nil && s.SizeSet {
				c = h.c // ftruncate(2) has the rights of the descriptor
			}
		}
		if s.SizeSet {
			if err := f.syncNode(ctx, c, n); err != nil {
				return err
			}
		}
		w, err := c.Setattr(ctx, n.fh, s)
		if err != nil {
			return err
		}
		n.wrote(w)
		a := w.After.Attr
		if !w.After.Set {
			if a, err = c.Getattr(ctx, n.fh); err != nil {
				return err
			}
		}
		f.attr(out, &a)
		return nil
	})
}

// Access asks the server, for access(2) and chdir(2).
func (f *dirFS) Access(cancel <-chan struct{}, in *fuse.AccessIn) fuse.Status {
	return f.at(cancel, &in.InHeader, func(ctx context.Context, c *nfs.Caller, n *node) error {
		if in.Mask&fuse.W_OK != 0 && f.o.ReadOnly {
			return syscall.EROFS
		}
		return f.may(ctx, c, n, in.Mask&fuse.R_OK != 0, in.Mask&fuse.W_OK != 0, in.Mask&fuse.X_OK != 0)
	})
}

func (f *dirFS) may(ctx context.Context, c *nfs.Caller, n *node, read, write, exec bool) error {
	var want uint32
	if read {
		want |= nfs.AccessRead
	}
	if exec {
		want |= map[bool]uint32{true: nfs.AccessLookup, false: nfs.AccessExecute}[n.dir]
	}
	if write {
		want |= nfs.AccessModify | nfs.AccessExtend
	}
	if want == 0 {
		return nil
	}
	got, err := c.Access(ctx, n.fh, want)
	if err == nil && got != want {
		err = syscall.EACCES
	}
	return err
}

// Readlink reads a symbolic link.
func (f *dirFS) Readlink(cancel <-chan struct{}, h *fuse.InHeader) (out []byte, code fuse.Status) {
	code = f.at(cancel, h, func(ctx context.Context, c *nfs.Caller, n *node) error {
		s, err := c.Readlink(ctx, n.fh)
		out = []byte(s)
		return err
	})
	return out, code
}

// made tells the kernel of a new name.
func (f *dirFS) made(out *fuse.EntryOut, o nfs.Object, err error) error {
	if err == nil {
		f.entry(out, f.nodes.ref(o), &o.Attr)
	}
	return err
}

// Mkdir makes a directory.
func (f *dirFS) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	return f.change(cancel, &in.InHeader, func(ctx context.Context, c *nfs.Caller, n *node) error {
		o, err := c.Mkdir(ctx, n.fh, name, in.Mode&0o7777)
		return f.made(out, o, err)
	})
}

// Mknod makes a file of any type.
func (f *dirFS) Mknod(cancel <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	return f.change(cancel, &in.InHeader, func(ctx context.Context, c *nfs.Caller, n *node) error {
		mode := in.Mode & 0o7777
		switch in.Mode & syscall.S_IFMT {
		case syscall.S_IFREG, 0:
			o, err := c.Create(ctx, n.fh, name, nfs.SetAttr{ModeSet: true, Mode: mode}, true)
			return f.made(out, o, err)
		case syscall.S_IFDIR, syscall.S_IFLNK:
			return syscall.EINVAL
		}
		for t, m := range modes {
			if m == in.Mode&syscall.S_IFMT {
				o, err := c.Mknod(ctx, n.fh, name, t, mode, unix.Major(uint64(in.Rdev)), unix.Minor(uint64(in.Rdev)))
				return f.made(out, o, err)
			}
		}
		return syscall.EINVAL
	})
}

// Symlink makes a symbolic link.
func (f *dirFS) Symlink(cancel <-chan struct{}, h *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	return f.change(cancel, h, func(ctx context.Context, c *nfs.Caller, n *node) error {
		o, err := c.Symlink(ctx, n.fh, name, target)
		return f.made(out, o, err)
	})
}

// Link gives a file one more name.
func (f *dirFS) Link(cancel <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	return f.change(cancel, &in.InHeader, func(ctx context.Context, c *nfs.Caller, n *node) error {
		old := f.node(in.Oldnodeid)
		if old == nil {
			return syscall.ESTALE
		}
		a, err := c.Link(ctx, old.fh, n.fh, name)
		return f.made(out, nfs.Object{FH: old.fh, Attr: a}, err)
	})
}

// Unlink removes a name. A file that is open here and has no other name is renamed instead, and removed when it is closed.
func (f *dirFS) Unlink(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return f.change(cancel, h, func(ctx context.Context, c *nfs.Caller, n *node) error {
		return f.displace(ctx, c, n.fh, name, nil, func(was bool) error {
			if was {
				return nil
			}
			return c.Remove(ctx, n.fh, name, false)
		})
	})
}

// Rmdir removes an empty directory.
func (f *dirFS) Rmdir(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return f.change(cancel, h, func(ctx context.Context, c *nfs.Caller, n *node) error {
		return c.Remove(ctx, n.fh, name, true)
	})
}

// Rename moves a name. NFS version 3 has none of the flags of renameat2(2).
func (f *dirFS) Rename(cancel <-chan struct{}, in *fuse.RenameIn, from, to string) fuse.Status {
	return f.change(cancel, &in.InHeader, func(ctx context.Context, c *nfs.Caller, n *node) error {
		dir := f.node(in.Newdir)
		if dir == nil {
			return syscall.ESTALE
		}
		if in.Flags != 0 {
			return syscall.EINVAL
		}
		rename := func(bool) error { return c.Rename(ctx, n.fh, from, dir.fh, to) }
		source := func() ([]byte, error) {
			src, err := c.Lookup(ctx, n.fh, from)
			return src.FH, err
		}
		if err := f.displace(ctx, c, dir.fh, to, source, rename); !errors.Is(err, nfs.ErrNoEntry) {
			return err
		}
		return rename(false)
	})
}

// StatFs asks how full the export is.
func (f *dirFS) StatFs(cancel <-chan struct{}, h *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	return f.at(cancel, h, func(ctx context.Context, c *nfs.Caller, _ *node) error {
		s, err := c.Statfs(ctx)
		const unit = 4096
		out.Blocks, out.Bfree, out.Bavail = s.Total/unit, s.Free/unit, s.Avail/unit
		out.Files, out.Ffree = s.Files, s.FilesFree
		out.Bsize, out.Frsize, out.NameLen = unit, unit, 255
		return err
	})
}
