package admincmd

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/target/admin"
)

func target() *cobra.Command {
	top := &cobra.Command{Use: "target", Short: "List, create and delete targets, and map volumes"}
	top.AddCommand(listTargets(), createTarget(), deleteTarget(), mapLUN(), unmapLUN(), allowInitiator(), denyInitiator(), setSecret(), srpPorts())
	top.AddCommand(groups(targetNames())...)
	return top
}

// targetNames completes the names of targets.
func targetNames() cobra.CompletionFunc {
	return complete("/v1/targets", func(t admin.Target) string { return t.Name })
}

func listTargets() *cobra.Command {
	return &cobra.Command{
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
}

// srpPorts prints what a Linux host is told: SRP has no discovery that goes over RDMA/CM.
func srpPorts() *cobra.Command {
	return &cobra.Command{
		Use: "srp TARGET", Short: "Print how Linux hosts log in to a target over SRP", Args: cobra.ExactArgs(1), ValidArgsFunction: targetNames(), Example: "  sluice target srp iqn.2026-11.org.example:disks",
		Long: "Print how Linux hosts log in to a target over the SCSI RDMA Protocol (ib_srp): the line for each address of `srp` in the\nconfiguration, to be written to /sys/class/infiniband_srp/srp-ADAPTER-PORT/add_target.",
		RunE: func(c *cobra.Command, args []string) error {
			ts, err := get[[]admin.Target](c, "/v1/targets")
			if err != nil {
				return err
			}
			i := slices.IndexFunc(ts, func(t admin.Target) bool { return t.Name == args[0] })
			switch {
			case i < 0:
				return refused("there is no target %s", args[0])
			case ts[i].NotSRP != "":
				return refused("target %s is not served over SRP: %s", args[0], ts[i].NotSRP)
			case len(ts[i].SRP) == 0:
				return refused("the daemon has no address for SRP: add srp to its configuration, and reload")
			}
			return ui.Print(c, ts[i].SRP, func(t *ui.Table) {
				for _, p := range ts[i].SRP {
					t.Row(addTarget(p))
				}
			})
		},
	}
}

func refused(format string, a ...any) error {
	return ui.ExitError{Code: ui.CodeRefused, Err: fmt.Errorf(format, a...)}
}

// addTarget is the line for add_target of ib_srp. Where the daemon listens everywhere the host is the reader's to fill in.
func addTarget(p admin.SRPPort) string {
	dest := p.Address
	if host, port, err := net.SplitHostPort(p.Address); err == nil {
		if a, err := netip.ParseAddr(host); host == "" || err == nil && a.IsUnspecified() {
			dest = "ADDRESS:" + port
		}
	}
	return "id_ext=" + p.IDExt + ",ioc_guid=" + p.IOCGUID + ",dest=" + dest
}

func createTarget() *cobra.Command {
	var spec admin.TargetSpec
	c := &cobra.Command{
		Use: "create NAME", Short: "Create a target", Args: cobra.ExactArgs(1), Example: "  sluice target create iqn.2026-11.org.example:disks",
		RunE: func(c *cobra.Command, args []string) error {
			spec.Name = args[0]
			return change(c, http.MethodPost, "/v1/targets", spec)
		},
	}
	c.Flags().StringVar(&spec.Alias, "alias", "", "a name for people")
	c.Flags().StringSliceVar(&spec.Initiators, "initiator", nil, "let in only this initiator name (repeatable)")
	dryRun(c, &spec.DryRun)
	return c
}

func deleteTarget() *cobra.Command {
	var dry bool
	c := &cobra.Command{
		Use: "delete NAME", Short: "Remove a target; its sessions end", Args: cobra.ExactArgs(1), ValidArgsFunction: targetNames(), Example: "  sluice target delete iqn.2026-11.org.example:disks",
		RunE: func(c *cobra.Command, args []string) error {
			return destroy(c, "Sessions of "+args[0]+" will end, and its map, its list of initiators and its secrets go", "/v1/targets/"+esc(args[0]), url.Values{}, dry)
		},
	}
	dryRun(c, &dry)
	c.Flags().Bool("yes", false, "do not ask")
	return c
}

func mapLUN() *cobra.Command {
	var dry bool
	c := &cobra.Command{
		Use: "map TARGET LUN VOLUME", Short: "Map a volume as a LUN", Args: cobra.ExactArgs(3), ValidArgsFunction: targetNames(), Example: "  sluice target map iqn.2026-11.org.example:disks 0 data",
		RunE: func(c *cobra.Command, args []string) error {
			lun, err := strconv.ParseUint(args[1], 10, 14)
			if err != nil {
				return ui.Usagef("%q is no LUN: a number from 0 to 16383", args[1])
			}
			return change(c, http.MethodPost, "/v1/targets/"+esc(args[0])+"/luns?dry_run="+strconv.FormatBool(dry), admin.LUN{LUN: uint16(lun), Volume: args[2]})
		},
	}
	dryRun(c, &dry)
	return c
}

func unmapLUN() *cobra.Command {
	var dry bool
	c := &cobra.Command{
		Use: "unmap TARGET LUN", Short: "Take a LUN away; the volume and its data stay", Args: cobra.ExactArgs(2), ValidArgsFunction: targetNames(), Example: "  sluice target unmap iqn.2026-11.org.example:disks 0",
		RunE: func(c *cobra.Command, args []string) error {
			return cut(c, "Hosts that use LUN "+args[1]+" of "+args[0]+" lose their disk", "/v1/targets/"+esc(args[0])+"/luns/"+esc(args[1]), dry)
		},
	}
	dryRun(c, &dry)
	ui.Asks(c)
	return c
}
