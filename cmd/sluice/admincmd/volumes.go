package admincmd

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/target/admin"
	"github.com/sluice-storage/sluice/target/daemon"
)

func parseSize(s string) (int64, error) {
	n, err := daemon.ParseSize(s)
	if err != nil {
		return 0, ui.Usage(err)
	}
	return n, nil
}

func volume() *cobra.Command {
	top := &cobra.Command{Use: "volume", Short: "List, create, resize and delete volumes"}
	top.AddCommand(listVolumes(), createVolume(), resizeVolume(), snapshot(), deleteVolume())
	return top
}

// volumeNames completes the names of volumes.
func volumeNames() cobra.CompletionFunc {
	return complete("/v1/volumes", func(v admin.Volume) string { return v.Name })
}

func listVolumes() *cobra.Command {
	return &cobra.Command{
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
					how := v.How
					if v.Problem != "" {
						how = "not served: " + v.Problem
					}
					t.Row(v.Name, ui.Bytes(v.Size), v.Block, v.Engine, at, how)
				}
			})
		},
	}
}

func createVolume() *cobra.Command {
	var spec admin.VolumeSpec
	c := &cobra.Command{
		Use: "create NAME [SIZE]", Short: "Create a sparse file volume, one on an image of Ceph's, or the file of a configured one", Args: cobra.RangeArgs(1, 2),
		Example: "  sluice volume create data 100GiB\n  sluice volume create data         # configured, with its size\n  sluice volume create copy --clone data\n  sluice volume create vm 100GiB --rbd rbd/vm",
		RunE: func(c *cobra.Command, args []string) (err error) {
			spec.Name = args[0]
			if len(args) == 2 {
				if spec.Size, err = parseSize(args[1]); err != nil {
					return err
				}
			}
			return change(c, http.MethodPost, "/v1/volumes", spec)
		},
	}
	c.Flags().StringVar(&spec.Clone, "clone", "", "begin with the content of this volume, sharing its blocks where the file system can")
	c.Flags().IntVar(&spec.Block, "block", 0, "logical block in bytes: 512 or 4096 (default 512)")
	c.Flags().StringVar(&spec.RBD, "rbd", "", "an image of the Ceph cluster in place of a file: POOL/IMAGE or POOL/NAMESPACE/IMAGE; made where a size is given, else it is there")
	c.Flags().StringVar(&spec.Path, "path", "", "the file (default: NAME.img in the state directory)")
	dryRun(c, &spec.DryRun)
	return c
}

func resizeVolume() *cobra.Command {
	var spec admin.ResizeSpec
	c := &cobra.Command{
		Use: "resize NAME SIZE", Short: "Make a volume larger while it is used", Args: cobra.ExactArgs(2), ValidArgsFunction: volumeNames(), Example: "  sluice volume resize data 200GiB",
		RunE: func(c *cobra.Command, args []string) (err error) {
			if spec.Size, err = parseSize(args[1]); err != nil {
				return err
			}
			return change(c, http.MethodPost, "/v1/volumes/"+esc(args[0])+"/resize", spec)
		},
	}
	dryRun(c, &spec.DryRun)
	return c
}

func deleteVolume() *cobra.Command {
	var data, dry bool
	c := &cobra.Command{
		Use: "delete NAME", Short: "Forget a volume; with --data delete its file too", Args: cobra.ExactArgs(1), ValidArgsFunction: volumeNames(), Example: "  sluice volume delete data --data",
		RunE: func(c *cobra.Command, args []string) error {
			at := "/v1/volumes/" + esc(args[0])
			if data {
				return destroy(c, "All data of volume "+args[0]+" will be lost", at, url.Values{"data": {"true"}}, dry)
			}
			return change(c, http.MethodDelete, at+"?data=false&dry_run="+strconv.FormatBool(dry), nil)
		},
	}
	c.Flags().BoolVar(&data, "data", false, "delete the file too")
	dryRun(c, &dry)
	c.Flags().Bool("yes", false, "do not ask")
	return c
}

func snapshot() *cobra.Command {
	spec := admin.VolumeSpec{ReadOnly: true}
	c := &cobra.Command{
		Use: "snapshot VOLUME NAME", Short: "Make a read-only volume of what a volume holds now, sharing its blocks", Args: cobra.ExactArgs(2),
		Example: "  sluice volume snapshot data data-monday", ValidArgsFunction: volumeNames(),
		RunE: func(c *cobra.Command, args []string) error {
			spec.Clone, spec.Name = args[0], args[1]
			return change(c, http.MethodPost, "/v1/volumes", spec)
		},
	}
	dryRun(c, &spec.DryRun)
	return c
}
