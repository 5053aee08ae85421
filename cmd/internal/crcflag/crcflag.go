// Package crcflag is --crc of all commands, with the words of the daemon's fabric.crc: one word means one thing everywhere.
package crcflag

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// Words are the values that there are.
var Words = []string{"on", "always", "peer", "off"}

var policies = []iwarp.CRC{iwarp.CRCAuto, iwarp.CRCOn, iwarp.CRCPeer, iwarp.CRCOff}

// Add gives a set of flags --crc.
func Add(fs *pflag.FlagSet, into *string) {
	fs.StringVar(into, "crc", "on", "checksum of RDMA frames: on (but over loopback only if the peer asks), always, peer, off")
}

// Complete offers the words to a shell.
func Complete(c *cobra.Command) error {
	return c.RegisterFlagCompletionFunc("crc", cobra.FixedCompletions(Words, cobra.ShellCompDirectiveNoFileComp))
}

// Parse is what a word asks of the software RNIC.
func Parse(word string) (iwarp.CRC, error) {
	k := slices.Index(Words, word)
	if k < 0 {
		return 0, ui.Usagef("--crc %q is none of %s", word, strings.Join(Words, ", "))
	}
	return policies[k], nil
}
