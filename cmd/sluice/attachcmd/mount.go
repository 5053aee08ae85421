package attachcmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
)

func mount() *cobra.Command {
	var o options
	var mkfs, fstype, opts string
	var force bool
	c := &cobra.Command{
		Use:   "mount URL DIR",
		Short: "Attach a volume and mount the file system on it",
		Long: `Attach a volume and mount the file system on it; needs root. With --mkfs a file system is made first, but never over
anything that is there already unless --force says so. When any step fails, what was done before it is undone.`,
		Example: `  sluice mount iser://192.0.2.1/iqn.2026-11.io.sluice:default/0 /mnt/data --mkfs ext4
  sluice umount /mnt/data`,
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			r, err := doMount(c.Context(), &o, args[0], args[1], mkfs, fstype, opts, force)
			if err != nil {
				return err
			}
			return ui.Print(c, r, func(t *ui.Table) { t.Row(r.Path, "mounted on", r.Mount) })
		},
	}
	o.flags(c)
	c.Flags().StringVar(&mkfs, "mkfs", "", "make this file system first: ext4, xfs, ...")
	c.Flags().BoolVar(&force, "force", false, "with --mkfs: destroy what is on the volume")
	c.Flags().StringVarP(&fstype, "type", "t", "", "file system type, as mount -t")
	c.Flags().StringVar(&opts, "options", "", "mount options, as mount -o")
	return c
}

func refused(format string, a ...any) error {
	return ui.ExitError{Code: ui.CodeRefused, Err: fmt.Errorf(format, a...)}
}

func doMount(ctx context.Context, o *options, url, where, mkfs, fstype, opts string, force bool) (_ *Record, err error) {
	if os.Geteuid() != 0 {
		return nil, refused("mounting a file system needs root; sluice attach works without")
	}
	where, err = filepath.Abs(where)
	if err != nil {
		return nil, err
	}
	if fi, err := os.Stat(where); err != nil || !fi.IsDir() {
		return nil, refused("%s is no directory; make it first", where)
	}
	if mounted(where) {
		return nil, refused("something is mounted on %s already", where)
	}
	if o.face == faceSocket {
		return nil, ui.Usagef("a socket cannot be mounted; use --face device or file")
	}
	r, _, err := o.start(ctx, url)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			r.Mount = ""
			err = errors.Join(err, r.dropLoop(), r.end())
		}
	}()
	dev := r.Path
	if r.Face == faceFile {
		if r.Loop, err = losetup(ctx, r.Path, o.readOnly); err != nil {
			return nil, err
		}
		dev = r.Loop
	}
	if mkfs != "" {
		if err := makeFS(ctx, dev, mkfs, force); err != nil {
			return nil, err
		}
	}
	args := []string{}
	if fstype != "" {
		args = append(args, "-t", fstype)
	}
	if o.readOnly {
		args = append(args, "-r")
	}
	if opts != "" {
		args = append(args, "-o", opts)
	}
	if err := tool(ctx, "mount", append(args, "--", dev, where)...); err != nil {
		return nil, err
	}
	r.Mount = where
	return r, r.save()
}

// tool runs a program of the system; its own words are the error.
func tool(ctx context.Context, name string, args ...string) error {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s failed: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

func losetup(ctx context.Context, file string, readOnly bool) (string, error) {
	args := []string{"--find", "--show"}
	if readOnly {
		args = append(args, "--read-only")
	}
	out, err := exec.CommandContext(ctx, "losetup", append(args, "--", file)...).Output()
	if err != nil {
		return "", fmt.Errorf("losetup failed: %w; does this machine have loop devices?", err)
	}
	return strings.TrimSpace(string(out)), nil
}

func (r *Record) dropLoop() error {
	if r.Loop == "" {
		return nil
	}
	l := r.Loop
	r.Loop = ""
	return tool(context.Background(), "losetup", "--detach", l)
}

// makeFS refuses a device on which blkid finds anything: a wrong URL must not cost somebody's data.
func makeFS(ctx context.Context, dev, kind string, force bool) error {
	if strings.ContainsAny(kind, "/ ") {
		return ui.Usagef("--mkfs %q is no file system type", kind)
	}
	if !force {
		out, err := exec.CommandContext(ctx, "blkid", "--probe", "--output", "export", "--", dev).Output()
		var ee *exec.ExitError
		switch {
		case err == nil:
			return refused("the volume is not empty (%s); --force destroys what is on it", strings.Join(strings.Fields(string(out)), " "))
		case errors.As(err, &ee) && ee.ExitCode() == 2: // nothing found
		default:
			return fmt.Errorf("blkid cannot say whether the volume is empty: %w", err)
		}
	}
	args := []string{"-q"}
	if force && kind == "xfs" {
		args = append(args, "-f")
	} else if strings.HasPrefix(kind, "ext") {
		args = append(args, "-F")
	}
	return tool(ctx, "mkfs."+kind, append(args, dev)...)
}

func umount() *cobra.Command {
	return &cobra.Command{
		Use: "umount DIR|NAME", Short: "Unmount a file system and detach its volume", Args: cobra.ExactArgs(1), ValidArgsFunction: completeNames,
		RunE: func(c *cobra.Command, args []string) error {
			r, err := find(args[0])
			if err != nil {
				return ui.ExitError{Code: ui.CodeRefused, Err: err}
			}
			if r.Mount != "" && mounted(r.Mount) {
				if err := tool(c.Context(), "umount", "--", r.Mount); err != nil {
					return err
				}
			}
			return errors.Join(r.dropLoop(), r.end())
		},
	}
}
