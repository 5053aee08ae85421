package admincmd

import (
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/target/admin"
)

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
					at := e.Path
					if e.Problem != "" {
						at = "NOT SERVED: " + e.Problem
					}
					t.Row(e.Name, at)
				}
			})
		}}
	top.AddCommand(exportChanges()...)
	return top
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
		Use: "remove NAME", Short: "Serve a directory no more; its files stay", Args: cobra.ExactArgs(1), Example: "  sluice exports remove /data",
		ValidArgsFunction: complete("/v1/exports", func(e admin.Export) string { return e.Name }),
		RunE: func(c *cobra.Command, args []string) error {
			return destroy(c, "Clients that have "+args[0]+" mounted will get errors; its files stay", "/v1/exports/"+esc(args[0]), url.Values{}, dry)
		},
	}
	remove.Flags().Bool("yes", false, "do not ask")
	dryRun(add, &e.DryRun)
	dryRun(remove, &dry)
	return []*cobra.Command{add, remove}
}
