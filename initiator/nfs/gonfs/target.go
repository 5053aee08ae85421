package gonfs

import (
	"context"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluice-storage/sluice/initiator/nfs"
)

// Target is a mounted directory. Its methods may be called by any goroutine. Paths begin at the mounted directory, and symbolic links
// are not followed.
type Target struct {
	fs      *nfs.FS
	caller  *nfs.Caller
	timeout *atomic.Int64 // of each call, nanoseconds; 0 for none
}

func newTarget(v *nfs.FS) *Target {
	return &Target{fs: v, caller: v.Self(), timeout: new(atomic.Int64)}
}

// Close ends the connection.
func (v *Target) Close() error { return v.fs.Close() }

// SetTimeout bounds each later call; 0 lets a call wait for a server that is away.
func (v *Target) SetTimeout(d time.Duration) { v.timeout.Store(int64(d)) }

func (v *Target) ctx() (context.Context, context.CancelFunc) {
	if d := v.timeout.Load(); d > 0 {
		return context.WithTimeout(context.Background(), time.Duration(d))
	}
	return context.Background(), func() {}
}

// FSInfo asks what the server can do.
func (v *Target) FSInfo() (*FSInfo, error) {
	ctx, end := v.ctx()
	defer end()
	i, err := v.fs.FSInfo(ctx)
	if err != nil {
		return nil, refusal(err)
	}
	return &FSInfo{
		Attr: postOp(i.Attr), RTMax: i.ReadMax, RTPref: i.ReadPref, RTMult: i.ReadMult, WTMax: i.WriteMax, WTPref: i.WritePref, WTMult: i.WriteMult,
		DTPref: i.DirPref, Size: i.MaxFileSize, TimeDelta: timeOf(i.TimeDelta), Properties: i.Properties,
	}, nil
}

// Lookup returns a file's attributes and handle.
func (v *Target) Lookup(p string) (os.FileInfo, []byte, error) {
	o, err := v.find(p)
	if err != nil {
		return nil, nil, err
	}
	return fattr(o.Attr), o.FH, nil
}

func (v *Target) find(p string) (nfs.Object, error) {
	ctx, end := v.ctx()
	defer end()
	o := nfs.Object{FH: v.fs.Root()}
	asked := false
	for _, name := range strings.Split(path.Clean(p), "/") {
		if name == "." || name == "" {
			continue
		}
		var err error
		if o, err = v.caller.Lookup(ctx, o.FH, name); err != nil {
			return o, refusal(err)
		}
		asked = true
	}
	if !asked {
		var err error
		if o.Attr, err = v.caller.Getattr(ctx, o.FH); err != nil {
			return o, refusal(err)
		}
	}
	return o, nil
}

// parent finds the directory of a name.
func (v *Target) parent(p string) (dir []byte, name string, err error) {
	up, name := filepath.Split(p)
	o, err := v.find(up)
	return o.FH, name, err
}

// ReadDirPlus lists a directory, with "." and "..", and what the server says of each name.
func (v *Target) ReadDirPlus(dir string) ([]*EntryPlus, error) {
	o, err := v.find(dir)
	if err != nil {
		return nil, err
	}
	return v.list(o.FH)
}

func (v *Target) list(dir []byte) ([]*EntryPlus, error) {
	ctx, end := v.ctx()
	defer end()
	var out []*EntryPlus
	for at := (nfs.DirPage{}); !at.EOF; {
		l, err := v.caller.Readdirplus(ctx, dir, &at)
		if err != nil {
			return nil, refusal(err)
		}
		for _, e := range l {
			out = append(out, &EntryPlus{
				FileId: e.FileID, FileName: e.Name, Cookie: e.Cookie, Attr: postOp(e.Attr), Handle: PostOpFH3{IsSet: len(e.FH) > 0, FH: e.FH},
			})
		}
	}
	return out, nil
}

// Mkdir makes a directory and returns its handle.
func (v *Target) Mkdir(path string, perm os.FileMode) ([]byte, error) {
	dir, name, err := v.parent(path)
	if err != nil {
		return nil, err
	}
	ctx, end := v.ctx()
	defer end()
	o, err := v.caller.Mkdir(ctx, dir, name, uint32(perm.Perm()))
	return o.FH, refusal(err)
}

// Create makes a file, or finds the one there is, and returns its handle.
func (v *Target) Create(path string, perm os.FileMode) ([]byte, error) {
	dir, name, err := v.parent(path)
	if err != nil {
		return nil, err
	}
	ctx, end := v.ctx()
	defer end()
	o, err := v.caller.Create(ctx, dir, name, nfs.SetAttr{ModeSet: true, Mode: uint32(perm.Perm())}, false)
	return o.FH, refusal(err)
}

// Remove removes a file.
func (v *Target) Remove(path string) error { return v.removeNamed(path, false) }

// RmDir removes an empty directory.
func (v *Target) RmDir(path string) error { return v.removeNamed(path, true) }

func (v *Target) removeNamed(path string, isDir bool) error {
	dir, name, err := v.parent(path)
	if err != nil {
		return err
	}
	return v.remove(dir, name, isDir)
}

func (v *Target) remove(dir []byte, name string, isDir bool) error {
	ctx, end := v.ctx()
	defer end()
	return refusal(v.caller.Remove(ctx, dir, name, isDir))
}

// RemoveAll removes a directory and all in it. A directory that is not there is no error, and a file is one: NFS3ErrNotDir.
func (v *Target) RemoveAll(path string) error {
	dir, name, err := v.parent(path)
	if err != nil {
		return err
	}
	switch err = v.remove(dir, name, true); {
	case err == nil, os.IsNotExist(err):
		return nil
	case IsNotDirError(err):
		return err
	}
	ctx, end := v.ctx()
	o, err := v.caller.Lookup(ctx, dir, name)
	end()
	if err != nil {
		return refusal(err)
	}
	if err := v.empty(o.FH); err != nil {
		return err
	}
	return v.remove(dir, name, true)
}

// empty removes what is in a directory.
func (v *Target) empty(dir []byte) error {
	l, err := v.list(dir)
	if err != nil {
		return err
	}
	for _, e := range l {
		if e.FileName == "." || e.FileName == ".." {
			continue
		}
		o := nfs.Object{FH: e.Handle.FH, Attr: nfs.Attr{Type: nfs.FileType(e.Attr.Attr.Type)}}
		if !e.Attr.IsSet || !e.Handle.IsSet {
			ctx, end := v.ctx()
			o, err = v.caller.Lookup(ctx, dir, e.FileName)
			if end(); err != nil {
				return refusal(err)
			}
		}
		isDir := o.Attr.Type == nfs.TypeDir
		if isDir {
			if err := v.empty(o.FH); err != nil {
				return err
			}
		}
		if err := v.remove(dir, e.FileName, isDir); err != nil {
			return err
		}
	}
	return nil
}

// Open opens a file, or a symbolic link for Readlink.
func (v *Target) Open(path string) (*File, error) {
	o, err := v.find(path)
	if err != nil {
		return nil, err
	}
	return &File{Target: v, f: v.caller.Open(o.FH, path), fh: o.FH}, nil
}

// OpenFile opens a file, and makes it where it is not there.
func (v *Target) OpenFile(path string, perm os.FileMode) (*File, error) {
	o, err := v.find(path)
	if os.IsNotExist(err) {
		o.FH, err = v.Create(path, perm)
	}
	if err != nil {
		return nil, err
	}
	return &File{Target: v, f: v.caller.Open(o.FH, path), fh: o.FH}, nil
}
