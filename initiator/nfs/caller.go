package nfs

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"slices"

	"github.com/sluice-storage/sluice/initiator/rpcclient"
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/internal/xdr"
)

// Object is a file by its handle (RFC 1813 section 2.3.3), which names it for as long as it exists, whatever becomes of
// its name. The handle is the Object's own memory.
type Object struct {
	FH   []byte
	Attr Attr
}

// Identity is who calls: what AUTH_SYS tells the server (RFC 5531 appendix A). The server sees the first 16 groups.
type Identity struct {
	UID, GID uint32
	Groups   []uint32
}

// Caller makes calls by file handle as one identity: what a file system below a kernel needs, where FS serves programs
// that know paths. Errors are a Status where the server refused, others where it could not be asked. A Caller may be
// used by any goroutine, and is good for as long as its FS.
type Caller struct{ v *FS }

// As returns a Caller of another identity, over the same connection.
func (v *FS) As(id Identity) *Caller {
	w := &FS{rpc: v.rpc, root: v.root, machine: v.machine, stamp: v.stamp, rsize: v.rsize, wsize: v.wsize, dsize: v.dsize}
	sys := oncrpc.Sys{UID: id.UID, GID: id.GID}
	sys.NGroups = copy(sys.Groups[:], id.Groups)
	w.cred = rpcclient.Auth{Flavor: oncrpc.AuthSys, Body: sys.Append(nil, v.stamp, v.machine)}
	return &Caller{v: w}
}

// Self is the Caller of the identity that the URL named.
func (v *FS) Self() *Caller { return &Caller{v: v} }

// Root is the handle of the mounted directory; it is not to be changed.
func (v *FS) Root() []byte { return v.root }

// WriteSize is the most bytes that one WRITE carries.
func (v *FS) WriteSize() int { return v.wsize }

// Machine is what calls name as the client's host.
func (v *FS) Machine() string { return v.machine }

// Getattr asks for a file's attributes.
func (c *Caller) Getattr(ctx context.Context, fh []byte) (Attr, error) {
	return c.v.getattr(ctx, fh)
}

// Setattr changes attributes, and returns what the server says of the file afterwards, if it does.
func (c *Caller) Setattr(ctx context.Context, fh []byte, s SetAttr) (Wcc, error) {
	a := nfs3.SetattrArgs{FH: fh, Attr: s.wire()}
	var r nfs3.WccRes
	if err := c.v.call(ctx, nfs3.ProcSetattr, a.Append(nil), 0, r.Parse); err != nil {
		return wccOf(&r.Wcc), err
	}
	return wccOf(&r.Wcc), status(r.Status)
}

// Lookup resolves one name in a directory.
func (c *Caller) Lookup(ctx context.Context, dir []byte, name string) (Object, error) {
	o, err := c.v.lookup(ctx, dir, name)
	return Object{FH: o.fh, Attr: o.attr}, err
}

// Access reports which of the wanted rights (AccessRead and so on) the server grants.
func (c *Caller) Access(ctx context.Context, fh []byte, want uint32) (uint32, error) {
	a := nfs3.AccessArgs{FH: fh, Access: want}
	var r nfs3.AccessRes
	if err := c.v.call(ctx, nfs3.ProcAccess, a.Append(nil), 0, r.Parse); err != nil {
		return 0, err
	}
	return r.Access & want, status(r.Status)
}

// Readlink reads a symbolic link.
func (c *Caller) Readlink(ctx context.Context, fh []byte) (string, error) {
	return c.v.readlink(ctx, fh)
}

// Create makes a file or, unless excl is set, opens the one there is. With excl the server keeps a number of ours with
// the file, so that a call sent twice does not refuse itself (RFC 1813 section 3.3.8).
func (c *Caller) Create(ctx context.Context, dir []byte, name string, s SetAttr, excl bool) (Object, error) {
	where := nfs3.DirOp{Dir: dir, Name: []byte(name)}
	a := nfs3.CreateArgs{Where: where, How: nfs3.Unchecked, Attr: s.wire()}
	if excl {
		a.How = nfs3.Exclusive
		_, _ = rand.Read(a.Verf[:]) // never fails
	}
	o, err := c.v.made(ctx, nfs3.ProcCreate, a.Append(nil), &where)
	if excl && errors.Is(err, ErrNotSupported) {
		a.How = nfs3.Guarded
		o, err = c.v.made(ctx, nfs3.ProcCreate, a.Append(nil), &where)
		excl = false
	}
	if err == nil && excl {
		// The server may have put the number into the times: they are to be set too.
		s.Atime.How, s.Mtime.How = ServerTime, ServerTime
		if err = c.v.setattrOf(ctx, o.fh, s); err == nil {
			o.attr, err = c.v.getattr(ctx, o.fh)
		}
	}
	return Object{FH: o.fh, Attr: o.attr}, err
}

// Mkdir makes a directory.
func (c *Caller) Mkdir(ctx context.Context, dir []byte, name string, mode uint32) (Object, error) {
	where := nfs3.DirOp{Dir: dir, Name: []byte(name)}
	a := nfs3.MkdirArgs{Where: where, Attr: nfs3.SetAttr{ModeSet: true, Mode: mode}}
	o, err := c.v.made(ctx, nfs3.ProcMkdir, a.Append(nil), &where)
	return Object{FH: o.fh, Attr: o.attr}, err
}

// Mknod makes a FIFO, a socket or a device's node.
func (c *Caller) Mknod(ctx context.Context, dir []byte, name string, t FileType, mode, major, minor uint32) (Object, error) {
	where := nfs3.DirOp{Dir: dir, Name: []byte(name)}
	a := nfs3.MknodArgs{Where: where, Type: nfs3.FileType(t), Attr: nfs3.SetAttr{ModeSet: true, Mode: mode}, Major: major, Minor: minor}
	o, err := c.v.made(ctx, nfs3.ProcMknod, a.Append(nil), &where)
	return Object{FH: o.fh, Attr: o.attr}, err
}

// Symlink makes a symbolic link.
func (c *Caller) Symlink(ctx context.Context, dir []byte, name, target string) (Object, error) {
	where := nfs3.DirOp{Dir: dir, Name: []byte(name)}
	if err := c.v.symlink(ctx, where, target); err != nil {
		return Object{}, err
	}
	return c.Lookup(ctx, dir, name)
}

// Remove removes a file's name, or with isDir an empty directory.
func (c *Caller) Remove(ctx context.Context, dir []byte, name string, isDir bool) error {
	t := TypeRegular
	if isDir {
		t = TypeDir
	}
	return c.v.removeObject(ctx, nfs3.DirOp{Dir: dir, Name: []byte(name)}, t)
}

// Rename moves a name, in place of what has the new one.
func (c *Caller) Rename(ctx context.Context, dir []byte, name string, toDir []byte, to string) error {
	a := nfs3.RenameArgs{From: nfs3.DirOp{Dir: dir, Name: []byte(name)}, To: nfs3.DirOp{Dir: toDir, Name: []byte(to)}}
	var r nfs3.RenameRes
	if err := c.v.call(ctx, nfs3.ProcRename, a.Append(nil), 0, r.Parse); err != nil {
		return err
	}
	return status(r.Status)
}

// Link gives a file one more name, and returns its attributes.
func (c *Caller) Link(ctx context.Context, fh, dir []byte, name string) (Attr, error) {
	a := nfs3.LinkArgs{FH: fh, Link: nfs3.DirOp{Dir: dir, Name: []byte(name)}}
	var r nfs3.LinkRes
	if err := c.v.call(ctx, nfs3.ProcLink, a.Append(nil), 0, r.Parse); err != nil {
		return Attr{}, err
	}
	if r.Status != nfs3.OK {
		return Attr{}, status(r.Status)
	}
	if !r.Attr.Set {
		return c.v.getattr(ctx, fh)
	}
	return attrOf(&r.Attr.Attr), nil
}

// DirEntry is one name of a directory. FH and Attr are there if the server gave them.
type DirEntry struct {
	Name   string
	FileID uint64
	Cookie uint64 // where the listing goes on after this name
	FH     []byte
	Attr   OptAttr
}

// DirPage is a position in a listing: what the next Readdirplus is to be given.
type DirPage struct {
	Cookie uint64
	Verf   [8]byte
	EOF    bool
}

// Readdirplus lists a part of a directory, from at on, and moves at behind it. ErrBadCookie means that the directory has
// changed too much for the listing to go on.
func (c *Caller) Readdirplus(ctx context.Context, dir []byte, at *DirPage) ([]DirEntry, error) {
	a := nfs3.ReaddirArgs{Plus: true, Dir: dir, Cookie: at.Cookie, Verf: at.Verf, DirCount: uint32(c.v.dsize), MaxCount: uint32(c.v.dsize)}
	var r nfs3.ReaddirRes
	var l []DirEntry
	var bad error
	err := c.v.call(ctx, nfs3.ProcReaddirplus, a.Append(nil), c.v.dsize, func(x *xdr.Reader) {
		if r.Parse(x); r.Status != nfs3.OK {
			return
		}
		at.Verf = r.Verf
		for {
			e := nfs3.Entry{Plus: true}
			more, end := e.Parse(x)
			if !more {
				at.EOF = end
				return
			}
			if bad = checkName(string(e.Name)); bad != nil {
				return
			}
			l = append(l, DirEntry{Name: string(e.Name), FileID: e.FileID, Cookie: e.Cookie, FH: slices.Clone([]byte(e.FH)), Attr: optAttrOf(&e.Attr)})
		}
	})
	if err = cmp.Or(err, bad); err != nil {
		return nil, err
	}
	if r.Status != nfs3.OK {
		return nil, status(r.Status)
	}
	before := at.Cookie
	if len(l) > 0 {
		at.Cookie = l[len(l)-1].Cookie
	}
	if !at.EOF && at.Cookie == before {
		return nil, errNoProgress // it would be asked for ever
	}
	return l, nil
}

// Statfs asks how full the file system is.
func (c *Caller) Statfs(ctx context.Context) (Space, error) { return c.v.Statfs(ctx) }

// Open returns a File by handle. Its own methods call as this Caller; all who share a file on one machine share one
// File, so that what the server forgot is sent again in the order it was written in.
func (c *Caller) Open(fh []byte, name string) *File {
	return &File{v: c.v, name: name, fh: fh}
}

// Read reads from a File as this Caller, like ReadAt.
func (c *Caller) Read(ctx context.Context, f *File, p []byte, off int64) (int, error) {
	return f.readAt(ctx, c.v, p, off)
}

// Write writes to a File as this Caller, like WriteAt. The Wcc is the server's, where one WRITE did it all.
func (c *Caller) Write(ctx context.Context, f *File, p []byte, off int64) (Wcc, error) {
	if len(p) > c.v.wsize {
		return Wcc{}, f.writeAt(ctx, c.v, p, off)
	}
	w, err := f.write(ctx, c.v, p, off)
	if err == nil {
		err = f.limitDirty(ctx)
	}
	return wccOf(&w), err
}

// Sync is File.Sync with a context.
func (c *Caller) Sync(ctx context.Context, f *File) error { return f.sync(ctx, c.v) }
