// Package fabricflag is --provider and --crc of all commands, with the words of the daemon's configuration: one word means one
// thing everywhere.
package fabricflag

import (
	"errors"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/transport/fabric"
)

// Flags are the values.
type Flags struct{ Provider, CRC string }

// Add gives a set of flags --provider and --crc.
func (f *Flags) Add(fs *pflag.FlagSet) {
	AddProvider(fs, &f.Provider)
	AddCRC(fs, &f.CRC)
}

// AddProvider gives a set of flags --provider.
func AddProvider(fs *pflag.FlagSet, into *string) {
	fs.StringVar(into, "provider", fabric.Providers[0], "what RDMA goes through, where the URL does not say it: iwarp (software, over TCP), verbs (RDMA adapters)")
}

// AddCRC gives a set of flags --crc.
func AddCRC(fs *pflag.FlagSet, into *string) {
	fs.StringVar(into, "crc", fabric.CRCs[0], "checksum of software iWARP's frames: on (but over loopback only if the peer asks), always, peer, off")
}

// Complete offers the words to a shell.
func Complete(c *cobra.Command) error {
	var errs []error
	for name, words := range map[string][]string{"provider": fabric.Providers, "crc": fabric.CRCs} {
		if c.Flags().Lookup(name) != nil {
			errs = append(errs, c.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)))
		}
	}
	return errors.Join(errs...)
}

// Set makes devices as the words say.
func (f Flags) Set() (*fabric.Set, error) {
	o := fabric.Options{CRC: f.CRC}
	if err := Explain(fabric.Check(f.Provider, o)); err != nil {
		return nil, err
	}
	return &fabric.Set{Default: f.Provider, Options: o}, nil
}

// Explain gives an error of package fabric its exit code.
func Explain(err error) error {
	var word *fabric.ErrWord
	if errors.As(err, &word) {
		flag := map[string]string{"the provider": "--provider", "the checksum": "--crc"}[word.What]
		if flag == "" {
			return ui.Usage(err)
		}
		return ui.Usage(&fabric.ErrWord{What: flag, Word: word.Word, Known: word.Known})
	}
	return err
}
