package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/sluice-storage/sluice/internal/version"
)

// man writes a manual page for every command, for packages.
func man() *cobra.Command {
	return &cobra.Command{
		Use: "man DIR", Short: "Write the manual pages of all commands into DIR", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			h := &doc.GenManHeader{Title: "SLUICE", Section: "1", Source: "Sluice " + version.String(), Manual: "Sluice"}
			if err := doc.GenManTree(c.Root(), h, args[0]); err != nil {
				return fmt.Errorf("manual pages: %w", err)
			}
			return nil
		},
	}
}
