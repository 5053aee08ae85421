package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/internal/wholefile"
	"github.com/sluice-storage/sluice/initiator/nfs"
)

func openPlace(ctx context.Context, s string, o nfs.Options, c *cobra.Command) (place, string, func() error, error) {
	nothing := func() error { return nil }
	if s == "-" {
		return pipe{in: c.InOrStdin(), out: c.OutOrStdout()}, s, nothing, nil
	}
	if !nfs.IsURL(s) {
		return local{}, s, nothing, nil
	}
	v, name, err := nfs.Mount(ctx, s, o)
	if err != nil {
		return nil, "", nothing, err
	}
	return remote{v}, name, v.Close, nil
}

// local is the file system of this machine: all of it for what a person has named, and what is below one directory for the names
// that a server lists.
type local struct{ root *os.Root }

func (l local) stat(_ context.Context, name string) (fs.FileInfo, error) {
	if l.root != nil {
		return l.root.Stat(name)
	}
	return os.Stat(name)
}

func (l local) list(_ context.Context, name string) ([]fs.FileInfo, error) {
	d, err := os.ReadDir(name)
	if err != nil {
		return nil, err
	}
	var out []fs.FileInfo
	for _, e := range d {
		i, err := e.Info()
		if err != nil {
			return nil, err
		}
		out = append(out, i)
	}
	return out, nil
}

func (l local) open(_ context.Context, name string) (io.ReadCloser, error) { return os.Open(name) }

func (l local) create(_ context.Context, name string, perm fs.FileMode) (sink, error) {
	if l.root != nil {
		return wholefile.CreateIn(l.root, name, perm)
	}
	fi, err := os.Stat(name)
	if err == nil && !fi.Mode().IsRegular() && !fi.IsDir() { // a device or a pipe
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			return nil, err
		}
		return inPlace{f}, nil
	}
	return wholefile.Create(name, perm)
}

type inPlace struct{ *os.File }

func (inPlace) Commit() error { return nil }

func (l local) mkdir(_ context.Context, name string) error {
	if l.root != nil {
		return l.root.MkdirAll(name, 0o755)
	}
	return os.MkdirAll(name, 0o755)
}

func (l local) readlink(_ context.Context, name string) (string, error) {
	if l.root != nil {
		return l.root.Readlink(name)
	}
	return os.Readlink(name)
}

func (l local) symlink(_ context.Context, target, name string) error {
	if l.root != nil {
		return l.root.Symlink(target, name)
	}
	return os.Symlink(target, name)
}

func (l local) remove(_ context.Context, name string) error {
	if l.root != nil {
		return l.root.Remove(name)
	}
	return os.Remove(name)
}

func (local) join(dir, name string) string { return filepath.Join(dir, name) }

func (l local) below(ctx context.Context, dir string) (place, string, func() error, error) {
	if err := l.mkdir(ctx, dir); err != nil {
		return nil, "", nil, err
	}
	r, err := os.OpenRoot(dir)
	if err != nil {
		return nil, "", nil, err
	}
	return local{r}, ".", r.Close, nil
}

type remote struct{ v *nfs.FS }

func (r remote) stat(ctx context.Context, name string) (fs.FileInfo, error) {
	i, err := r.v.StatContext(ctx, name)
	if err != nil {
		return nil, err
	}
	return i, nil
}

func (r remote) list(ctx context.Context, name string) ([]fs.FileInfo, error) {
	l, err := r.v.ReadDirContext(ctx, name)
	out := make([]fs.FileInfo, len(l))
	for k, i := range l {
		out[k] = i
	}
	return out, err
}

func (r remote) open(ctx context.Context, name string) (io.ReadCloser, error) {
	f, err := r.v.OpenFile(ctx, name, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	return &bound{ctx: ctx, f: f}, nil
}

// create begins a file under another name, beside its own.
func (r remote) create(ctx context.Context, name string, perm fs.FileMode) (sink, error) {
	name, err := r.resolve(ctx, name)
	if err != nil {
		return nil, err
	}
	old, err := r.v.StatContext(ctx, name)
	switch {
	case err == nil && old.IsDir():
		return nil, &fs.PathError{Op: "create", Path: name, Err: syscall.EISDIR}
	case err == nil:
		perm = old.Mode().Perm()
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	default:
		old = nil
	}
	return r.begin(ctx, name, old, perm)
}

// resolve follows a last element that is a link: what it leads to is replaced, not the link.
func (r remote) resolve(ctx context.Context, name string) (string, error) {
	for range 40 {
		to, err := r.v.ReadLinkContext(ctx, name)
		if err != nil {
			return name, nil //nolint:nilerr // no link: what is wrong with it, making it tells
		}
		if !path.IsAbs(to) {
			to = path.Dir(name) + "/" + to
		}
		name = to
	}
	return "", &fs.PathError{Op: "create", Path: name, Err: syscall.ELOOP}
}

// remoteFile is a file on its way to a server.
type remoteFile struct {
	bound
	v          *nfs.FS
	temp, name string
}

// keep gives the file the owner of the one that it replaces, where that can be given, and its permissions.
func (f *remoteFile) keep(old *nfs.Info) error {
	now, err := f.v.StatContext(f.ctx, f.temp)
	if err != nil {
		return err
	}
	if now.UID() != old.UID() || now.GID() != old.GID() {
		if err := f.v.Chown(f.ctx, f.temp, old.UID(), old.GID()); err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	return f.v.Chmod(f.ctx, f.temp, old.Mode().Perm())
}

// Commit writes what is left, makes it durable and gives the file its name.
func (f *remoteFile) Commit() error {
	if err := f.f.SyncContext(f.ctx); err != nil {
		return err
	}
	if err := f.v.Rename(f.ctx, f.temp, f.name); err != nil {
		return err
	}
	f.temp = ""
	return nil
}

// removeLimit is how long an interrupted copy tries to take away what it has begun.
const removeLimit = 10 * time.Second

// Close takes away what was not committed, also when the copy was interrupted.
func (f *remoteFile) Close() error {
	if f.temp == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(f.ctx), removeLimit)
	defer cancel()
	return f.v.Remove(ctx, f.temp)
}

func (r remote) mkdir(ctx context.Context, name string) error { return mkdirAll(ctx, r.v, name) }
func (r remote) readlink(ctx context.Context, name string) (string, error) {
	return r.v.ReadLinkContext(ctx, name)
}
func (r remote) symlink(ctx context.Context, target, name string) error {
	return r.v.Symlink(ctx, target, name)
}
func (r remote) remove(ctx context.Context, name string) error { return r.v.Remove(ctx, name) }
func (r remote) join(dir, name string) string                  { return path.Join(dir, name) }

// pipe is standard input or output.
type pipe struct {
	in  io.Reader
	out io.Writer
}

type pipeInfo struct{}

func (pipeInfo) Name() string       { return "-" }
func (pipeInfo) Size() int64        { return -1 }
func (pipeInfo) Mode() fs.FileMode  { return 0o644 }
func (pipeInfo) ModTime() time.Time { return time.Time{} }
func (pipeInfo) IsDir() bool        { return false }
func (pipeInfo) Sys() any           { return nil }

func (pipe) stat(context.Context, string) (fs.FileInfo, error)     { return pipeInfo{}, nil }
func (pipe) list(context.Context, string) ([]fs.FileInfo, error)   { return nil, fs.ErrInvalid }
func (p pipe) open(context.Context, string) (io.ReadCloser, error) { return io.NopCloser(p.in), nil }
func (pipe) mkdir(context.Context, string) error {
	return fmt.Errorf("a directory cannot be written to -")
}
func (pipe) readlink(context.Context, string) (string, error) { return "", fs.ErrInvalid }
func (pipe) symlink(context.Context, string, string) error    { return fs.ErrInvalid }
func (pipe) remove(context.Context, string) error             { return fs.ErrInvalid }
func (pipe) join(_, name string) string                       { return name }
func (p pipe) create(context.Context, string, fs.FileMode) (sink, error) {
	return stdout{p.out}, nil
}

func (p pipe) below(ctx context.Context, _ string) (place, string, func() error, error) {
	return nil, "", nil, p.mkdir(ctx, "-")
}

type stdout struct{ io.Writer }

func (stdout) Commit() error { return nil }
func (stdout) Close() error  { return nil }
