package admincmd

import (
	"net/http"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/target/admin"
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

// Reload is "sluice reload", and "sluice config reload" too. The caller adds its flags.
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
	c := &cobra.Command{Use: "drain", Short: "Let the daemon finish what runs, and end", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := ui.ConfirmUnlessSure(c, "The daemon ends, and all hosts lose their disks and directories until it is started again"); err != nil {
				return err
			}
			return change(c, http.MethodPost, "/v1/drain", nil)
		}}
	ui.Asks(c)
	return c
}

func dryRun(c *cobra.Command, into *bool) {
	c.Flags().BoolVar(into, "dry-run", false, "say what would be done and do nothing")
}
