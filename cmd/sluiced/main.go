// Command sluiced is the storage target: it serves the volumes and exports of a YAML file, or an embedded default, over
// iSER, iSCSI/TCP and NFS. It only wires; target/daemon does the work.
package main

import (
	"fmt"
	"os"

	"github.com/sluice-storage/sluice/cmd/internal/daemoncmd"
)

func main() {
	err := daemoncmd.Command().Execute()
	if err != nil {
		fmt.Fprintln(os.Stderr, "sluiced:", err)
	}
	os.Exit(daemoncmd.ExitCode(err))
}
