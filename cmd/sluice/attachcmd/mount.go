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
	"github.com/sluice-storage/sluice/initiator/nfs"
)

// mounting is one mount under way.
type mounting struct {
	o            options
	url, where   string
	mkfs, fstype string
	opts         []string // mount options for the file system
	flags        []string // mount(8)'s own flags that are passed on: -n, -N, ...
	force        bool
	say          func(format string, a ...any) // tells a person what is being done
}

func mount() *cobra.Command {
	m := mounting{}
	var opts string
	c := &cobra.Command{
		Use:   "mount URL DIR",
		Short: "Mount the file system on a volume, or an NFS export",
		Long: `Attach a volume and mount the file system on it, as root; or show an NFS export (nfs:// and nfs+rdma://) as a directory by
FUSE, as root or ordinary user.

Of a volume: with --mkfs a file system is made first, but never over
anything that is there already: a volume on which blkid finds a signature, or whose first or last bytes are not zero, is
refused unless --force says that it may be lost. When any step fails, what was done before it is undone. What is mounted
already is left as it is.

mount -t sluice URL DIR does the same where sluice is installed as /sbin/mount.sluice, and so does a line of /etc/fstab:

  iser://192.0.2.1/iqn.2026-11.org.example:data/0  /mnt/data  sluice  _netdev,fstype=ext4  0  0

  nfs+rdma://192.0.2.1/srv/data                    /mnt/files  sluice  _netdev             0  0

Options there, beside the file system's own: fstype=, as= (nbd, fuse, ublk), name=, credentials=, reconnect=, crc=, provider=, exposure=,
ack_timeout=, initiator=, ro;
of exports: allow_other, local_locks, attr_timeout=, reconnect=, name=, crc=, provider=, exposure=, ack_timeout=, ro.

Of an export: calls carry the identity of the process that makes them. Root's mount is open to all users. A server that is away is
waited for, unless --reconnect sets a limit, after which calls fail with EIO.`,
		Example: `  sluice mount iser://192.0.2.1/iqn.2026-11.io.sluice:default/0 /mnt/data --mkfs ext4
  sluice mount iser://192.0.2.1/iqn.2026-11.io.sluice:default/0 /mnt/data --options noatime,discard
  sluice umount /mnt/data
  sluice mount nfs+rdma://192.0.2.1/srv/data ~/data`,
		Args: cobra.ExactArgs(2), ValidArgsFunction: completeURLs,
		RunE: func(c *cobra.Command, args []string) error {
			m.url, m.where = args[0], args[1]
			if opts != "" {
				m.opts = strings.Split(opts, ",")
			}
			m.say = func(f string, a ...any) { ui.Note(c.ErrOrStderr(), f, a...) }
			r, err := m.run(c.Context())
			if err != nil {
				return err
			}
			return ui.Print(c, r, func(t *ui.Table) { t.Row(r.Path, "mounted on", r.Mount) })
		},
	}
	m.o.flags(c)
	m.o.export.flags(c)
	c.Flags().StringVar(&m.mkfs, "mkfs", "", "make this file system first: ext4, xfs, ...")
	c.Flags().BoolVar(&m.force, "force", false, "with --mkfs: destroy what is on the volume")
	c.Flags().StringVarP(&m.fstype, "type", "t", "", "file system type, as mount -t")
	c.Flags().StringVar(&opts, "options", "", "mount options, as mount -o")
	complete(c, "mkfs", "ext4", "xfs", "btrfs")
	complete(c, "type", "ext4", "xfs", "btrfs")
	complete(c, "options", "noatime", "discard", "nosuid,nodev")
	return c
}

func refused(format string, a ...any) error {
	return ui.ExitError{Code: ui.CodeRefused, Err: fmt.Errorf(format, a...)}
}

// check refuses what cannot become a mount before anything is done. A mount that is there already is returned.
func (m *mounting) check() (*Record, error) {
	export := nfs.IsURL(m.url)
	if os.Geteuid() != 0 && !export {
		return nil, refused("mounting a file system needs root; sluice attach works without")
	}
	var err error
	if m.where, err = filepath.Abs(m.where); err != nil {
		return nil, err
	}
	m.where = real(m.where)
	if r, err := find(m.where); err == nil && r.Broken { // a directory whose helper is dead cannot be looked at
		if err := r.clean(); err != nil {
			return nil, err
		}
	}
	if fi, err := os.Stat(m.where); err != nil || !fi.IsDir() {
		return nil, refused("%s is no directory; make it first", m.where)
	}
	if export {
		if err := m.checkExport(); err != nil {
			return nil, err
		}
	} else if m.o.face == faceSocket {
		return nil, ui.Usagef("a socket cannot be mounted; use --face device or file")
	}
	shown, _, err := describe(m.url)
	if err != nil {
		return nil, err
	}
	if !mounted(m.where) {
		return nil, nil
	}
	if r, err := find(m.where); err == nil && r.URL == shown && r.mountIsOurs() && !r.Broken && m.mkfs == "" {
		return r, nil
	}
	return nil, refused("something is mounted on %s already", m.where)
}

// run attaches and mounts; whatever fails, what was done before it is undone.
func (m *mounting) run(ctx context.Context) (_ *Record, err error) {
	r, err := m.check()
	if err != nil {
		return nil, err
	}
	if r != nil {
		m.say("%s is mounted on %s already", r.Path, r.Mount)
		return r, nil
	}
	m.o.export.dir, m.o.where = m.where, m.where
	r, why, err := m.o.start(ctx, m.url, func(why string) bool {
		m.say("waiting for the target: %s", why)
		return false
	})
	if err != nil {
		return nil, err
	}
	if r.Face == faceDir {
		m.note(ctx, r)
		return r, nil
	}
	m.say("attached as %s, a %s (%s)", r.Name, r.Face, why)
	defer func() {
		if err != nil {
			r.Mount = ""
			err = errors.Join(err, r.end(false))
		}
	}()
	dev := r.Path
	if r.Face == faceFile {
		if dev, err = losetup(ctx, r.Path, m.o.readOnly); err != nil {
			return nil, err
		}
		if err := r.update(func(r *Record) { r.Loop = dev }); err != nil { // should this process be killed, the next call drops it
			return nil, err
		}
	}
	if m.mkfs != "" {
		if err := makeFS(ctx, dev, m.mkfs, m.force, m.say); err != nil {
			return nil, err
		}
	}
	if err := r.update(func(r *Record) { r.Mount = m.where }); err != nil {
		return nil, err
	}
	if err := tool(ctx, "mount", append(m.args(), "--", dev, m.where)...); err != nil {
		return nil, err
	}
	return r, nil
}

// note has mount(8) note down what it did not mount itself, an export: -f leaves out the mounting. See args for _netdev.
func (m *mounting) note(ctx context.Context, r *Record) {
	if os.Geteuid() != 0 {
		return // an ordinary user's mount ends with the session, and only root can write there
	}
	if err := tool(ctx, "mount", "-f", "-i", "-t", "fuse.sluice-nfs", "-o", "_netdev", "--", r.URL, r.Mount); err != nil {
		m.say("the service manager does not know that %s is on the network: %v", r.Mount, err)
	}
}

// args are mount(8)'s. The option helper= has umount(8) call umount.sluice, which detaches too; _netdev tells the service
// manager, which reads what mount(8) notes down, to unmount before the network goes.
func (m *mounting) args() []string {
	args := append([]string{}, m.flags...)
	if m.fstype != "" {
		args = append(args, "-t", m.fstype)
	}
	opts := append([]string{}, m.opts...)
	if m.o.readOnly {
		opts = append(opts, "ro")
	}
	return append(args, "-o", strings.Join(append(opts, "helper=sluice", "_netdev"), ","))
}

// tool runs a program of the system; its own words are the error.
func tool(ctx context.Context, name string, args ...string) error {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s failed: %w: %s", name, err, strings.Join(strings.Fields(string(out)), " "))
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

func umount() *cobra.Command {
	var lazy bool
	c := &cobra.Command{
		Use: "umount DIR|NAME", Short: "Unmount a file system and detach its volume", Args: cobra.ExactArgs(1), ValidArgsFunction: completeNames,
		Long: `Unmount a file system and detach its volume, with everything flushed. umount DIR does the same where sluice is installed as
/sbin/umount.sluice.`,
		Example: "  sluice umount /mnt/data",
		RunE: func(c *cobra.Command, args []string) error {
			r, err := find(args[0])
			if err != nil {
				return ui.ExitError{Code: ui.CodeRefused, Err: err}
			}
			if err := r.unmount(c.Context(), lazy, nil); err != nil {
				return err
			}
			return ui.Print(c, r, func(*ui.Table) {})
		},
	}
	c.Flags().BoolVarP(&lazy, "lazy", "l", false, "take the file system out of sight now, and leave the volume attached for who still uses it")
	return c
}

// unmount unmounts and detaches. Lazily it only takes the mount out of sight: who still has files open keeps them, and
// sluice detach ends the attachment later.
func (r *Record) unmount(ctx context.Context, lazy bool, flags []string) error {
	var a *asker
	if !lazy && r.alive() {
		var err error
		if a, err = r.ask(); err == nil { // before the unmount, which may be the end itself: how that goes is to be told
			defer a.close()
			a.say(question{Op: opAwait})
		}
	}
	if r.Mount != "" && mounted(r.Mount) {
		if lazy {
			flags = append(flags, "-l")
		}
		// -i: not our own helper again, which called this.
		name, args := "umount", append(append([]string{"-i"}, flags...), "--", r.Mount)
		if r.Face == faceDir && os.Geteuid() != 0 {
			name, args = "fusermount3", []string{"-u", "--", r.Mount}
			if lazy {
				args[0] = "-uz"
			}
		}
		if err := tool(ctx, name, args...); err != nil {
			return err
		}
	}
	switch {
	case lazy:
		return r.update(func(r *Record) { r.Mount = "" })
	case a == nil:
		return r.end(false)
	}
	return r.finish(a, false)
}
