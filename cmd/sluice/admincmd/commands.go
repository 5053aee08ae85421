package admincmd

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/target/admin"
	"github.com/sluice-storage/sluice/target/daemon"
)

// Commands are "sluice status, top, volume, target, session, portals, exports, reload, drain".
func Commands() []*cobra.Command {
	cs := []*cobra.Command{status(), top(), volume(), target(), session(), portals(), exports(), Reload(), drain()}
	for _, c := range cs {
		AddFlags(c)
	}
	return cs
}

// AddFlags gives c and its children the flags that say which daemon is meant.
func AddFlags(c *cobra.Command) {
	c.PersistentFlags().String("socket", "", "the daemon's admin.sock (default: in the state directory)")
	c.PersistentFlags().String("admin", "", "a daemon on another machine, https://HOST:PORT, instead of the socket")
	c.PersistentFlags().String("admin-cert", "", "client certificate for --admin (PEM)")
	c.PersistentFlags().String("admin-key", "", "its key (PEM)")
	c.PersistentFlags().String("admin-ca", "", "who signed the daemon's certificate (PEM; default: the system's authorities)")
}

func status() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Say what the daemon on this machine serves", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			info, err := get[admin.Info](c, "/v1/info")
			if err != nil {
				return err
			}
			sessions, err := get[[]admin.Session](c, "/v1/sessions")
			if err != nil {
				return err
			}
			targets, err := get[[]admin.Target](c, "/v1/targets")
			if err != nil {
				return err
			}
			all := map[string]any{"daemon": info, "targets": len(targets), "sessions": len(sessions)}
			return ui.Print(c, all, func(t *ui.Table) {
				t.Row("version", info.Version)
				t.Row("state", info.State)
				t.Row("pid", info.PID)
				t.Row("up", time.Since(info.Started).Round(time.Second))
				t.Row("configuration", info.Config)
				t.Row("state directory", info.Dir)
				t.Row("targets", len(targets))
				t.Row("sessions", len(sessions))
			})
		},
	}
}

func parseSize(s string) (int64, error) {
	n, err := daemon.ParseSize(s)
	if err != nil {
		return 0, ui.Usage(err)
	}
	return n, nil
}

func volume() *cobra.Command {
	top := &cobra.Command{Use: "volume", Short: "List, create, resize and delete volumes"}
	names := complete("/v1/volumes", func(v admin.Volume) string { return v.Name })
	list := &cobra.Command{
		Use: "list", Short: "List volumes", Aliases: []string{"ls", "show"}, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			vs, err := get[[]admin.Volume](c, "/v1/volumes")
			if err != nil {
				return err
			}
			return ui.Print(c, vs, func(t *ui.Table) {
				t.Row("NAME", "SIZE", "BLOCK", "ENGINE", "MAPPED", "HOW")
				for _, v := range vs {
					at := "-"
					if v.LUN != nil {
						at = fmt.Sprintf("%s/%d", v.Target, *v.LUN)
					}
					t.Row(v.Name, ui.Bytes(v.Size), v.Block, v.Engine, at, v.How)
				}
			})
		},
	}
	var spec admin.VolumeSpec
	create := &cobra.Command{
		Use: "create NAME SIZE", Short: "Create a sparse file volume", Args: cobra.RangeArgs(1, 2),
		Example: "  sluice volume create data 100GiB\n  sluice volume create copy --clone data",
		RunE: func(c *cobra.Command, args []string) (err error) {
			spec.Name = args[0]
			switch {
			case len(args) == 2:
				spec.Size, err = parseSize(args[1])
			case spec.Clone == "":
				err = ui.Usagef("a size is missing: sluice volume create %s 10GiB", args[0])
			}
			if err != nil {
				return err
			}
			return change(c, http.MethodPost, "/v1/volumes", spec)
		},
	}
	create.Flags().StringVar(&spec.Clone, "clone", "", "begin with the content of this volume, sharing its blocks where the file system can")
	create.Flags().IntVar(&spec.Block, "block", 0, "logical block in bytes: 512 or 4096 (default 512)")
	create.Flags().StringVar(&spec.Path, "path", "", "the file (default: NAME.img in the state directory)")
	create.Flags().BoolVar(&spec.DryRun, "dry-run", false, "say what would be done and do nothing")
	var rs admin.ResizeSpec
	resize := &cobra.Command{
		Use: "resize NAME SIZE", Short: "Make a volume larger while it is used", Args: cobra.ExactArgs(2), ValidArgsFunction: names,
		RunE: func(c *cobra.Command, args []string) (err error) {
			if rs.Size, err = parseSize(args[1]); err != nil {
				return err
			}
			return change(c, http.MethodPost, "/v1/volumes/"+esc(args[0])+"/resize", rs)
		},
	}
	resize.Flags().BoolVar(&rs.DryRun, "dry-run", false, "say what would be done and do nothing")
	var data, dry bool
	del := &cobra.Command{
		Use: "delete NAME", Short: "Forget a volume; with --data delete its file too", Args: cobra.ExactArgs(1), ValidArgsFunction: names,
		RunE: func(c *cobra.Command, args []string) error {
			if data && !dry {
				if err := confirm(c, "All data of volume "+args[0]+" will be lost"); err != nil {
					return err
				}
			}
			return change(c, http.MethodDelete, "/v1/volumes/"+esc(args[0])+"?data="+strconv.FormatBool(data)+"&dry_run="+strconv.FormatBool(dry), nil)
		},
	}
	del.Flags().BoolVar(&data, "data", false, "delete the file too")
	del.Flags().BoolVar(&dry, "dry-run", false, "say what would be done and do nothing")
	del.Flags().Bool("yes", false, "do not ask")
	top.AddCommand(list, create, resize, snapshot(), del)
	return top
}

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
		Use: "delete NAME", Short: "Remove a target; its sessions end", Args: cobra.ExactArgs(1), ValidArgsFunction: names,
		RunE: func(c *cobra.Command, args []string) error {
			if !dry {
				if err := confirm(c, "Sessions of "+args[0]+" will end"); err != nil {
					return err
				}
			}
			return change(c, http.MethodDelete, "/v1/targets/"+esc(args[0])+"?dry_run="+strconv.FormatBool(dry), nil)
		},
	}
	del.Flags().Bool("yes", false, "do not ask")
	mapc := &cobra.Command{
		Use: "map TARGET LUN VOLUME", Short: "Map a volume as a LUN", Args: cobra.ExactArgs(3), ValidArgsFunction: names,
		RunE: func(c *cobra.Command, args []string) error {
			lun, err := strconv.ParseUint(args[1], 10, 14)
			if err != nil {
				return ui.Usagef("%q is no LUN: a number from 0 to 16383", args[1])
			}
			return change(c, http.MethodPost, "/v1/targets/"+esc(args[0])+"/luns?dry_run="+strconv.FormatBool(dry), admin.LUN{LUN: uint16(lun), Volume: args[2]})
		},
	}
	unmap := &cobra.Command{
		Use: "unmap TARGET LUN", Short: "Take a LUN away", Args: cobra.ExactArgs(2), ValidArgsFunction: names,
		RunE: func(c *cobra.Command, args []string) error {
			return change(c, http.MethodDelete, "/v1/targets/"+esc(args[0])+"/luns/"+esc(args[1])+"?dry_run="+strconv.FormatBool(dry), nil)
		},
	}
	for _, c := range []*cobra.Command{del, mapc, unmap} {
		c.Flags().BoolVar(&dry, "dry-run", false, "say what would be done and do nothing")
	}
	top.AddCommand(list, create, del, mapc, unmap)
	top.AddCommand(access(names)...)
	top.AddCommand(groups(names)...)
	return top
}

func session() *cobra.Command {
	top := &cobra.Command{Use: "session", Short: "List and end sessions"}
	list := &cobra.Command{
		Use: "list", Short: "List who is logged in", Aliases: []string{"ls", "show"}, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ss, err := get[[]admin.Session](c, "/v1/sessions")
			if err != nil {
				return err
			}
			return ui.Print(c, ss, func(t *ui.Table) {
				t.Row("ID", "INITIATOR", "TARGET", "OVER", "FROM", "SINCE", "RUNNING", "READ", "WRITTEN")
				for _, s := range ss {
					t.Row(s.ID, s.Initiator, s.Target, s.Transport, s.Peer, time.Since(s.Since).Round(time.Second), s.Inflight, ui.Bytes(int64(s.Read)), ui.Bytes(int64(s.Written)))
				}
			})
		},
	}
	end := &cobra.Command{
		Use: "close ID", Short: "End a session; a stock initiator logs in again by itself", Args: cobra.ExactArgs(1),
		ValidArgsFunction: complete("/v1/sessions", func(s admin.Session) string { return s.ID }),
		RunE: func(c *cobra.Command, args []string) error {
			return change(c, http.MethodDelete, "/v1/sessions/"+esc(args[0]), nil)
		},
	}
	top.AddCommand(list, end, trace())
	return top
}

func portals() *cobra.Command {
	top := &cobra.Command{Use: "portals", Short: "List, add and remove the daemon's listening addresses", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ps, err := get[[]admin.Portal](c, "/v1/portals")
			if err != nil {
				return err
			}
			return ui.Print(c, ps, func(t *ui.Table) {
				t.Row("ADDRESS", "GROUP")
				for _, p := range ps {
					t.Row(p.Address, p.Group)
				}
			})
		}}
	top.AddCommand(portalChanges()...)
	return top
}

func exports() *cobra.Command {
	top := &cobra.Command{Use: "exports", Short: "List, add and remove the directories the daemon serves by NFS", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			es, err := get[[]admin.Export](c, "/v1/exports")
			if err != nil {
				return err
			}
			return ui.Print(c, es, func(t *ui.Table) {
				t.Row("EXPORT", "DIRECTORY")
				for _, e := range es {
					t.Row(e.Name, e.Path)
				}
			})
		}}
	top.AddCommand(exportChanges()...)
	return top
}

// Reload is "sluice reload", and "sluice config reload" too. Whoever adds it adds its flags.
func Reload() *cobra.Command {
	var dry bool
	c := &cobra.Command{Use: "reload", Short: "Let the daemon read its configuration again", Args: cobra.NoArgs,
		Long: "Let the daemon read its configuration again. Sessions that no change touches do not notice; a change that\ncannot be made as a whole is not made at all.",
		RunE: func(c *cobra.Command, _ []string) error {
			return change(c, http.MethodPost, "/v1/config/reload?dry_run="+strconv.FormatBool(dry), nil)
		}}
	dryRun(c, &dry)
	return c
}

func drain() *cobra.Command {
	return &cobra.Command{Use: "drain", Short: "Let the daemon finish what runs, and end", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return change(c, http.MethodPost, "/v1/drain", nil) }}
}
