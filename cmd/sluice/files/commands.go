// Package files holds the commands of sluice that work on nfs:// URLs: ls, cat, tree, mkdir, rm, the files' half of cp, and
// the gateway.
package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/internal/fabricflag"
	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/fabric"
)

// Commands are all but cp, which ExtendCopy adds to the volumes' cp.
func Commands() []*cobra.Command {
	return []*cobra.Command{listCommand(), catCommand(), treeCommand(), mkdirCommand(), removeCommand(), gatewayCommand()}
}

const urlHelp = `URLs are nfs://HOST[:PORT]/PATH for TCP and nfs+rdma://HOST[:PORT]/PATH (or ?rdma) for RDMA, with the arguments
nfsport, mountport, uid and gid where they are needed; provider=verbs goes through RDMA adapters instead of software iWARP, with exposure=whole-slab also through those that can only show
the server all memory of this process.`

// mounted runs f on the file system of a URL.
func mounted(c *cobra.Command, url string, f func(ctx context.Context, v *nfs.FS, name string) error) (err error) {
	if !nfs.IsURL(url) {
		return ui.Usagef("%s is no nfs:// or nfs+rdma:// URL", url)
	}
	o, done, err := options(fabricflag.Flags{}, c.ErrOrStderr())
	if err != nil {
		return err
	}
	defer func() { err = explain(errors.Join(err, done())) }()
	v, name, err := nfs.Mount(c.Context(), url, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.Close()) }()
	return f(c.Context(), v, name)
}

// options give a mount the fabric; nothing of it is made until a URL asks for it.
func options(f fabricflag.Flags, say io.Writer) (nfs.Options, func() error, error) {
	set, err := f.Set(say)
	if err != nil {
		return nfs.Options{}, nil, err
	}
	return nfs.Options{Provider: set.Device}, set.Close, nil
}

// explain gives an error the exit code that it stands for.
func explain(err error) error {
	var code ui.ExitError
	var m *nfs.MountError
	var no *transport.RejectedError
	var word *fabric.WordError
	switch {
	case errors.As(err, &word):
		return ui.Usage(err)
	case errors.As(err, &no), fabric.Exposes(err):
		return ui.ExitError{Code: ui.CodeRefused, Err: err}
	case err == nil, errors.As(err, &code):
		return err
	case errors.As(err, &m), errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission), errors.Is(err, fs.ErrExist):
		return ui.ExitError{Code: ui.CodeRefused, Err: err}
	}
	return err
}

// urls wants one URL of an NFS server or more, and looks at all of them before anything is done with the first.
func urls(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return errors.New("a URL is missing")
	}
	for _, a := range args {
		if !nfs.IsURL(a) {
			return fmt.Errorf("%s is no nfs:// or nfs+rdma:// URL", a)
		}
		if _, err := nfs.ParseURL(a); err != nil {
			return err
		}
	}
	return nil
}

type entry struct {
	Name  string    `json:"name"`
	Mode  string    `json:"mode"`
	Links uint32    `json:"links"`
	UID   uint32    `json:"uid"`
	GID   uint32    `json:"gid"`
	Size  int64     `json:"size"`
	Time  time.Time `json:"mtime"`
}

func entryOf(i *nfs.Info) entry {
	return entry{Name: i.Name(), Mode: i.Mode().String(), Links: i.Links(), UID: i.UID(), GID: i.GID(), Size: i.Size(), Time: i.ModTime()}
}

func listCommand() *cobra.Command {
	return &cobra.Command{
		Use: "ls URL", Short: "List a directory of an NFS server", Long: "List a directory of an NFS server, or one file.\n\n" + urlHelp, Args: cobra.ExactArgs(1),
		Example: "  sluice ls nfs://192.0.2.1/data\n  sluice ls nfs+rdma://192.0.2.1/data/dir",
		RunE: func(c *cobra.Command, args []string) error {
			return mounted(c, args[0], func(ctx context.Context, v *nfs.FS, name string) error {
				i, err := v.StatContext(ctx, name)
				if err != nil {
					return err
				}
				l := []*nfs.Info{i}
				if i.IsDir() {
					if l, err = v.ReadDirContext(ctx, name); err != nil {
						return err
					}
				}
				out := make([]entry, len(l))
				for k, i := range l {
					out[k] = entryOf(i)
				}
				return ui.Print(c, out, func(t *ui.Table) {
					for _, e := range out {
						t.Row(e.Mode, e.Links, e.UID, e.GID, e.Size, e.Time.Format("2006-01-02 15:04"), e.Name)
					}
				})
			})
		},
	}
}

func catCommand() *cobra.Command {
	return &cobra.Command{
		Use: "cat URL...", Short: "Write files of an NFS server to standard output", Long: "Write files of an NFS server to standard output.\n\n" + urlHelp, Args: urls, Example: "  sluice cat nfs://192.0.2.1/data/notes",
		RunE: func(c *cobra.Command, args []string) error {
			for _, url := range args {
				err := mounted(c, url, func(ctx context.Context, v *nfs.FS, name string) error {
					f, err := v.OpenFile(ctx, name, 0, 0)
					if err != nil {
						return err
					}
					_, err = io.CopyBuffer(c.OutOrStdout(), &bound{ctx: ctx, f: f}, make([]byte, 4<<20))
					return err
				})
				if err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func treeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "tree URL", Short: "Draw the tree below a directory of an NFS server", Long: "Draw the tree below a directory of an NFS server.\n\n" + urlHelp, Args: cobra.ExactArgs(1), Example: "  sluice tree nfs://192.0.2.1/data",
		RunE: func(c *cobra.Command, args []string) error {
			return mounted(c, args[0], func(ctx context.Context, v *nfs.FS, name string) error {
				w := c.OutOrStdout()
				if _, err := fmt.Fprintln(w, args[0]); err != nil {
					return err
				}
				dirs, files, err := tree(ctx, w, v, name, "")
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(w, "\n%d directories, %d files\n", dirs, files)
				return err
			})
		},
	}
}

func tree(ctx context.Context, w io.Writer, v *nfs.FS, dir, indent string) (dirs, files int, err error) {
	l, err := v.ReadDirContext(ctx, dir)
	if err != nil {
		return 0, 0, err
	}
	for k, i := range l {
		branch, below := "├── ", "│   "
		if k == len(l)-1 {
			branch, below = "└── ", "    "
		}
		label := i.Name()
		if i.Mode()&fs.ModeSymlink != 0 {
			if target, err := v.ReadLink(path.Join(dir, i.Name())); err == nil {
				label += " -> " + target
			}
		}
		if _, err := fmt.Fprintln(w, indent+branch+label); err != nil {
			return dirs, files, err
		}
		if !i.IsDir() {
			files++
			continue
		}
		dirs++
		d, f, err := tree(ctx, w, v, path.Join(dir, i.Name()), indent+below)
		dirs, files = dirs+d, files+f
		if err != nil {
			return dirs, files, err
		}
	}
	return dirs, files, nil
}

func mkdirCommand() *cobra.Command {
	var parents bool
	c := &cobra.Command{
		Use: "mkdir URL", Short: "Make a directory on an NFS server", Long: "Make a directory on an NFS server.\n\n" + urlHelp, Args: cobra.ExactArgs(1), Example: "  sluice mkdir -p nfs://192.0.2.1/data/a/b",
		RunE: func(c *cobra.Command, args []string) error {
			return mounted(c, args[0], func(ctx context.Context, v *nfs.FS, name string) error {
				if name == "." {
					if parents {
						return nil
					}
					return &fs.PathError{Op: "mkdir", Path: args[0], Err: fs.ErrExist}
				}
				if parents {
					return mkdirAll(ctx, v, name)
				}
				return v.Mkdir(ctx, name, 0o755)
			})
		},
	}
	c.Flags().BoolVarP(&parents, "parents", "p", false, "make the directories above too, and take one that is there")
	return c
}

func mkdirAll(ctx context.Context, v *nfs.FS, name string) error {
	if name == "." || name == "/" {
		return nil
	}
	if i, err := v.StatContext(ctx, name); err == nil && i.IsDir() {
		return nil
	}
	if err := mkdirAll(ctx, v, path.Dir(name)); err != nil {
		return err
	}
	if err := v.Mkdir(ctx, name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

func removeCommand() *cobra.Command {
	var recursive bool
	c := &cobra.Command{
		Use: "rm URL...", Short: "Remove files or empty directories of an NFS server", Long: "Remove files or empty directories of an NFS server.\n\n" + urlHelp, Args: urls, Example: "  sluice rm nfs://192.0.2.1/data/old",
		RunE: func(c *cobra.Command, args []string) error {
			if recursive {
				if err := ui.ConfirmUnlessSure(c, strings.Join(args, ", ")+" will be removed, with all that is below"); err != nil {
					return err
				}
			}
			for _, url := range args {
				// The directory above is mounted: what is mounted cannot be removed by name.
				dir, base := path.Split(trimQuery(url))
				if base == "" || base == "." || base == ".." {
					return ui.Usagef("%s names nothing that could be removed", url)
				}
				err := mounted(c, withPath(url, dir), func(ctx context.Context, v *nfs.FS, name string) error {
					return removeAll(ctx, v, path.Join(name, base), recursive)
				})
				if err != nil {
					return err
				}
			}
			return nil
		},
	}
	c.Flags().BoolVarP(&recursive, "recursive", "r", false, "remove directories with all that is in them")
	ui.Asks(c)
	return c
}

func removeAll(ctx context.Context, v *nfs.FS, name string, recursive bool) error {
	i, err := v.Lstat(name)
	if err != nil {
		return err
	}
	if i.IsDir() && recursive {
		l, err := v.ReadDirContext(ctx, name)
		if err != nil {
			return err
		}
		for _, e := range l {
			if err := removeAll(ctx, v, path.Join(name, e.Name()), true); err != nil {
				return err
			}
		}
	}
	return v.Remove(ctx, name)
}
