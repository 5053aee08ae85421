package attachcmd

import (
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/sluice/attachcmd/sluicetab"
	"github.com/sluice-storage/sluice/cmd/sluice/blockcmd"
	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/initiator/nfs"
)

type options struct {
	conn       blockcmd.Connection
	name, face string
	socket     string
	readOnly   bool
	foreground bool
	where      string // sluice mount: where the file system of the volume goes
	export     exportOptions
}

// exportOptions are those of an NFS export's directory.
type exportOptions struct {
	dir        string // where it is mounted
	allowOther bool
	localLocks bool
	attrs      time.Duration
}

func (e *exportOptions) flags(c *cobra.Command) {
	f := c.Flags()
	f.BoolVar(&e.allowOther, "allow-other", false, "NFS: let other users in too (for an ordinary user /etc/fuse.conf must allow it; root always does)")
	f.BoolVar(&e.localLocks, "local-locks", false, "NFS: locks hold on this machine only, and the server is not asked")
	f.DurationVar(&e.attrs, "attr-timeout", 0, "NFS: how long attributes and names are good without asking, default a second, negative for not at all")
}

// limit is the reconnect limit as a flag: a duration, or forever.
type limit time.Duration

func (l *limit) String() string {
	switch {
	case *l < 0:
		return "forever"
	case *l == 0:
		return "1m"
	}
	return time.Duration(*l).String()
}

// Set implements pflag.Value.
func (l *limit) Set(s string) error {
	d, err := sluicetab.Limit(s)
	*l = limit(d)
	return err
}

// Type implements pflag.Value.
func (l *limit) Type() string { return "duration|forever" }

func (o *options) flags(c *cobra.Command) {
	f := c.Flags()
	o.conn.Flags(c)
	nearestByDefault(c)
	f.Var((*limit)(&o.conn.Reconnect), "reconnect", "how long programs wait for a target that is gone before they get errors")
	f.StringVar(&o.name, "name", "", "what to call the attachment (default: made of target and LUN)")
	f.StringVar(&o.face, "face", faceAuto, "how it appears: ublk (/dev/ublkbN), device (/dev/nbdN), file (FUSE), socket (NBD protocol), auto")
	f.StringVar(&o.face, "as", faceAuto, "the same as --face")
	f.Lookup("as").Hidden = true
	f.StringVar(&o.socket, "socket", "", "where the unix socket of --face socket goes")
	f.BoolVar(&o.readOnly, "read-only", false, "allow no writes")
	f.BoolVar(&o.foreground, "foreground", false, "serve in this process until it is interrupted")
	complete(c, "face", faces...)
	complete(c, "reconnect", "30s", "5m", "forever")
}

// complete gives a flag its values for the shell.
func complete(c *cobra.Command, flag string, values ...string) {
	// The only error is a flag that does not exist.
	if err := c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err)
	}
}

// Commands are attach, detach, attachments, map, unmap, mount and umount.
func Commands() []*cobra.Command {
	return []*cobra.Command{attach(), detach(), attachments(), mapCommand(), unmapCommand(), mount(), umount()}
}

func attach() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:   "attach URL[,URL...]",
		Short: "Make a volume local: a block device, a file or an NBD socket",
		Long: `Make a volume local, and print what to open. Several URLs, separated by commas, are paths of one volume.

  ublk     /dev/ublkbN; needs root and the kernel's ublk driver (Linux 6.0)
  device   /dev/nbdN; needs root and the kernel's nbd driver
  file     one file in a directory, by FUSE; losetup or mount -o loop makes a device of it
  socket   a unix socket that speaks NBD: for qemu, nbdcopy, fio's nbd engine
  auto     the first of these that this machine and user can have; the reason is printed

A helper process serves the attachment; sluice detach ends it. When the connection is lost it logs in again and repeats what
was under way; nothing is repeated whose repetition could hurt. A target that stays away for longer than --reconnect means
I/O errors to whoever reads and writes; with --reconnect forever they wait.

Attachments that every boot should make belong in /etc/sluicetab: see sluice map.`,
		Example: `  sluice attach iser://192.0.2.1/iqn.2026-11.io.sluice:default/0
  sluice attach iser://127.0.0.1/iqn.2026-11.io.sluice:default/0 --face socket --socket /tmp/s
  nbdcopy nbd+unix:///?socket=/tmp/s disk.img
  sluice attach iser://192.0.2.1/iqn.2026-11.io.sluice:default/0 --credentials /etc/sluice/cred --reconnect forever`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: completeURLs,
		RunE: func(c *cobra.Command, args []string) error {
			if nfs.IsURL(args[0]) {
				return ui.Usagef("an NFS export becomes a directory: sluice mount %s DIR", args[0])
			}
			if o.foreground {
				url := args[0]
				if url == "env:" { // a helper is told in its environment, which only its user can read
					url = os.Getenv("SLUICE_URL")
				}
				return o.helper(c.Context(), url)
			}
			r, why, err := o.start(c.Context(), args[0], waits(c.ErrOrStderr()))
			if err != nil {
				return err
			}
			return ui.Print(c, r, func(t *ui.Table) {
				t.Row(r.Path)
				ui.Note(c.ErrOrStderr(), "attached as %s, a %s (%s)", r.Name, r.Face, why)
			})
		},
	}
	o.flags(c)
	o.export.flags(c) // for the helper of a mount
	c.Flags().StringVar(&o.export.dir, "dir", "", "where an NFS export is mounted")
	for _, f := range []string{"dir", "allow-other", "local-locks", "attr-timeout"} {
		c.Flags().Lookup(f).Hidden = true
	}
	return c
}

// waits tells a person that the helper waits for the target, and goes on waiting.
func waits(w io.Writer) func(string) bool {
	return func(why string) bool {
		ui.Note(w, "waiting for the target: %s", why)
		return false
	}
}

// completeURLs offers the schemes.
func completeURLs(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault // a directory
	}
	return []string{"iser://", "iscsi://"}, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
}

func detach() *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use: "detach NAME|PATH", Short: "End an attachment, with everything flushed", Args: cobra.ExactArgs(1), ValidArgsFunction: completeNames,
		Long: `End an attachment: what programs wrote is made durable at the target, the session is logged out, and device, file or socket
are gone. What is in use is refused: a mounted file system (sluice umount ends both), an open file, a connected program; and so is a
volume whose target is away, for what was written last may not be durable. --force ends the attachment all the same: file systems on
it and the target have ten seconds to write what they hold, two where the target is known to be away, then programs get I/O errors, and what was not durable is lost. Whatever went wrong at the end is told, with exit code 1. Of a helper that was killed,
what it left is cleaned up.`,
		Example: "  sluice detach default-0\n  sluice detach /dev/nbd0\n  sluice detach db --force",
		RunE: func(c *cobra.Command, args []string) error {
			r, err := find(args[0])
			if err != nil {
				return ui.ExitError{Code: ui.CodeRefused, Err: err}
			}
			if err := r.end(force); err != nil {
				return err
			}
			return ui.Print(c, r, func(*ui.Table) {})
		},
	}
	c.Flags().BoolVar(&force, "force", false, "end it though it is in use or its target is away; what was not made durable is lost")
	return c
}

func completeNames(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	rs, err := list()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, r := range rs {
		out = append(out, r.Name+"\t"+r.Path)
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

func attachments() *cobra.Command {
	return &cobra.Command{
		Use: "attachments [NAME...]", Short: "List what is attached on this machine by this user", ValidArgsFunction: completeNames,
		Long: `List what is attached on this machine by this user: block devices, files and sockets with the volume behind each, where it is
mounted, and whether its helper process still serves it. With names, also the paths of each volume and what became of them lately. With
--output json the list is an array of objects, which have all of that.`,
		Example: "  sluice attachments\n  sluice attachments data\n  sluice attachments -o json | jq -r '.[].path'",
		RunE: func(c *cobra.Command, names []string) error {
			rs, err := list()
			if err != nil {
				return err
			}
			for _, n := range names {
				if _, err := find(n); err != nil {
					return ui.ExitError{Code: ui.CodeRefused, Err: err}
				}
			}
			if len(names) > 0 {
				rs = slices.DeleteFunc(rs, func(r *Record) bool { return !slices.ContainsFunc(names, r.is) })
			}
			js, err := ui.JSON(c)
			if err != nil {
				return err
			}
			if js || len(names) > 0 {
				askAll(rs)
			}
			return ui.Print(c, rs, func(t *ui.Table) {
				t.Row("NAME", "FACE", "PATH", "MOUNTED ON", "STATE", "URL")
				for _, r := range rs {
					t.Row(r.Name, r.Face, dash(r.Path), dash(r.Mount), r.state(), r.URL)
				}
				for _, r := range rs {
					if r.Status != nil {
						r.Status.rows(t)
					}
				}
			})
		},
	}
}

// askAll fills in how live attachments are.
func askAll(rs []*Record) {
	var wg sync.WaitGroup
	for _, r := range rs {
		wg.Go(func() { r.Status = r.status() })
	}
	wg.Wait()
}

// state is a word or two for a person.
func (r *Record) state() string {
	awayFor := func() string {
		return fmt.Sprintf("target away for %v", time.Since(r.AwaySince).Round(time.Second))
	}
	switch {
	case r.Broken:
		return "helper gone; detach cleans up"
	case r.Starting && r.Away != "":
		return "attaching; " + awayFor()
	case r.Starting:
		return "attaching"
	case r.Away != "":
		return awayFor()
	}
	return "serving"
}

// dash stands for nothing in a table.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
