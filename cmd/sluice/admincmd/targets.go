package admincmd

import (
	"bufio"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/target/admin"
)

func target() *cobra.Command {
	top := &cobra.Command{Use: "target", Short: "List, create and delete targets, and map volumes"}
	names := complete("/v1/targets", func(t admin.Target) string { return t.Name })
	list := &cobra.Command{
		Use: "list", Short: "List targets and their LUN maps", Aliases: []string{"ls", "show"}, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ts, err := get[[]admin.Target](c, "/v1/targets")
			if err != nil {
				return err
			}
			return ui.Print(c, ts, func(t *ui.Table) {
				t.Row("TARGET", "LUN", "VOLUME", "SESSIONS", "INITIATORS", "CHAP")
				for _, tg := range ts {
					who := "any"
					if n := len(tg.Initiators); n > 0 {
						who = strconv.Itoa(n)
					}
					if tg.Problem != "" {
						t.Row(tg.Name, "-", "NOT SERVED: "+tg.Problem, tg.Sessions, who, tg.CHAP)
						continue
					}
					if len(tg.LUNs) == 0 {
						t.Row(tg.Name, "-", "-", tg.Sessions, who, tg.CHAP)
					}
					for _, l := range tg.LUNs {
						t.Row(tg.Name, l.LUN, l.Volume, tg.Sessions, who, tg.CHAP)
					}
				}
			})
		},
	}
	var spec admin.TargetSpec
	create := &cobra.Command{
		Use: "create NAME", Short: "Create a target", Args: cobra.ExactArgs(1), Example: "  sluice target create iqn.2026-11.org.example:disks",
		RunE: func(c *cobra.Command, args []string) error {
			spec.Name = args[0]
			return change(c, http.MethodPost, "/v1/targets", spec)
		},
	}
	create.Flags().StringVar(&spec.Alias, "alias", "", "a name for people")
	create.Flags().StringSliceVar(&spec.Initiators, "initiator", nil, "let in only this initiator name (repeatable)")
	create.Flags().BoolVar(&spec.DryRun, "dry-run", false, "say what would be done and do nothing")
	var dry bool
	del := &cobra.Command{
		Use: "delete NAME", Short: "Remove a target; its sessions end", Args: cobra.ExactArgs(1), ValidArgsFunction: names, Example: "  sluice target delete iqn.2026-11.org.example:disks",
		RunE: func(c *cobra.Command, args []string) error {
			return destroy(c, "Sessions of "+args[0]+" will end, and its map, its list of initiators and its secrets go", "/v1/targets/"+esc(args[0]), url.Values{}, dry)
		},
	}
	del.Flags().Bool("yes", false, "do not ask")
	mapc := &cobra.Command{
		Use: "map TARGET LUN VOLUME", Short: "Map a volume as a LUN", Args: cobra.ExactArgs(3), ValidArgsFunction: names, Example: "  sluice target map iqn.2026-11.org.example:disks 0 data",
		RunE: func(c *cobra.Command, args []string) error {
			lun, err := strconv.ParseUint(args[1], 10, 14)
			if err != nil {
				return ui.Usagef("%q is no LUN: a number from 0 to 16383", args[1])
			}
			return change(c, http.MethodPost, "/v1/targets/"+esc(args[0])+"/luns?dry_run="+strconv.FormatBool(dry), admin.LUN{LUN: uint16(lun), Volume: args[2]})
		},
	}
	unmap := &cobra.Command{
		Use: "unmap TARGET LUN", Short: "Take a LUN away; the volume and its data stay", Args: cobra.ExactArgs(2), ValidArgsFunction: names, Example: "  sluice target unmap iqn.2026-11.org.example:disks 0",
		RunE: func(c *cobra.Command, args []string) error {
			return cut(c, "Hosts that use LUN "+args[1]+" of "+args[0]+" lose their disk", "/v1/targets/"+esc(args[0])+"/luns/"+esc(args[1]), dry)
		},
	}
	ui.Asks(unmap)
	for _, c := range []*cobra.Command{del, mapc, unmap} {
		c.Flags().BoolVar(&dry, "dry-run", false, "say what would be done and do nothing")
	}
	top.AddCommand(list, create, del, mapc, unmap)
	top.AddCommand(access(names)...)
	top.AddCommand(groups(names)...)
	return top
}

// access are the commands about who may use a target.
func access(names func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)) []*cobra.Command {
	var in admin.InitiatorSpec
	var luns []uint
	allow := &cobra.Command{
		Use: "allow TARGET INITIATOR", Short: "Let an initiator log in; the first one keeps out everybody else", Args: cobra.ExactArgs(2), ValidArgsFunction: names,
		Example: "  sluice target allow iqn.2026-11.org.example:disks iqn.2026-11.org.example:web --lun 0",
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
		Example: "  sluice target deny iqn.2026-11.org.example:disks iqn.2026-11.org.example:web",
		RunE: func(c *cobra.Command, args []string) error {
			return destroy(c, "Sessions of "+args[1]+" with "+args[0]+" will end", "/v1/targets/"+esc(args[0])+"/initiators/"+esc(args[1]), url.Values{}, dry)
		},
	}
	dryRun(deny, &dry)
	deny.Flags().Bool("yes", false, "do not ask")
	var sec admin.SecretSpec
	var remove bool
	secret := &cobra.Command{
		Use: "secret TARGET USER", Short: "Set a CHAP secret, read from standard input; the first one makes CHAP a must", Args: cobra.ExactArgs(2), ValidArgsFunction: names,
		Example: "  sluice target secret iqn.2026-11.org.example:disks alice --initiator iqn.1993-08.org.debian:01:abcdef < alice.secret",
		RunE: func(c *cobra.Command, args []string) error {
			at := "/v1/targets/" + esc(args[0]) + "/secrets"
			if remove {
				return cut(c, "Who logs in to "+args[0]+" as "+args[1]+" is kept out, and the secret is gone", at+"/"+esc(args[1]), sec.DryRun)
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
	secret.Flags().StringSliceVar(&sec.Initiators, "initiator", nil, "the only initiator name that the user may log in under (repeatable)")
	secret.Flags().BoolVar(&remove, "remove", false, "forget the secret instead")
	dryRun(secret, &sec.DryRun)
	ui.Asks(secret)
	return []*cobra.Command{allow, deny, secret}
}
