package fusedir

import (
	"context"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/sluice-storage/sluice/initiator/nfs"
)

// OpenDir opens a directory for listing.
func (f *dirFS) OpenDir(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return f.at(cancel, &in.InHeader, func(ctx context.Context, c *nfs.Caller, n *node) error {
		if err := f.may(ctx, c, n, true, false, false); err != nil {
			return err
		}
		out.Fh = f.open.add(&handle{n: n, c: c})
		return nil
	})
}

// ReleaseDir ends a listing.
func (f *dirFS) ReleaseDir(in *fuse.ReleaseIn) { f.open.drop(in.Fh) }

// ReadDir lists names only.
func (f *dirFS) ReadDir(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return f.list(cancel, in, func(e *nfs.DirEntry, d fuse.DirEntry) bool { return out.AddDirEntry(d) })
}

// ReadDirPlus lists names with their attributes, which saves the kernel a LOOKUP each.
func (f *dirFS) ReadDirPlus(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return f.list(cancel, in, func(e *nfs.DirEntry, d fuse.DirEntry) bool {
		eo := out.AddDirLookupEntry(d)
		if eo == nil {
			return false
		}
		// Without a handle the kernel is told of the name only. It counts no reference for "." and "..".
		if e.FH != nil && e.Attr.Set && e.Name != "." && e.Name != ".." {
			f.entry(eo, f.nodes.ref(nfs.Object{FH: e.FH, Attr: e.Attr.Attr}), &e.Attr.Attr)
		}
		return true
	})
}

// list gives entries from the position in.Offset on, which is a cookie of the server's or 0, until add has no more room.
func (f *dirFS) list(cancel <-chan struct{}, in *fuse.ReadIn, add func(*nfs.DirEntry, fuse.DirEntry) bool) fuse.Status {
	h := f.open.get(in.Fh)
	if h == nil {
		return fuse.EBADF
	}
	r := f.begin(cancel, &in.InHeader)
	defer r.done()
	h.mu.Lock()
	defer h.mu.Unlock()
	return r.run(func() error {
		at := in.Offset
		for {
			l, err := h.afterLocked(r, at)
			if err != nil || len(l) == 0 {
				return err
			}
			for i := range l {
				e := &l[i]
				d := fuse.DirEntry{Name: e.Name, Ino: e.FileID, Off: e.Cookie}
				if e.Attr.Set {
					d.Mode = modes[e.Attr.Attr.Type]
				}
				if !add(e, d) {
					return nil
				}
				at = e.Cookie
			}
			if at != in.Offset && !h.page.EOF {
				return nil // what there is; the kernel comes back for more
			}
		}
	})
}

// afterLocked returns the entries behind a position, from what was fetched last if they are there; none at the end. The lock is
// held.
func (h *handle) afterLocked(ctx context.Context, at uint64) ([]nfs.DirEntry, error) {
	if h.begun && at != 0 {
		if at == h.from {
			return h.list, nil
		}
		for i := range h.list {
			if h.list[i].Cookie == at {
				if i+1 < len(h.list) {
					return h.list[i+1:], nil
				}
				break
			}
		}
		if h.page.EOF && at == h.page.Cookie {
			return nil, nil
		}
	}
	page := nfs.DirPage{Cookie: at, Verf: h.page.Verf}
	if at == 0 {
		page.Verf = [8]byte{}
	}
	l, err := h.c.Readdirplus(ctx, h.n.fh, &page)
	if err != nil {
		return nil, err
	}
	h.list, h.from, h.page, h.begun = l, at, page, true
	return l, nil
}

// Lseek positions in listings are the kernel's affair; in files SEEK_DATA and SEEK_HOLE are not NFS version 3's.
func (f *dirFS) Lseek(<-chan struct{}, *fuse.LseekIn, *fuse.LseekOut) fuse.Status {
	return fuse.Status(syscall.ENOSYS)
}
