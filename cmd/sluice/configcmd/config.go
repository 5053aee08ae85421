// Package configcmd has the commands that look at a daemon's configuration file: check, show, diff, schema.
package configcmd

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/target/daemon"
)

// Command is "sluice config".
func Command() *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "Look at a configuration file of sluiced",
		Long:  "Look at a configuration file of sluiced without a daemon: nothing is opened, created or served.",
	}
	c.AddCommand(check(), show(), diff(), schema())
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
	return &cobra.Command{
		Use:   "show [FILE]",
		Short: "Print every key with the value that counts, defaults included",
		Long:  "Print every key with the value that counts, defaults included; without FILE, of the embedded default.\nThe output is YAML that sluiced reads. It holds no secret: a configuration only names the files they are in.",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
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
		},
	}
}

func diff() *cobra.Command {
	return &cobra.Command{
		Use:   "diff OLD NEW",
		Short: "List what going from OLD to NEW changes, and what of it needs a restart",
		Args:  cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
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
			e := json.NewEncoder(c.OutOrStdout())
			e.SetIndent("", "  ")
			return e.Encode(daemon.Schema())
		},
	}
}
