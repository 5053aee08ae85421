package fusedir

import (
	"context"
	"errors"
	"io"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/sluice-storage/sluice/initiator/nfs"
)

// Create makes a file and opens it.
func (f *dirFS) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	return f.change(cancel, &in.InHeader, func(ctx context.Context, c *nfs.Caller, n *node) error {
		s := nfs.SetAttr{ModeSet: true, Mode: in.Mode & 0o7777}
		if in.Flags&syscall.O_TRUNC != 0 {
			s.SizeSet = true
		}
		o, err := c.Create(ctx, n.fh, name, s, in.Flags&syscall.O_EXCL != 0)
		if err != nil {
			return err
		}
		made := f.nodes.ref(o)
		if err = f.enter(ctx, made, c, name); err == nil {
			if err = made.stale(); err != nil && made.left() { // removed before it was open
				err = errors.Join(err, f.lastLeft(ctx, made, c))
			}
		}
		if err != nil {
			f.nodes.forget(made.id, 1)
			return err
		}
		f.entry(&out.EntryOut, made, &o.Attr)
		f.opened(made, c, &o.Attr, &out.OpenOut)
		return nil
	})
}

// Open opens a file: it asks for the rights, because reads may be served from a cache, and for the state of the data, because
// what is cached may be old (close-to-open).
func (f *dirFS) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return f.at(cancel, &in.InHeader, func(ctx context.Context, c *nfs.Caller, n *node) error {
		how := in.Flags & syscall.O_ACCMODE
		write := how != syscall.O_RDONLY || in.Flags&syscall.O_TRUNC != 0
		if write && f.o.ReadOnly {
			return syscall.EROFS
		}
		// The kernel opens a program that is executed with a flag of its own: execute permission is enough for that one.
		const fmodeExec = 0x20
		exec := in.Flags&fmodeExec != 0
		if err := f.enter(ctx, n, c, ""); err != nil {
			return err
		}
		err := f.may(ctx, c, n, how != syscall.O_WRONLY && !exec, write, exec)
		var a nfs.Attr
		if err == nil {
			a, err = c.Getattr(ctx, n.fh)
		}
		if err != nil {
			if n.left() {
				_ = f.lastLeft(ctx, n, c) // of a file that could not be opened there is nothing to tell but that
			}
			return err
		}
		f.opened(n, c, &a, out)
		return nil
	})
}

// opened completes an open that was entered.
func (f *dirFS) opened(n *node, c *nfs.Caller, a *nfs.Attr, out *fuse.OpenOut) {
	n.mu.Lock()
	now := versionOf(a)
	changed := n.cached != now
	n.cached = now
	n.mu.Unlock()
	if changed {
		// The data go because the flag is missing; the kernel's size may be old too, and OPEN has no room for a new one.
		f.srv.InodeNotify(n.id, -1, 0)
	} else {
		out.OpenFlags |= fuse.FOPEN_KEEP_CACHE
	}
	out.Fh = f.open.add(&handle{n: n, c: c})
}

// Read reads what the kernel has not cached.
func (f *dirFS) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	h := f.open.get(in.Fh)
	if h == nil {
		return nil, fuse.EBADF
	}
	r := f.begin(cancel, &in.InHeader)
	defer r.done()
	got := 0
	st := r.run(func() (err error) {
		if got, err = h.c.Read(r, h.n.theFile(), buf, int64(in.Offset)); errors.Is(err, io.EOF) {
			err = nil
		}
		return err
	})
	return fuse.ReadResultData(buf[:got]), st
}

func (n *node) theFile() *nfs.File {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.file
}

// Write writes through to the server.
func (f *dirFS) Write(cancel <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	h := f.open.get(in.Fh)
	if h == nil {
		return 0, fuse.EBADF
	}
	r := f.begin(cancel, &in.InHeader)
	defer r.done()
	st := r.run(func() error {
		if err := f.writable(); err != nil {
			return err
		}
		w, err := h.c.Write(r, h.n.theFile(), data, int64(in.Offset))
		if err == nil {
			h.n.wrote(w)
		}
		return err
	})
	if st != fuse.OK {
		return 0, st
	}
	return uint32(len(data)), fuse.OK
}

// Flush is called for each close(2): what was written is made durable, so that another client that opens the file sees it
// and a full disk is reported here. Closing any descriptor gives back the process's fcntl locks of the file.
func (f *dirFS) Flush(cancel <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	h := f.open.get(in.Fh)
	if h == nil {
		return fuse.EBADF
	}
	r := f.begin(cancel, &in.InHeader)
	defer r.done()
	return r.run(func() error {
		err := f.syncNode(r, h.c, h.n)
		return errors.Join(err, f.unlockAll(r, h.n, lockOwner(in.LockOwner, false)))
	})
}

// Fsync makes durable what was written, by whatever descriptor.
func (f *dirFS) Fsync(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	h := f.open.get(in.Fh)
	if h == nil {
		return fuse.EBADF
	}
	r := f.begin(cancel, &in.InHeader)
	defer r.done()
	return r.run(func() error { return f.syncNode(r, h.c, h.n) })
}

// FsyncDir has nothing to do: a server answers changes of directories when they are durable (RFC 1813 section 1.3 and 4.8).
func (f *dirFS) FsyncDir(<-chan struct{}, *fuse.FsyncIn) fuse.Status { return fuse.OK }

func (f *dirFS) syncNode(ctx context.Context, c *nfs.Caller, n *node) error {
	file := n.theFile()
	if file == nil {
		return nil
	}
	return c.Sync(ctx, file)
}

// Release ends an open file. The kernel does not wait for it, and reports none of its errors.
func (f *dirFS) Release(cancel <-chan struct{}, in *fuse.ReleaseIn) {
	h := f.open.drop(in.Fh)
	if h == nil {
		return
	}
	r := f.begin(nil, &in.InHeader)
	defer r.done()
	n := h.n
	last := n.left()
	_ = r.run(func() error {
		var err error
		if in.ReleaseFlags&fuse.FUSE_RELEASE_FLOCK_UNLOCK != 0 {
			err = f.unlockAll(r, n, lockOwner(in.LockOwner, true))
		}
		if last {
			err = errors.Join(err, f.lastLeft(r, n, h.c))
		}
		return err
	})
}
