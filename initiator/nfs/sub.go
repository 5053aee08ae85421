package nfs

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"

	"github.com/sluice-storage/sluice/internal/nfs3"
)

// Sub is the FS of a directory below: fs.Sub calls it. It goes through the connection of v, which is closed with v; its own Close does
// nothing. Symbolic links in it are followed within the directory: ".." does not leave it, and an absolute target begins there.
func (v *FS) Sub(dir string) (fs.FS, error) {
	if !fs.ValidPath(dir) {
		return nil, pathError("sub", dir, fs.ErrInvalid)
	}
	s, err := v.SubContext(context.Background(), dir)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// SubContext is Sub with a context.
func (v *FS) SubContext(ctx context.Context, dir string) (*FS, error) {
	o, err := v.walk(ctx, dir, true)
	if err == nil && o.attr.Type != TypeDir {
		err = ErrNotDir
	}
	if err != nil {
		return nil, pathError("sub", dir, err)
	}
	s := *v
	s.root, s.shared = o.fh, true
	return &s, nil
}

// MkdirAll makes a directory and those above it that are missing.
func (v *FS) MkdirAll(ctx context.Context, name string, perm fs.FileMode) error {
	i, err := v.StatContext(ctx, name)
	switch {
	case err == nil && i.IsDir():
		return nil
	case err == nil:
		return pathError("mkdir", name, ErrNotDir)
	case !errors.Is(err, ErrNoEntry):
		return err
	}
	if up := path.Dir(path.Clean("/" + name)); up != "/" {
		if err := v.MkdirAll(ctx, up, perm); err != nil {
			return err
		}
	}
	if err = v.Mkdir(ctx, name, perm); errors.Is(err, ErrExists) {
		if i, serr := v.StatContext(ctx, name); serr == nil && i.IsDir() {
			return nil // another made it meanwhile
		}
	}
	return err
}

// RemoveAll removes a name and, if it is a directory, what is in it. A name that is not there is no error. Symbolic links are
// removed, not followed, those neither that another client puts in the place of a directory meanwhile.
func (v *FS) RemoveAll(ctx context.Context, name string) error {
	where, err := v.dirOf(ctx, name)
	if err != nil {
		return absent(pathError("remove", name, err))
	}
	return v.removeTree(ctx, where, name)
}

// absent is nil for an error that says that there is no such name.
func absent(err error) error {
	if errors.Is(err, ErrNoEntry) {
		return nil
	}
	return err
}

// removeTree removes what a name in a directory is. It goes from handle to handle: a path could lead elsewhere each time.
func (v *FS) removeTree(ctx context.Context, where nfs3.DirOp, name string) error {
	o, err := v.lookup(ctx, where.Dir, string(where.Name))
	if err == nil && o.attr.Type == TypeDir {
		var l []*Info
		l, err = v.sorted(ctx, o.fh)
		for _, e := range l {
			if err := v.removeTree(ctx, nfs3.DirOp{Dir: o.fh, Name: []byte(e.name)}, path.Join(name, e.name)); err != nil {
				return err
			}
		}
		if errors.Is(err, ErrStale) {
			err = nil // another removed it meanwhile
		}
	}
	if err == nil {
		err = v.removeObject(ctx, where, o.attr.Type)
	}
	return absent(pathError("remove", name, err)) // another may have removed it meanwhile
}

// WriteFile makes a file of data, or gives the one there is this content, and returns when it is durable.
func (v *FS) WriteFile(ctx context.Context, name string, data []byte, perm fs.FileMode) error {
	f, err := v.OpenFile(ctx, name, os.O_CREATE|os.O_TRUNC, perm)
	if err != nil {
		return err
	}
	if _, err := f.WriteAtContext(ctx, data, 0); err != nil {
		return err
	}
	return f.SyncContext(ctx)
}
