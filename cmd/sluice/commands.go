package main

import (
	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/internal/fabricflag"
	"github.com/sluice-storage/sluice/cmd/sluice/admincmd"
	"github.com/sluice-storage/sluice/cmd/sluice/attachcmd"
	"github.com/sluice-storage/sluice/cmd/sluice/benchcmd"
	"github.com/sluice-storage/sluice/cmd/sluice/blockcmd"
	"github.com/sluice-storage/sluice/cmd/sluice/configcmd"
	"github.com/sluice-storage/sluice/cmd/sluice/demo"
	"github.com/sluice-storage/sluice/cmd/sluice/doctor"
	"github.com/sluice-storage/sluice/cmd/sluice/files"
	"github.com/sluice-storage/sluice/cmd/sluice/rdmacmd"
	"github.com/sluice-storage/sluice/cmd/sluice/rping"
)

// commands is everything sluice can do, in the order of the help text.
func commands() []*cobra.Command {
	cs := append(blockcmd.Commands(), files.ExtendCopy(blockcmd.CopyCommand()), benchcmd.Command(), demo.Command(), rping.Command(), configcmd.Command(), doctor.Command(), rdmacmd.Command(), man(), completions())
	cs = append(cs, files.Commands()...)
	cs = append(cs, attachcmd.Commands()...)
	cs = append(cs, admincmd.Commands()...)
	for _, c := range cs {
		completeFabric(c)
	}
	return cs
}

// completeFabric offers the words of --provider and --crc wherever a command has them.
func completeFabric(c *cobra.Command) {
	_ = fabricflag.Complete(c) // fails where the command does so itself
	for _, sub := range c.Commands() {
		completeFabric(sub)
	}
}
