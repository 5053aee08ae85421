package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/sluice-storage/sluice/cmd/internal/daemoncmd"
	"github.com/sluice-storage/sluice/internal/version"
)

// man writes a manual page for every command, the daemon's too, for packages. Their date is SOURCE_DATE_EPOCH's.
func man() *cobra.Command {
	return &cobra.Command{
		Use: "man DIR", Short: "Write the manual pages of all commands into DIR", Hidden: true, Args: cobra.ExactArgs(1), Example: "  sluice man dist/man",
		RunE: func(c *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			src := "Sluice " + version.String()
			if err := doc.GenManTree(c.Root(), &doc.GenManHeader{Title: "SLUICE", Section: "1", Source: src, Manual: "Sluice"}, args[0]); err != nil {
				return fmt.Errorf("manual pages: %w", err)
			}
			if err := doc.GenManTree(daemoncmd.Command(), &doc.GenManHeader{Title: "SLUICED", Section: "8", Source: src, Manual: "Sluice"}, args[0]); err != nil {
				return fmt.Errorf("manual page of sluiced: %w", err)
			}
			return nil
		},
	}
}

// completions writes the completion scripts of both programs, for packages.
func completions() *cobra.Command {
	return &cobra.Command{
		Use: "completions DIR", Short: "Write the completion scripts of both programs into DIR", Hidden: true, Args: cobra.ExactArgs(1), Example: "  sluice completions dist/completions",
		RunE: func(c *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			for _, p := range []*cobra.Command{c.Root(), daemoncmd.Command()} {
				file := func(pattern string) string { return filepath.Join(args[0], fmt.Sprintf(pattern, p.Name())) }
				if err := p.GenBashCompletionFileV2(file("%s.bash"), true); err != nil {
					return err
				}
				if err := p.GenZshCompletionFile(file("_%s")); err != nil {
					return err
				}
				if err := p.GenFishCompletionFile(file("%s.fish"), true); err != nil {
					return err
				}
			}
			return nil
		},
	}
}
