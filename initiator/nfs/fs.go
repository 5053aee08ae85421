package nfs

import (
	"bytes"
	"context"
	"io/fs"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/sluice-storage/sluice/initiator/rpcclient"
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/xdr"
)

var (
	_ fs.ReadDirFS  = (*FS)(nil)
	_ fs.StatFS     = (*FS)(nil)
	_ fs.ReadFileFS = (*FS)(nil)
	_ fs.ReadLinkFS = (*FS)(nil)
	_ fs.SubFS      = (*FS)(nil)
)

// Info describes a file; it is the fs.FileInfo of this package, and Sys returns the attributes as the server gave them.
type Info struct {
	name string
	attr Attr
	fh   []byte // nil in a listing
}

// Name is the last element of the path.
func (i *Info) Name() string { return i.name }

// Size is the length in bytes.
func (i *Info) Size() int64 { return int64(i.attr.Size) }

// ModTime is the time of the last change of the data.
func (i *Info) ModTime() time.Time { return i.attr.Mtime.Go() }

// IsDir reports a directory.
func (i *Info) IsDir() bool { return i.attr.Type == TypeDir }

// Sys is an *Attr.
func (i *Info) Sys() any { return &i.attr }

// UID is the owner.
func (i *Info) UID() uint32 { return i.attr.UID }

// GID is the group.
func (i *Info) GID() uint32 { return i.attr.GID }

// SameFile reports that two descriptions are of one file: by its handle, or, within one server, by file system and number.
func SameFile(a, b *Info, oneServer bool) bool {
	if a.fh != nil && bytes.Equal(a.fh, b.fh) {
		return true
	}
	return oneServer && a.attr.FSID == b.attr.FSID && a.attr.FileID == b.attr.FileID
}

// Links is the number of names.
func (i *Info) Links() uint32 { return i.attr.Nlink }

// Inode identifies the file within its file system.
func (i *Info) Inode() uint64 { return i.attr.FileID }

// Mode is type and permissions.
func (i *Info) Mode() fs.FileMode {
	m := fs.FileMode(i.attr.Mode & 0o777)
	for bit, set := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if i.attr.Mode&bit != 0 {
			m |= set
		}
	}
	switch i.attr.Type {
	case TypeDir:
		m |= fs.ModeDir
	case TypeSymlink:
		m |= fs.ModeSymlink
	case TypeBlock:
		m |= fs.ModeDevice
	case TypeChar:
		m |= fs.ModeDevice | fs.ModeCharDevice
	case TypeSocket:
		m |= fs.ModeSocket
	case TypeFIFO:
		m |= fs.ModeNamedPipe
	}
	return m
}

func wireMode(m fs.FileMode) uint32 {
	w := uint32(m.Perm())
	if m&fs.ModeSetuid != 0 {
		w |= 0o4000
	}
	if m&fs.ModeSetgid != 0 {
		w |= 0o2000
	}
	if m&fs.ModeSticky != 0 {
		w |= 0o1000
	}
	return w
}

// object is a resolved name.
type object struct {
	fh   []byte
	attr Attr
}

// walk resolves a slash-separated path from the root. Links in the middle are followed, and the last one if follow is
// set, within the mount: an absolute target begins at its root, and ".." does not leave it.
func (v *FS) walk(ctx context.Context, name string, follow bool) (object, error) {
	todo := parts(name)
	stack := []object{{fh: v.root}}
	links := 0
	for len(todo) > 0 {
		elem := todo[0]
		todo = todo[1:]
		if elem == ".." {
			if len(stack) > 1 {
				stack = stack[:len(stack)-1]
			}
			continue
		}
		o, err := v.lookup(ctx, stack[len(stack)-1].fh, elem)
		if err != nil {
			return object{}, err
		}
		if o.attr.Type == TypeSymlink && (follow || len(todo) > 0) {
			if links++; links > maxLinks {
				return object{}, ErrLoop
			}
			target, err := v.readlink(ctx, o.fh)
			if err != nil {
				return object{}, err
			}
			if strings.HasPrefix(target, "/") {
				stack = stack[:1]
			}
			todo = append(parts(target), todo...)
			continue
		}
		stack = append(stack, o)
	}
	o := stack[len(stack)-1]
	if len(stack) == 1 {
		var err error
		o.attr, err = v.getattr(ctx, o.fh)
		return o, err
	}
	return o, nil
}

func parts(name string) []string {
	return slices.DeleteFunc(strings.Split(name, "/"), func(s string) bool { return s == "" || s == "." })
}

func (v *FS) lookup(ctx context.Context, dir []byte, name string) (object, error) {
	a := nfs3.DirOp{Dir: dir, Name: []byte(name)}
	var r nfs3.LookupRes
	if err := v.call(ctx, nfs3.ProcLookup, a.Append(nil), 0, r.Parse); err != nil {
		return object{}, err
	}
	if r.Status != nfs3.OK {
		return object{}, status(r.Status)
	}
	o := object{fh: slices.Clone(r.FH), attr: attrOf(&r.Attr.Attr)}
	if !r.Attr.Set {
		var err error
		o.attr, err = v.getattr(ctx, o.fh)
		return o, err
	}
	return o, nil
}

func (v *FS) getattr(ctx context.Context, fh []byte) (Attr, error) {
	a := nfs3.FHArgs{FH: fh}
	var r nfs3.AttrRes
	if err := v.call(ctx, nfs3.ProcGetattr, a.Append(nil), 0, r.Parse); err != nil {
		return Attr{}, err
	}
	if r.Status != nfs3.OK {
		return Attr{}, status(r.Status)
	}
	return attrOf(&r.Attr), nil
}

func (v *FS) readlink(ctx context.Context, fh []byte) (string, error) {
	a := nfs3.FHArgs{FH: fh}
	c := rpcclient.Call{Prog: nfs3.Prog, Vers: nfs3.Vers, Proc: uint32(nfs3.ProcReadlink), Cred: v.cred, Args: a.Append(nil), Sink: make([]byte, nfs3.MaxPath)}
	if err := v.do(ctx, &c); err != nil {
		return "", err
	}
	var r nfs3.ReadlinkRes
	res := xdr.NewReader(c.Results)
	r.Parse(&res)
	if err := res.Err(); err != nil {
		return "", err
	}
	if r.Status != nfs3.OK {
		return "", status(r.Status)
	}
	if r.Len > nfs3.MaxPath {
		return "", &xdr.LimitError{Len: r.Len, Max: nfs3.MaxPath}
	}
	if err := c.Result(res.Rest(), int(r.Len)); err != nil {
		return "", err
	}
	return string(c.Sink[:r.Len]), nil
}

// dirOf resolves the directory of a name that is about to be made or removed.
func (v *FS) dirOf(ctx context.Context, name string) (nfs3.DirOp, error) {
	dir, base := path.Split(path.Clean("/" + name))
	if base == "" {
		return nfs3.DirOp{}, fs.ErrInvalid
	}
	o, err := v.walk(ctx, dir, true)
	return nfs3.DirOp{Dir: o.fh, Name: []byte(base)}, err
}

// Stat follows symbolic links; Lstat does not.
func (v *FS) Stat(name string) (fs.FileInfo, error) {
	if !fs.ValidPath(name) {
		return nil, pathError("stat", name, fs.ErrInvalid)
	}
	i, err := v.StatContext(context.Background(), name)
	if err != nil {
		return nil, err
	}
	return i, nil
}

// StatContext is Stat with a context.
func (v *FS) StatContext(ctx context.Context, name string) (*Info, error) {
	o, err := v.walk(ctx, name, true)
	if err != nil {
		return nil, pathError("stat", name, err)
	}
	return &Info{name: path.Base(name), attr: o.attr, fh: o.fh}, nil
}

// Lstat describes a name itself, be it a symbolic link.
func (v *FS) Lstat(name string) (fs.FileInfo, error) {
	if !fs.ValidPath(name) {
		return nil, pathError("lstat", name, fs.ErrInvalid)
	}
	i, err := v.LstatContext(context.Background(), name)
	if err != nil {
		return nil, err
	}
	return i, nil
}

// LstatContext is Lstat with a context.
func (v *FS) LstatContext(ctx context.Context, name string) (*Info, error) {
	o, err := v.walk(ctx, name, false)
	if err != nil {
		return nil, pathError("lstat", name, err)
	}
	return &Info{name: path.Base(name), attr: o.attr, fh: o.fh}, nil
}

// ReadLink returns the target of a symbolic link.
func (v *FS) ReadLink(name string) (string, error) {
	if !fs.ValidPath(name) {
		return "", pathError("readlink", name, fs.ErrInvalid)
	}
	return v.ReadLinkContext(context.Background(), name)
}

// ReadLinkContext is ReadLink with a context.
func (v *FS) ReadLinkContext(ctx context.Context, name string) (string, error) {
	o, err := v.walk(ctx, name, false)
	if err == nil {
		var s string
		if s, err = v.readlink(ctx, o.fh); err == nil {
			return s, nil
		}
	}
	return "", pathError("readlink", name, err)
}

// made checks the result of a call that makes a name.
func (v *FS) made(ctx context.Context, p nfs3.Proc, args []byte, where *nfs3.DirOp) (object, error) {
	var r nfs3.CreateRes
	if err := v.call(ctx, p, args, 0, r.Parse); err != nil {
		return object{}, err
	}
	if r.Status != nfs3.OK {
		return object{}, status(r.Status)
	}
	if r.FH == nil || !r.Attr.Set {
		return v.lookup(ctx, where.Dir, string(where.Name))
	}
	return object{fh: slices.Clone(r.FH), attr: attrOf(&r.Attr.Attr)}, nil
}

// Mkdir makes a directory.
func (v *FS) Mkdir(ctx context.Context, name string, perm fs.FileMode) error {
	where, err := v.dirOf(ctx, name)
	if err == nil {
		a := nfs3.MkdirArgs{Where: where, Attr: nfs3.SetAttr{ModeSet: true, Mode: wireMode(perm)}}
		_, err = v.made(ctx, nfs3.ProcMkdir, a.Append(nil), &where)
	}
	return pathError("mkdir", name, err)
}

// Symlink makes name a symbolic link to target.
func (v *FS) Symlink(ctx context.Context, target, name string) error {
	where, err := v.dirOf(ctx, name)
	if err == nil {
		err = v.symlink(ctx, where, target)
	}
	return pathError("symlink", name, err)
}

func (v *FS) symlink(ctx context.Context, where nfs3.DirOp, target string) error {
	a := nfs3.SymlinkArgs{MkdirArgs: nfs3.MkdirArgs{Where: where}, PathLen: uint32(len(target))}
	c := rpcclient.Call{Prog: nfs3.Prog, Vers: nfs3.Vers, Proc: uint32(nfs3.ProcSymlink), Cred: v.cred, Args: a.Append(nil), Data: []byte(target)}
	if err := v.do(ctx, &c); err != nil {
		return err
	}
	var r nfs3.CreateRes
	res := xdr.NewReader(c.Results)
	r.Parse(&res)
	if err := res.Err(); err != nil {
		return err
	}
	return status(r.Status)
}

// Remove removes a file or an empty directory.
func (v *FS) Remove(ctx context.Context, name string) error {
	where, err := v.dirOf(ctx, name)
	if err == nil {
		var o object
		if o, err = v.lookup(ctx, where.Dir, string(where.Name)); err == nil {
			err = v.removeObject(ctx, where, o.attr.Type)
		}
	}
	return pathError("remove", name, err)
}

// removeObject removes a name of a file of a type.
func (v *FS) removeObject(ctx context.Context, where nfs3.DirOp, t FileType) error {
	p := nfs3.ProcRemove
	if t == TypeDir {
		p = nfs3.ProcRmdir
	}
	var r nfs3.WccRes
	if err := v.call(ctx, p, where.Append(nil), 0, r.Parse); err != nil {
		return err
	}
	return status(r.Status)
}

// Rename gives a file another name, in place of what has it.
func (v *FS) Rename(ctx context.Context, from, to string) error {
	a, err := v.dirOf(ctx, from)
	if err == nil {
		var b nfs3.DirOp
		if b, err = v.dirOf(ctx, to); err == nil {
			args := nfs3.RenameArgs{From: a, To: b}
			var r nfs3.RenameRes
			if err = v.call(ctx, nfs3.ProcRename, args.Append(nil), 0, r.Parse); err == nil {
				err = status(r.Status)
			}
		}
	}
	return pathError("rename", from, err)
}

// Link gives a file one more name.
func (v *FS) Link(ctx context.Context, old, name string) error {
	o, err := v.walk(ctx, old, false)
	if err == nil {
		a := nfs3.LinkArgs{FH: o.fh}
		if a.Link, err = v.dirOf(ctx, name); err == nil {
			var r nfs3.LinkRes
			if err = v.call(ctx, nfs3.ProcLink, a.Append(nil), 0, r.Parse); err == nil {
				err = status(r.Status)
			}
		}
	}
	return pathError("link", name, err)
}

func (v *FS) setattr(ctx context.Context, name string, s SetAttr) error {
	o, err := v.walk(ctx, name, true)
	if err == nil {
		err = v.setattrOf(ctx, o.fh, s)
	}
	return pathError("setattr", name, err)
}

func (v *FS) setattrOf(ctx context.Context, fh []byte, s SetAttr) error {
	a := nfs3.SetattrArgs{FH: fh, Attr: s.wire()}
	var r nfs3.WccRes
	if err := v.call(ctx, nfs3.ProcSetattr, a.Append(nil), 0, r.Parse); err != nil {
		return err
	}
	return status(r.Status)
}

// Chmod sets permissions.
func (v *FS) Chmod(ctx context.Context, name string, m fs.FileMode) error {
	return v.setattr(ctx, name, SetAttr{ModeSet: true, Mode: wireMode(m)})
}

// Chown sets owner and group.
func (v *FS) Chown(ctx context.Context, name string, uid, gid uint32) error {
	return v.setattr(ctx, name, SetAttr{UIDSet: true, UID: uid, GIDSet: true, GID: gid})
}

// Chtimes sets the times of access and change. A zero time leaves the file its own. NFS version 3 begins in 1970 and ends in 2106:
// other times are fs.ErrInvalid.
func (v *FS) Chtimes(ctx context.Context, name string, atime, mtime time.Time) error {
	var s SetAttr
	for t, into := range map[*time.Time]*SetTime{&atime: &s.Atime, &mtime: &s.Mtime} {
		switch {
		case t.IsZero():
		case t.Unix() < 0 || t.Unix() > math.MaxUint32:
			return pathError("chtimes", name, fs.ErrInvalid)
		default:
			*into = SetTime{How: ClientTime, Time: Time{Sec: uint32(t.Unix()), Nsec: uint32(t.Nanosecond())}}
		}
	}
	return v.setattr(ctx, name, s)
}

// Truncate sets a file's size.
func (v *FS) Truncate(ctx context.Context, name string, size int64) error {
	if size < 0 {
		return pathError("truncate", name, fs.ErrInvalid)
	}
	return v.setattr(ctx, name, SetAttr{SizeSet: true, Size: uint64(size)})
}

// Space is how full a file system is, in bytes and files.
type Space struct{ Total, Free, Avail, Files, FilesFree uint64 }

// Statfs asks how full the file system is.
func (v *FS) Statfs(ctx context.Context) (Space, error) {
	a := nfs3.FHArgs{FH: v.root}
	var r nfs3.FsstatRes
	if err := v.call(ctx, nfs3.ProcFsstat, a.Append(nil), 0, r.Parse); err != nil {
		return Space{}, err
	}
	if r.Status != nfs3.OK {
		return Space{}, status(r.Status)
	}
	return Space{Total: r.Total, Free: r.Free, Avail: r.Avail, Files: r.Files, FilesFree: r.FFree}, nil
}
