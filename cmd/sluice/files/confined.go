package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"syscall"

	"github.com/sluice-storage/sluice/cmd/internal/wholefile"
	"github.com/sluice-storage/sluice/initiator/nfs"
)

// confined is what lies below one directory of a server. Names that another server lists lead nowhere else: no symbolic link below
// the directory is followed, because an earlier name of the same copy may have made it.
type confined struct {
	remote
	root string
	dirs map[string]bool // those that were seen to be directories
}

// LinkError says that a copy would have to go through a symbolic link at its destination.
type LinkError struct{ Name string }

func (e *LinkError) Error() string {
	return fmt.Sprintf("%s is a symbolic link at the destination, which a copy of a directory does not follow; remove it, or copy to what it leads to", e.Name)
}

func (r remote) below(ctx context.Context, dir string) (place, string, func() error, error) {
	return confined{r, path.Clean(dir), map[string]bool{}}, dir, func() error { return nil }, r.mkdir(ctx, dir)
}

func (c confined) mkdir(ctx context.Context, name string) error {
	if name = path.Clean(name); name == c.root || c.dirs[name] {
		return nil
	}
	dir := path.Dir(name)
	if dir == name {
		return &fs.PathError{Op: "mkdir", Path: name, Err: fs.ErrInvalid} // not below the root
	}
	if err := c.mkdir(ctx, dir); err != nil {
		return err
	}
	i, err := c.v.LstatContext(ctx, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = c.v.Mkdir(ctx, name, 0o755)
	case err != nil:
	case i.Mode()&fs.ModeSymlink != 0:
		err = &LinkError{name}
	case !i.IsDir():
		err = &fs.PathError{Op: "mkdir", Path: name, Err: syscall.ENOTDIR}
	}
	if err == nil {
		c.dirs[name] = true
	}
	return err
}

// create replaces a link that is there, as a copy to this machine does.
func (c confined) create(ctx context.Context, name string, perm fs.FileMode) (sink, error) {
	if err := c.mkdir(ctx, path.Dir(name)); err != nil {
		return nil, err
	}
	old, err := c.v.LstatContext(ctx, name)
	keeps, err := wholefile.Replaces(name, old, err)
	switch {
	case err != nil:
		return nil, err
	case keeps:
		perm = old.Mode().Perm()
	default:
		old = nil
	}
	return c.begin(ctx, name, old, perm)
}

// begin makes a file beside its place, with what is to stay of the one that it replaces.
func (r remote) begin(ctx context.Context, name string, old *nfs.Info, perm fs.FileMode) (sink, error) {
	temp := path.Join(path.Dir(name), wholefile.Temp(path.Base(name)))
	f, err := r.v.OpenFile(ctx, temp, os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return nil, fmt.Errorf("%s is made beside its place and moved there when it is whole: %w", name, err)
	}
	w := &remoteFile{bound: bound{ctx: ctx, f: f}, v: r.v, temp: temp, name: name}
	if old != nil {
		if err := w.keep(old); err != nil {
			return nil, errors.Join(err, w.Close())
		}
	}
	return w, nil
}
