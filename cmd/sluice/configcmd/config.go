// Package configcmd has the commands about a daemon's configuration, of files and of a daemon that runs: check, show, diff,
// schema, reload.
package configcmd

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/sluice/admincmd"
	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/configs"
	"github.com/sluice-storage/sluice/target/daemon"
)

// Command is "sluice config".
func Command() *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "Look at the configuration of sluiced: a file's, or a running daemon's",
		Long: `Look at the configuration of sluiced. What names a FILE reads that file and needs no daemon: nothing is opened, created or
served. What names none asks the daemon that runs.`,
	}
	live := []*cobra.Command{show(), diff(), admincmd.Reload()}
	for _, l := range live {
		admincmd.AddFlags(l)
	}
	c.AddCommand(check(), schema())
	c.AddCommand(live...)
	return c
}

// load reads FILE, or the embedded default without one.
func load(args []string) (*daemon.Config, error) {
	path := ""
	if len(args) > 0 {
		path = args[0]
	}
	cfg, err := daemon.Load(path, "", "")
	if err != nil {
		return nil, ui.ExitError{Code: ui.CodeRefused, Err: err}
	}
	return cfg, nil
}

func check() *cobra.Command {
	return &cobra.Command{
		Use:     "check FILE",
		Short:   "Say whether sluiced would take FILE, and what is wrong with it",
		Example: "  sluice config check /etc/sluice/sluiced.yaml",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			cfg, err := load(args)
			if err != nil {
				return err
			}
			sum := map[string]any{"file": args[0], "volumes": len(cfg.Volumes), "targets": len(cfg.Targets), "portals": len(cfg.Portals), "exports": len(cfg.Exports)}
			return ui.Print(c, sum, func(t *ui.Table) {
				t.Row(fmt.Sprintf("%s is good: %d volumes, %d targets, %d portals, %d exports", args[0], len(cfg.Volumes), len(cfg.Targets), len(cfg.Portals), len(cfg.Exports)))
			})
		},
	}
}

func show() *cobra.Command {
	var live bool
	c := &cobra.Command{
		Use:   "show [FILE]",
		Short: "Print every key with the value that counts, defaults included",
		Long: `Print every key with the value that counts, defaults included: of FILE, or, without one, of the daemon that runs, with its
drop-ins and what the administrative interface changed. Where no daemon runs either, it is the embedded default, and
standard error says so; with --live that is an error.

The output is YAML that sluiced reads. It holds no secret: a configuration only names the files they are in.`,
		Example: "  sluice config show\n  sluice config show /etc/sluice/sluiced.yaml\n  sluice config show --live --output json",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				if live {
					return ui.Usagef("--live shows what the daemon serves, not %s", args[0])
				}
				return showFile(c, args)
			}
			b, who, err := admincmd.LiveConfig(c)
			if !live && err != nil && admincmd.NoDaemon(c, err) {
				ui.Note(c.ErrOrStderr(), "This is the embedded default: %v", err)
				return showFile(c, nil)
			}
			if err != nil {
				return err
			}
			if j, err := ui.JSON(c); err != nil || j {
				if err != nil {
					return err
				}
				return liveJSON(c, b)
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "# what sluiced, process %d, serves now; it was started with %s\n%s", who.PID, who.Config, b)
			return err
		},
	}
	c.Flags().BoolVar(&live, "live", false, "what the daemon serves now, or an error when there is none")
	return c
}

func showFile(c *cobra.Command, args []string) error {
	cfg, err := load(args)
	if err != nil {
		return err
	}
	j, err := ui.JSON(c)
	if err != nil {
		return err
	}
	if j {
		return ui.Print(c, cfg, nil)
	}
	b, err := cfg.Show()
	if err != nil {
		return err
	}
	_, err = c.OutOrStdout().Write(b)
	return err
}

// liveJSON does not read the keys: the daemon may know more of them than this program.
func liveJSON(c *cobra.Command, b []byte) error {
	j, err := yaml.YAMLToJSON(b)
	if err != nil {
		return fmt.Errorf("the daemon's configuration cannot be read: %w", err)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, j, "", "  "); err != nil {
		return fmt.Errorf("the daemon's configuration cannot be read: %w", err)
	}
	_, err = out.WriteTo(c.OutOrStdout())
	return err
}

func diff() *cobra.Command {
	return &cobra.Command{
		Use:   "diff [OLD NEW]",
		Short: "List what going from OLD to NEW changes, or what a reload of the running daemon would, and what of it needs a restart",
		Long: `List what going from the file OLD to the file NEW changes, and what of it needs a restart. Without files: what the daemon that
runs would change if it read its configuration again.`,
		Example: "  sluice config diff sluiced.yaml sluiced.yaml.new\n  sluice config diff",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 1 {
				return ui.Usagef("say two files, or none to ask the daemon what a reload would change")
			}
			return cobra.MaximumNArgs(2)(c, args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				d, err := admincmd.PlannedChanges(c)
				if err != nil {
					return err
				}
				return ui.Print(c, d, func(t *ui.Table) {
					for _, l := range d.Changes {
						t.Row(l)
					}
				})
			}
			a, err := load(args[:1])
			if err != nil {
				return err
			}
			b, err := load(args[1:])
			if err != nil {
				return err
			}
			changes := a.Diff(b)
			if changes == nil {
				changes = []daemon.Change{}
			}
			return ui.Print(c, changes, func(t *ui.Table) {
				if len(changes) == 0 {
					t.Row("nothing changes")
					return
				}
				t.Row("KIND", "NAME", "CHANGE", "TAKES EFFECT")
				for _, ch := range changes {
					when := "on reload"
					if ch.Restart {
						when = "on restart"
					}
					t.Row(ch.Kind, ch.Name, ch.What, when)
				}
			})
		},
	}
}

func schema() *cobra.Command {
	return &cobra.Command{
		Use:     "schema",
		Short:   "Print the JSON schema of the configuration file, for editors",
		Example: "  sluice config schema > sluiced.schema.json\n  # in the file: # yaml-language-server: $schema=./sluiced.schema.json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := c.OutOrStdout().Write(configs.Schema)
			return err
		},
	}
}
