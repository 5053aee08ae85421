package admincmd

import (
	"bufio"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/target/admin"
)

// Commands about who may use a target.

func allowInitiator() *cobra.Command {
	var in admin.InitiatorSpec
	var luns []uint
	c := &cobra.Command{
		Use: "allow TARGET INITIATOR", Short: "Let an initiator log in; the first one keeps out everybody else", Args: cobra.ExactArgs(2), ValidArgsFunction: targetNames(),
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
	c.Flags().UintSliceVar(&luns, "lun", nil, "what it sees (repeatable; all by default)")
	dryRun(c, &in.DryRun)
	return c
}

func denyInitiator() *cobra.Command {
	var dry bool
	c := &cobra.Command{
		Use: "deny TARGET INITIATOR", Short: "Take an initiator off the list; its sessions end", Args: cobra.ExactArgs(2), ValidArgsFunction: targetNames(),
		Example: "  sluice target deny iqn.2026-11.org.example:disks iqn.2026-11.org.example:web",
		RunE: func(c *cobra.Command, args []string) error {
			return destroy(c, "Sessions of "+args[1]+" with "+args[0]+" will end", "/v1/targets/"+esc(args[0])+"/initiators/"+esc(args[1]), url.Values{}, dry)
		},
	}
	dryRun(c, &dry)
	c.Flags().Bool("yes", false, "do not ask")
	return c
}

func setSecret() *cobra.Command {
	var sec admin.SecretSpec
	var remove bool
	c := &cobra.Command{
		Use: "secret TARGET USER", Short: "Set a CHAP secret, read from standard input; the first one makes CHAP a must", Args: cobra.ExactArgs(2), ValidArgsFunction: targetNames(),
		Example: "  sluice target secret iqn.2026-11.org.example:disks alice --initiator iqn.1993-08.org.debian:01:abcdef < alice.secret",
		RunE: func(c *cobra.Command, args []string) error {
			at := "/v1/targets/" + esc(args[0]) + "/secrets"
			if remove {
				return cut(c, "Who logs in to "+args[0]+" as "+args[1]+" is kept out, and the secret is gone", at+"/"+esc(args[1]), sec.DryRun)
			}
			// Never an argument: every user of the machine can see those.
			line, err := bufio.NewReader(c.InOrStdin()).ReadString('\n')
			if line = strings.TrimSpace(line); line == "" {
				return ui.Usagef("no secret on standard input (%v)", err)
			}
			sec.User, sec.Secret = args[1], line
			return change(c, http.MethodPost, at, sec)
		},
	}
	c.Flags().BoolVar(&sec.Mutual, "mutual", false, "the secret that the target itself proves, when an initiator asks")
	c.Flags().StringSliceVar(&sec.Initiators, "initiator", nil, "the only initiator name that the user may log in under (repeatable)")
	c.Flags().BoolVar(&remove, "remove", false, "forget the secret instead")
	dryRun(c, &sec.DryRun)
	ui.Asks(c)
	return c
}
