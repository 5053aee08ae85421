package admincmd

import (
	"net/http"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/target/admin"
)

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
		Use: "remove ADDRESS", Short: "Listen there no more; its sessions stay until they end", Args: cobra.ExactArgs(1), Example: "  sluice portals remove 192.0.2.1:3260",
		ValidArgsFunction: complete("/v1/portals", func(p admin.Portal) string { return p.Address }),
		RunE: func(c *cobra.Command, args []string) error {
			return cut(c, "Hosts that know "+args[0]+" alone cannot log in again", "/v1/portals/"+esc(args[0]), dry)
		},
	}
	dryRun(add, &dry)
	dryRun(remove, &dry)
	ui.Asks(remove)
	return []*cobra.Command{add, remove}
}
