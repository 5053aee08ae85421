package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/internal/fabricflag"
	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/initiator/nfs"
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
	create(ctx context.Context, name string, perm fs.FileMode) (sink, error)
	mkdir(ctx context.Context, name string) error
	readlink(ctx context.Context, name string) (string, error)
	symlink(ctx context.Context, target, name string) error
	remove(ctx context.Context, name string) error
	join(dir, name string) string
	// below is the same place where nothing outside a directory, which it makes, can be reached.
	below(ctx context.Context, dir string) (p place, name string, done func() error, err error)
}

// sink is a file that is being made: it takes its name when Commit has made its content durable, and Close without that leaves
// nothing.
type sink interface {
	io.Writer
	Commit() error
	Close() error
}

// Copy copies a file, or with recursive a tree, from or to an NFS server, or from one to another.
func Copy(c *cobra.Command, from, to string, recursive, quiet bool) (err error) {
	o, done, err := options(fabricflag.Of(c), c.ErrOrStderr())
	if err != nil {
		return err
	}
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
		job.bar = ui.Bar(c.ErrOrStderr(), -1, progressbar.OptionClearOnFinish())
	}
	i, err := src.stat(ctx, a)
	if err != nil {
		return err
	}
	if d, derr := dst.stat(ctx, b); derr == nil && d.IsDir() && !(i.IsDir() && b == ".") {
		b = dst.join(b, baseOf(from))
	}
	if err := intoItself(ctx, from, to, dst, b, i); err != nil {
		return err
	}
	start := time.Now()
	if i.IsDir() && recursive {
		var out func() error
		if job.dst, b, out, err = dst.below(ctx, b); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, out()) }()
		if job.top, err = job.dst.stat(ctx, b); err != nil {
			return err
		}
		job.oneServer = oneServer(from, to)
	}
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

// oneServer reports that two URLs name one server.
func oneServer(from, to string) bool {
	a, aerr := nfs.ParseURL(from)
	b, berr := nfs.ParseURL(to)
	return aerr == nil && berr == nil && a.Host == b.Host
}

// intoItself refuses a copy of a file to itself and of a directory to a place below it.
func intoItself(ctx context.Context, from, to string, dst place, b string, i fs.FileInfo) error {
	src, ok := i.(*nfs.Info)
	if !ok || !nfs.IsURL(to) {
		return nil
	}
	if d, err := dst.stat(ctx, b); err == nil && same(src, d, oneServer(from, to)) {
		return ui.Usagef("%s and %s are one: it would be copied to itself", from, to)
	}
	u, uerr := nfs.ParseURL(from)
	w, werr := nfs.ParseURL(to)
	if i.IsDir() && uerr == nil && werr == nil && u.Host == w.Host && u.Port == w.Port && strings.HasPrefix(w.Path+"/", strings.TrimSuffix(u.Path, "/")+"/") {
		return ui.Usagef("%s lies in %s: a directory cannot be copied into itself", to, from)
	}
	return nil
}

func same(src *nfs.Info, dst fs.FileInfo, oneServer bool) bool {
	d, ok := dst.(*nfs.Info)
	return ok && nfs.SameFile(src, d, oneServer)
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
	top       fs.FileInfo // the directory that is made
	oneServer bool
	left      int // devices, pipes and sockets, which are not copied
	first     string
}

func (j *copyJob) copy(ctx context.Context, from, to string, i fs.FileInfo) error {
	if i.IsDir() {
		if !j.recursive {
			return ui.Usagef("%s is a directory; give --recursive", from)
		}
		if e, ok := i.(*nfs.Info); ok && j.top != nil && same(e, j.top, j.oneServer) {
			return ui.Usagef("%s is the directory that the copy goes to: a directory cannot be copied into itself", from)
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
			if _, far := j.top.(*nfs.Info); far && e.IsDir() && !j.oneServer {
				// A listing has no handles, and by them alone the directory that is made is known under another name of its server.
				if e, err = j.src.stat(ctx, name); err != nil {
					return err
				}
			}
			if err := j.copy(ctx, name, j.dst.join(to, path.Base(name)), e); err != nil {
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
	if size := i.Size(); err == nil && size >= 0 && n < size {
		err = fmt.Errorf("%s ends at %d bytes and had %d when the copy began", from, n, size)
	}
	if err == nil {
		err = w.Commit() // a copy that has ended is on the medium
	}
	j.bytes += n
	j.files++
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
