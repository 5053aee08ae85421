package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/internal/crcflag"
	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// copyPiece is how much is read and written at a time: eight of the largest transfers, which go out side by side.
const copyPiece = 8 << 20

// ExtendCopy makes "cp" of volumes copy files too: when one of its arguments is an nfs URL.
func ExtendCopy(c *cobra.Command) *cobra.Command {
	check, volumes := c.Args, c.RunE
	var recursive bool
	c.Flags().BoolVarP(&recursive, "recursive", "r", false, "nfs: copy a directory with all that is in it, symbolic links as such")
	c.Long += "\n\nBetween files and an NFS server: one of the arguments is a URL nfs://HOST/PATH or nfs+rdma://HOST/PATH."
	c.Example += "\n  sluice cp -r ./src nfs+rdma://192.0.2.1/data/src"
	c.Args = func(c *cobra.Command, args []string) error {
		if len(args) == 2 && (nfs.IsURL(args[0]) || nfs.IsURL(args[1])) {
			for _, a := range args {
				if u, err := url.Parse(a); !nfs.IsURL(a) && err == nil && (u.Scheme == "iser" || u.Scheme == "iscsi") {
					return fmt.Errorf("%s is a volume; cp goes from one to the other through a pipe: sluice cp %s - | sluice cp - %s", a, args[0], args[1])
				}
			}
			if s := c.Flags().Lookup("sparse"); s != nil && s.Changed {
				return errors.New("--sparse is for volumes")
			}
			return nil
		}
		return check(c, args)
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		if nfs.IsURL(args[0]) || nfs.IsURL(args[1]) {
			quiet, err := c.Flags().GetBool("quiet")
			return Copy(c, args[0], args[1], recursive, quiet && err == nil)
		}
		if recursive {
			return ui.Usagef("--recursive is for directories of NFS servers, and neither %s nor %s is an nfs:// URL", args[0], args[1])
		}
		return volumes(c, args)
	}
	return c
}

// place is one end of a copy: the local file system or a mounted one.
type place interface {
	stat(ctx context.Context, name string) (fs.FileInfo, error)
	list(ctx context.Context, name string) ([]fs.FileInfo, error)
	open(ctx context.Context, name string) (io.ReadCloser, error)
	create(ctx context.Context, name string, perm fs.FileMode) (io.WriteCloser, error)
	mkdir(ctx context.Context, name string) error
	readlink(ctx context.Context, name string) (string, error)
	symlink(ctx context.Context, target, name string) error
	remove(ctx context.Context, name string) error
	join(dir, name string) string
}

// Copy copies a file, or with recursive a tree, from or to an NFS server, or from one to another.
func Copy(c *cobra.Command, from, to string, recursive, quiet bool) (err error) {
	crc := iwarp.CRCAuto
	if f := c.Flags().Lookup("crc"); f != nil {
		if crc, err = crcflag.Parse(f.Value.String()); err != nil {
			return err
		}
	}
	o, done := options(crc)
	defer func() { err = explain(errors.Join(err, done())) }()
	ctx := c.Context()
	src, a, cl, err := openPlace(ctx, from, o, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cl()) }()
	dst, b, cl2, err := openPlace(ctx, to, o, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cl2()) }()
	job := copyJob{src: src, dst: dst, recursive: recursive, buf: make([]byte, copyPiece)}
	if !quiet {
		job.bar = progressbar.NewOptions64(-1, progressbar.OptionSetWriter(c.ErrOrStderr()), progressbar.OptionShowBytes(true),
			progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish(), progressbar.OptionSetDescription("copying"))
	}
	i, err := src.stat(ctx, a)
	if err != nil {
		return err
	}
	if d, derr := dst.stat(ctx, b); derr == nil && d.IsDir() && !(i.IsDir() && b == ".") {
		b = dst.join(b, baseOf(from))
	}
	start := time.Now()
	err = job.copy(ctx, a, b, i)
	if err == nil && job.left > 0 {
		err = fmt.Errorf("all is copied but %d special files (devices, pipes, sockets), of which %s is the first", job.left, job.first)
	}
	if job.bar != nil {
		_ = job.bar.Finish() // only paint
	}
	if err == nil && !quiet {
		sec := time.Since(start).Seconds()
		ui.Note(c.ErrOrStderr(), "%d files, %s in %.1f s, %s/s", job.files, ui.Bytes(job.bytes), sec, ui.Bytes(int64(float64(job.bytes)/max(sec, 1e-9))))
	}
	return err
}

func baseOf(s string) string {
	if nfs.IsURL(s) {
		return path.Base(trimQuery(s))
	}
	if s == "-" {
		return "stdin"
	}
	return filepath.Base(s)
}

// trimQuery is a URL without its arguments, withPath a URL with another path and the same arguments.
func trimQuery(s string) string {
	s, _, _ = strings.Cut(s, "?")
	return s
}

func withPath(s, p string) string {
	if _, q, ok := strings.Cut(s, "?"); ok {
		return p + "?" + q
	}
	return p
}

type copyJob struct {
	src, dst  place
	recursive bool
	bar       *progressbar.ProgressBar
	buf       []byte
	files     int
	bytes     int64
	left      int // devices, pipes and sockets, which are not copied
	first     string
}

func (j *copyJob) copy(ctx context.Context, from, to string, i fs.FileInfo) error {
	if i.IsDir() {
		if !j.recursive {
			return ui.Usagef("%s is a directory; give --recursive", from)
		}
		if err := j.dst.mkdir(ctx, to); err != nil {
			return err
		}
		l, err := j.src.list(ctx, from)
		if err != nil {
			return err
		}
		for _, e := range l {
			name := j.src.join(from, e.Name())
			switch {
			case e.Mode()&fs.ModeSymlink != 0:
				if err := j.link(ctx, name, j.dst.join(to, e.Name())); err != nil {
					return err
				}
				continue
			case !e.IsDir() && !e.Mode().IsRegular():
				if j.left++; j.left == 1 {
					j.first = name
				}
				continue
			}
			if err := j.copy(ctx, name, j.dst.join(to, e.Name()), e); err != nil {
				return err
			}
		}
		return nil
	}
	r, err := j.src.open(ctx, from)
	if err != nil {
		return err
	}
	w, err := j.dst.create(ctx, to, i.Mode().Perm())
	if err != nil {
		return errors.Join(err, r.Close())
	}
	n, err := io.CopyBuffer(j.counted(w), onlyReader{r}, j.buf)
	j.bytes += n
	j.files++
	// Close syncs: a copy that has ended is on the server's medium.
	return errors.Join(err, w.Close(), r.Close())
}

// link copies a symbolic link as one, in place of a link that is there.
func (j *copyJob) link(ctx context.Context, from, to string) error {
	target, err := j.src.readlink(ctx, from)
	if err != nil {
		return err
	}
	if old, err := j.dst.readlink(ctx, to); err == nil {
		if old == target {
			return nil
		}
		if err := j.dst.remove(ctx, to); err != nil {
			return err
		}
	}
	return j.dst.symlink(ctx, target, to)
}

type counter struct {
	w   io.Writer
	bar *progressbar.ProgressBar
}

func (c counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	if c.bar != nil {
		_ = c.bar.Add(n) // only paint
	}
	return n, err
}

func (j *copyJob) counted(w io.Writer) io.Writer { return counter{w, j.bar} }

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

type local struct{}

func (local) stat(_ context.Context, name string) (fs.FileInfo, error) { return os.Stat(name) }

func (local) list(_ context.Context, name string) ([]fs.FileInfo, error) {
	l, err := os.ReadDir(name)
	if err != nil {
		return nil, err
	}
	var out []fs.FileInfo
	for _, e := range l {
		i, err := e.Info()
		if err != nil {
			return nil, err
		}
		out = append(out, i)
	}
	return out, nil
}

func (local) open(_ context.Context, name string) (io.ReadCloser, error) { return os.Open(name) }

func (local) create(_ context.Context, name string, perm fs.FileMode) (io.WriteCloser, error) {
	return os.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, perm)
}

func (local) mkdir(_ context.Context, name string) error              { return os.MkdirAll(name, 0o755) }
func (local) readlink(_ context.Context, name string) (string, error) { return os.Readlink(name) }
func (local) symlink(_ context.Context, target, name string) error    { return os.Symlink(target, name) }
func (local) remove(_ context.Context, name string) error             { return os.Remove(name) }
func (local) join(dir, name string) string                            { return filepath.Join(dir, name) }

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
	return f, nil
}

func (r remote) create(ctx context.Context, name string, perm fs.FileMode) (io.WriteCloser, error) {
	f, err := r.v.Create(ctx, name, perm)
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (r remote) mkdir(ctx context.Context, name string) error            { return mkdirAll(ctx, r.v, name) }
func (r remote) readlink(_ context.Context, name string) (string, error) { return r.v.ReadLink(name) }
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
func (p pipe) create(context.Context, string, fs.FileMode) (io.WriteCloser, error) {
	return nopWriteCloser{p.out}, nil
}

type nopWriteCloser struct{ io.Writer }

func (nopWriteCloser) Close() error { return nil }
