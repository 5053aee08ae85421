package admincmd

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/target/admin"
)

// accessStates are what an operator can put a port group in, in the words of SPC-4.
var accessStates = []string{"active/optimized", "active/non-optimized", "standby", "unavailable", "transitioning"}

// groups are the commands about a target's port groups.
func groups(names cobra.CompletionFunc) []*cobra.Command {
	list := &cobra.Command{
		Use: "groups TARGET", Short: "List a target's port groups and their access states (ALUA)", Args: cobra.ExactArgs(1), ValidArgsFunction: names, Example: "  sluice target groups iqn.2026-11.org.example:disks",
		RunE: func(c *cobra.Command, args []string) error {
			gs, err := get[[]admin.PortGroup](c, "/v1/targets/"+esc(args[0])+"/groups")
			if err != nil {
				return err
			}
			return ui.Print(c, gs, func(t *ui.Table) {
				t.Row("GROUP", "STATE", "PREFERRED", "PORTAL GROUP TAGS", "SET BY")
				for _, g := range gs {
					tags := "-"
					if len(g.Portals) > 0 {
						tags = strings.Trim(fmt.Sprint(g.Portals), "[]")
					}
					t.Row(g.Group, g.State, g.Preferred, tags, g.SetBy)
				}
			})
		},
	}
	var spec admin.PortGroupSpec
	set := &cobra.Command{
		Use: "set-group TARGET GROUP STATE", Short: "Set a port group's access state; initiators are told and use other paths", Args: cobra.ExactArgs(3),
		Long: "Set a port group's access state: " + strings.Join(accessStates, ", ") + `. Initiators that are logged in get the
unit attention ASYMMETRIC ACCESS STATE CHANGED and look for better paths; those with multipath go on by another
group. The state outlives a restart, until the configuration names another; transitioning lasts until the next change.`,
		Example: "  sluice target set-group iqn.2026-11.org.example:disks 2 standby",
		ValidArgsFunction: func(c *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			switch len(args) {
			case 0:
				return names(c, args, begun)
			case 1:
				return complete("/v1/targets/"+esc(args[0])+"/groups", func(g admin.PortGroup) string { return strconv.Itoa(int(g.Group)) })(c, nil, begun)
			case 2:
				return accessStates, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			if _, err := strconv.ParseUint(args[1], 10, 16); err != nil {
				return ui.Usagef("%q is no port group: a number from 0 to 65535", args[1])
			}
			spec.State = args[2]
			return change(c, http.MethodPost, "/v1/targets/"+esc(args[0])+"/groups/"+args[1], spec)
		},
	}
	dryRun(set, &spec.DryRun)
	return []*cobra.Command{list, set}
}
