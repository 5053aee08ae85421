// Command sluice is the operator's and client's tool: it discovers targets, copies data into and out of volumes, mounts
// and measures them. It only wires; initiator/ does the work.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/sluice/attachcmd"
	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/internal/version"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if code, ok := attachcmd.MultiCall(ctx, os.Args, os.Stderr); ok {
		os.Exit(code)
	}
	err := root().ExecuteContext(ctx)
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "sluice:", err)
	var code ui.ExitError
	if errors.As(err, &code) {
		os.Exit(code.Code)
	}
	os.Exit(1)
}

func root() *cobra.Command {
	c := &cobra.Command{
		Use:   "sluice",
		Short: "Reach volumes over iSER and iSCSI, and files over NFS",
		Long: `sluice reaches storage targets: volumes by URLs such as

  iser://HOST[:PORT]/TARGET/LUN      RDMA, over the built-in software RNIC
  iscsi://HOST[:PORT]/TARGET/LUN     plain TCP
  iscsi://USER%SECRET@HOST/TARGET/LUN   with CHAP; better: put the secret in LIBISCSI_CHAP_PASSWORD

where TARGET is an iSCSI name (iqn., eui. or naa.), as "sluice discover" lists them.

Exit codes: 0 done; 1 failed; 2 wrong usage; 3 nobody answered; 4 refused or not there; 5 data differ.`,
		Version:       version.Long(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	ui.AddOutputFlag(c)
	c.AddCommand(commands()...)
	ui.ExplainUsage(c)
	return c
}
