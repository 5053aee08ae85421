package admincmd

import (
	"bufio"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/target/admin"
)

func dryRun(c *cobra.Command, into *bool) {
	c.Flags().BoolVar(into, "dry-run", false, "say what would be done and do nothing")
}

func trace() *cobra.Command {
	return &cobra.Command{
		Use: "trace ID", Short: "Print a session's flight recorder: its login, incidents, last commands and what runs", Args: cobra.ExactArgs(1),
		Long:              "Print a session's flight recorder: its login, incidents, last commands and what runs now. The last sessions that ended\ncan be asked about too.",
		ValidArgsFunction: complete("/v1/sessions", func(s admin.Session) string { return s.ID }),
		RunE: func(c *cobra.Command, args []string) error {
			tr, err := get[admin.Trace](c, "/v1/sessions/"+esc(args[0])+"/trace")
			if err != nil {
				return err
			}
			return ui.Print(c, tr, func(t *ui.Table) {
				const clock = "15:04:05.000"
				s := tr.Session
				t.Row("session", s.ID+" of "+s.Initiator+" with "+s.Target+" over "+s.Transport+" from "+s.Peer)
				if tr.Ended != "" {
					t.Row("ended", tr.Ended)
				}
				for _, e := range tr.Events {
					t.Row(e.At.Local().Format(clock), e.What)
				}
				line := func(k admin.TraceCommand) string {
					return fmt.Sprintf("%s  LUN %d  tag %#x  %v  %s", k.Command, k.LUN, k.Tag, time.Duration(k.Took).Round(time.Microsecond), k.Outcome)
				}
				for _, k := range tr.Commands {
					t.Row(k.At.Local().Format(clock), line(k))
				}
				for _, k := range tr.Inflight {
					t.Row("running", line(k))
				}
			})
		},
	}
}

func snapshot() *cobra.Command {
	spec := admin.VolumeSpec{ReadOnly: true}
	c := &cobra.Command{
		Use: "snapshot VOLUME NAME", Short: "Make a read-only volume of what a volume holds now, sharing its blocks", Args: cobra.ExactArgs(2),
		Example: "  sluice volume snapshot data data-monday", ValidArgsFunction: complete("/v1/volumes", func(v admin.Volume) string { return v.Name }),
		RunE: func(c *cobra.Command, args []string) error {
			spec.Clone, spec.Name = args[0], args[1]
			return change(c, http.MethodPost, "/v1/volumes", spec)
		},
	}
	dryRun(c, &spec.DryRun)
	return c
}

// access are the commands about who may use a target.
func access(names func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)) []*cobra.Command {
	var in admin.InitiatorSpec
	var luns []uint
	allow := &cobra.Command{
		Use: "allow TARGET INITIATOR", Short: "Let an initiator log in; the first one keeps out everybody else", Args: cobra.ExactArgs(2), ValidArgsFunction: names,
		RunE: func(c *cobra.Command, args []string) error {
			in.Name = args[1]
			for _, l := range luns {
				if l > 16383 {
					return ui.Usagef("LUN %d is above 16383", l)
				}
				in.LUNs = append(in.LUNs, uint16(l))
			}
			return change(c, http.MethodPost, "/v1/targets/"+esc(args[0])+"/initiators", in)
		},
	}
	allow.Flags().UintSliceVar(&luns, "lun", nil, "what it sees (repeatable; all by default)")
	dryRun(allow, &in.DryRun)
	var dry bool
	deny := &cobra.Command{
		Use: "deny TARGET INITIATOR", Short: "Take an initiator off the list; its sessions end", Args: cobra.ExactArgs(2), ValidArgsFunction: names,
		RunE: func(c *cobra.Command, args []string) error {
			if !dry {
				if err := confirm(c, "Sessions of "+args[1]+" with "+args[0]+" will end"); err != nil {
					return err
				}
			}
			return change(c, http.MethodDelete, "/v1/targets/"+esc(args[0])+"/initiators/"+esc(args[1])+"?dry_run="+strconv.FormatBool(dry), nil)
		},
	}
	dryRun(deny, &dry)
	deny.Flags().Bool("yes", false, "do not ask")
	var sec admin.SecretSpec
	var remove bool
	secret := &cobra.Command{
		Use: "secret TARGET USER", Short: "Set a CHAP secret, read from standard input; the first one makes CHAP a must", Args: cobra.ExactArgs(2), ValidArgsFunction: names,
		Example: "  sluice target secret iqn.2026-11.org.example:disks alice < alice.secret",
		RunE: func(c *cobra.Command, args []string) error {
			at := "/v1/targets/" + esc(args[0]) + "/secrets"
			if remove {
				return change(c, http.MethodDelete, at+"/"+esc(args[1])+"?dry_run="+strconv.FormatBool(sec.DryRun), nil)
			}
			// Never an argument: those can be seen by everybody on the machine.
			line, err := bufio.NewReader(c.InOrStdin()).ReadString('\n')
			if line = strings.TrimSpace(line); line == "" {
				return ui.Usagef("no secret on standard input (%v)", err)
			}
			sec.User, sec.Secret = args[1], line
			return change(c, http.MethodPost, at, sec)
		},
	}
	secret.Flags().BoolVar(&sec.Mutual, "mutual", false, "the secret that the target itself proves, when an initiator asks")
	secret.Flags().BoolVar(&remove, "remove", false, "forget the secret instead")
	dryRun(secret, &sec.DryRun)
	return []*cobra.Command{allow, deny, secret}
}

func portalChanges() []*cobra.Command {
	var p admin.Portal
	var dry bool
	add := &cobra.Command{
		Use: "add ADDRESS", Short: "Listen on one more address", Args: cobra.ExactArgs(1), Example: "  sluice portals add 192.0.2.1:3260",
		RunE: func(c *cobra.Command, args []string) error {
			p.Address = args[0]
			return change(c, http.MethodPost, "/v1/portals?dry_run="+strconv.FormatBool(dry), p)
		},
	}
	add.Flags().Uint16Var(&p.Group, "group", 1, "target portal group tag")
	remove := &cobra.Command{
		Use: "remove ADDRESS", Short: "Listen there no more; its sessions stay until they end", Args: cobra.ExactArgs(1),
		ValidArgsFunction: complete("/v1/portals", func(p admin.Portal) string { return p.Address }),
		RunE: func(c *cobra.Command, args []string) error {
			return change(c, http.MethodDelete, "/v1/portals/"+esc(args[0])+"?dry_run="+strconv.FormatBool(dry), nil)
		},
	}
	dryRun(add, &dry)
	dryRun(remove, &dry)
	return []*cobra.Command{add, remove}
}

func exportChanges() []*cobra.Command {
	var e admin.ExportSpec
	var clients []string
	var readOnly, anyPort, dry bool
	var squash string
	add := &cobra.Command{
		Use: "add NAME DIRECTORY", Short: "Serve one more directory", Args: cobra.ExactArgs(2), Example: "  sluice exports add /data /srv/data --client 192.0.2.0/24",
		RunE: func(c *cobra.Command, args []string) error {
			e.Name, e.Path = args[0], args[1]
			for _, m := range clients {
				e.Clients = append(e.Clients, admin.ExportClient{Match: m, ReadOnly: readOnly, Squash: squash, AnyPort: anyPort})
			}
			if len(clients) == 0 && (c.Flags().Changed("read-only") || c.Flags().Changed("squash") || anyPort) {
				return ui.Usagef("--read-only, --squash and --any-port are about clients: name them with --client")
			}
			return change(c, http.MethodPost, "/v1/exports", e)
		},
	}
	add.Flags().StringSliceVar(&clients, "client", nil, "who may mount it: CIDR, address, host name, *.domain or * (repeatable; this machine by default)")
	add.Flags().BoolVar(&readOnly, "read-only", false, "these clients may not write")
	add.Flags().BoolVar(&anyPort, "any-port", false, "these clients may be programs of ordinary users, whose ports are above 1023")
	add.Flags().Uint32Var(&e.AnonUID, "anon-uid", 0, "the user that squashed callers are (default nobody)")
	add.Flags().Uint32Var(&e.AnonGID, "anon-gid", 0, "their group (default nogroup)")
	add.Flags().BoolVar(&e.Async, "async", false, "answer changes of names and attributes before they are durable")
	add.Flags().StringVar(&squash, "squash", "root", "whose requests run as nobody: root, all, none")
	remove := &cobra.Command{
		Use: "remove NAME", Short: "Serve a directory no more; its files stay", Args: cobra.ExactArgs(1),
		ValidArgsFunction: complete("/v1/exports", func(e admin.Export) string { return e.Name }),
		RunE: func(c *cobra.Command, args []string) error {
			if !dry {
				if err := confirm(c, "Clients that have "+args[0]+" mounted will get errors"); err != nil {
					return err
				}
			}
			return change(c, http.MethodDelete, "/v1/exports/"+esc(args[0])+"?dry_run="+strconv.FormatBool(dry), nil)
		},
	}
	remove.Flags().Bool("yes", false, "do not ask")
	dryRun(add, &e.DryRun)
	dryRun(remove, &dry)
	return []*cobra.Command{add, remove}
}
