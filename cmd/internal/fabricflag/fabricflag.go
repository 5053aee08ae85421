// Package fabricflag is --provider, --exposure, --ack-timeout and --crc of all commands, with the words of the daemon's configuration: one word
// means one thing everywhere.
package fabricflag

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/fabric"
)

// Flags are the values.
type Flags struct {
	Provider, Exposure, CRC string
	AckTimeout              time.Duration
}

// Add gives a set of flags --provider, --exposure, --ack-timeout and --crc.
func (f *Flags) Add(fs *pflag.FlagSet) { Add(fs, &f.Provider, &f.Exposure, &f.CRC, &f.AckTimeout) }

// Add is Flags.Add for values that stand elsewhere.
func Add(fs *pflag.FlagSet, provider, exposure, crc *string, ack *time.Duration) {
	fs.StringVar(provider, "provider", fabric.Providers[0], "what RDMA goes through, where the URL does not say it: iwarp (software, over TCP), verbs (RDMA adapters), shm (memory shared with a daemon of this host)")
	AddExposure(fs, exposure)
	fs.DurationVar(ack, ackTimeout, 0, "how long RDMA adapters wait for an acknowledgement before they send again (default: the connection manager's)")
	fs.StringVar(crc, "crc", fabric.CRCs[0], "checksum of software iWARP's frames: on (but over loopback only if the peer asks), always, peer, off")
}

const ackTimeout = "ack-timeout"

// AddExposure gives a set of flags --exposure.
func AddExposure(fs *pflag.FlagSet, into *string) {
	fs.StringVar(into, "exposure", fabric.Exposures[0], "what a peer may reach through an RDMA adapter: windows (the bytes of each I/O; adapters that cannot are refused), "+
		"whole-slab (all registered memory, by those: the peer is trusted with it)")
}

// values are those of each flag and mount option.
var values = map[string][]string{"provider": fabric.Providers, "exposure": fabric.Exposures, "crc": fabric.CRCs}

// Complete offers the words to a shell.
func Complete(c *cobra.Command) error {
	var errs []error
	for name, words := range values {
		if c.Flags().Lookup(name) != nil {
			errs = append(errs, c.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)))
		}
	}
	return errors.Join(errs...)
}

// Of reads the flags of a command that has them.
func Of(c *cobra.Command) (f Flags) {
	for name, into := range f.Words() {
		if l := c.Flags().Lookup(name); l != nil {
			*into = l.Value.String()
		}
	}
	if c.Flags().Lookup(ackTimeout) != nil {
		f.AckTimeout, _ = c.Flags().GetDuration(ackTimeout) // it is one
	}
	return f
}

// Words are the values by the names of their flags, which are also those of mount options and of a table's.
func (f *Flags) Words() map[string]*string {
	return map[string]*string{"provider": &f.Provider, "exposure": &f.Exposure, "crc": &f.CRC}
}

// Options are those of a device.
func (f Flags) Options() fabric.Options {
	return fabric.Options{CRC: f.CRC, Exposure: f.Exposure, AckTimeout: f.AckTimeout}
}

// Check refuses words that mean nothing.
func (f Flags) Check() error { return Explain(fabric.Check(f.Provider, f.Options())) }

// Set makes devices as the words say. What they expose beyond the bytes of each I/O is said to w.
func (f Flags) Set(w io.Writer) (*fabric.Set, error) {
	if err := f.Check(); err != nil {
		return nil, err
	}
	return &fabric.Set{Default: f.Provider, Options: f.Options(), Say: say(w)}, nil
}

// New makes the device that the words name, with further options.
func (f Flags) New(w io.Writer, o fabric.Options) (transport.Device, error) {
	o.CRC, o.Exposure, o.AckTimeout = f.CRC, f.Exposure, f.AckTimeout
	d, err := fabric.New(f.Provider, o)
	if err != nil {
		return nil, Explain(err)
	}
	for _, line := range fabric.Exposed(d) {
		say(w)(line)
	}
	return d, nil
}

func say(w io.Writer) func(string) {
	return func(line string) { ui.Note(w, "sluice: %s", line) }
}

// Explain gives an error of package fabric its exit code.
func Explain(err error) error {
	var word *fabric.WordError
	if errors.As(err, &word) {
		flag := map[string]string{"the provider": "--provider", "the checksum": "--crc", "the exposure": "--exposure", fabric.AckTimeout: "--" + ackTimeout}[word.What]
		if flag == "" {
			return ui.Usage(err)
		}
		return ui.Usage(&fabric.WordError{What: flag, Word: word.Word, Known: word.Known, With: word.With})
	}
	var ack *fabric.AckTimeoutError
	if errors.As(err, &ack) && ack.Err == nil {
		return ui.Usage(fmt.Errorf("--%s: %w", ackTimeout, err))
	}
	if fabric.Exposes(err) {
		return ui.ExitError{Code: ui.CodeRefused, Err: err}
	}
	return err
}
