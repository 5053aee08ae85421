package rping

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/internal/fabricflag"
	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/fabric"
)

type flags struct {
	address    string
	size       int
	count      int
	fabric     fabricflag.Flags
	revision   int
	p2p        bool
	ird, ord   int
	verify     bool
	verbose    bool
	persistent bool
	timeout    time.Duration
}

// Command is "sluice rping".
func Command() *cobra.Command {
	c := &cobra.Command{
		Use:   "rping",
		Short: "Ping over RDMA, with the protocol of librdmacm's rping",
		Long: `rping moves a line of text by RDMA Read and back by RDMA Write and compares it. Its peer is another
"sluice rping", or the rping program of librdmacm on a machine with an iWARP adapter or siw. With --provider verbs
it goes through this machine's RDMA adapters, and the peer's may be of any kind that these reach: RoCE, InfiniBand, iWARP.`,
	}
	c.AddCommand(clientCommand(), serverCommand())
	return c
}

func clientCommand() *cobra.Command {
	var f flags
	c := &cobra.Command{
		Use:   "client",
		Short: "Ping a server",
		Example: `  sluice rping client --address 192.0.2.1 --count 10
  rping -s -a 192.0.2.1 -C 10       # its peer on a Linux machine`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return f.client(c) },
	}
	f.common(c)
	c.Flags().IntVar(&f.size, "size", 64, fmt.Sprintf("bytes of a ping, %d to %d", MinSize, MaxSize))
	c.Flags().IntVar(&f.revision, "mpa-rev", 2, "revision of the MPA set-up, 1 or 2")
	c.Flags().BoolVar(&f.p2p, "p2p", false, "ask for peer-to-peer set-up (RFC 6581)")
	return c
}

func serverCommand() *cobra.Command {
	var f flags
	c := &cobra.Command{
		Use:   "server",
		Short: "Answer one client, or all that come with --persistent",
		Example: `  sluice rping server --address 192.0.2.2
  rping -c -a 192.0.2.2 -C 10 -v    # its peer on a Linux machine`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return f.server(c) },
	}
	f.common(c)
	c.Flags().BoolVar(&f.persistent, "persistent", false, "serve one client after the other")
	return c
}

func (f *flags) common(c *cobra.Command) {
	c.Flags().StringVar(&f.address, "address", "127.0.0.1", "host or host:port, port "+DefaultPort+" if left out")
	c.Flags().IntVar(&f.count, "count", 0, "pings, 0 for no end")
	f.fabric.Add(c.Flags())
	c.Flags().IntVar(&f.ird, "ird", 1, "RDMA Reads of the peer to serve at a time")
	c.Flags().IntVar(&f.ord, "ord", 1, "own RDMA Reads at a time")
	c.Flags().BoolVar(&f.verify, "verify", true, "let the server too compare what it gets")
	c.Flags().BoolVarP(&f.verbose, "verbose", "v", false, "print each ping")
	c.Flags().DurationVar(&f.timeout, "timeout", 0, "give up after this long, 0 for never")
}

func (f *flags) device(w io.Writer) (transport.Device, error) {
	if f.revision != 0 && f.revision != 1 && f.revision != 2 {
		return nil, ui.Usagef("--mpa-rev is 1 or 2, not %d", f.revision)
	}
	return f.fabric.New(w, fabric.Options{Revision: f.revision, PeerToPeer: f.p2p})
}

func (f *flags) config(c *cobra.Command) Config {
	cfg := Config{Size: f.size, Count: f.count, Verify: f.verify, Params: transport.ConnParams{ReadsIn: f.ird, ReadsOut: f.ord}}
	if f.verbose {
		w := c.ErrOrStderr()
		cfg.OnPing = func(n int, data []byte) { fmt.Fprintf(w, "ping %d: %d bytes, %.40q...\n", n, len(data), data) }
	}
	return cfg
}

func (f *flags) context(c *cobra.Command) (context.Context, context.CancelFunc) {
	if f.timeout <= 0 {
		return context.WithCancel(c.Context())
	}
	return context.WithTimeout(c.Context(), f.timeout)
}

// addr adds the port that was left out.
func (f *flags) addr() string {
	if _, _, err := net.SplitHostPort(f.address); err == nil {
		return f.address
	}
	return net.JoinHostPort(f.address, DefaultPort)
}

func (f *flags) client(c *cobra.Command) error {
	if f.size < MinSize || f.size > MaxSize {
		return ui.Usagef("--size is %d to %d, not %d", MinSize, MaxSize, f.size)
	}
	dev, err := f.device(c.ErrOrStderr())
	if err != nil {
		return err
	}
	defer closeDevice(dev, c.ErrOrStderr())
	ctx, cancel := f.context(c)
	defer cancel()
	res, err := Client(ctx, dev, f.addr(), f.config(c))
	if err == nil && f.count > 0 && res.Pings < f.count {
		err = fmt.Errorf("rping: %d of %d pings within %v", res.Pings, f.count, f.timeout)
	}
	return errors.Join(printed(c, res), coded(err))
}

func (f *flags) server(c *cobra.Command) error {
	dev, err := f.device(c.ErrOrStderr())
	if err != nil {
		return err
	}
	defer closeDevice(dev, c.ErrOrStderr())
	ctx, cancel := f.context(c)
	defer cancel()
	l, err := dev.Listen(ctx, f.addr())
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }() // the process ends with it
	ui.Note(c.ErrOrStderr(), "listening on %s", l.Addr())
	srv, err := NewServer(dev)
	if err != nil {
		return err
	}
	for {
		req, err := l.Accept(ctx)
		if err != nil {
			if ctx.Err() != nil && f.persistent {
				return nil
			}
			return err
		}
		res, err := srv.Serve(ctx, req, f.config(c))
		if perr := printed(c, res); perr != nil {
			return perr
		}
		switch {
		case !f.persistent:
			return coded(err)
		case err != nil:
			ui.Note(c.ErrOrStderr(), "%v", err)
		}
	}
}

// coded gives an error the exit code that scripts look for.
func coded(err error) error {
	var data *DataError
	var rejected *transport.RejectedError
	var op *net.OpError
	switch {
	case errors.As(err, &data):
		return ui.ExitError{Code: ui.CodeDiffer, Err: err}
	case errors.As(err, &rejected), fabric.Exposes(err):
		return ui.ExitError{Code: ui.CodeRefused, Err: err}
	case errors.As(err, &op) && op.Op == "dial":
		return ui.ExitError{Code: ui.CodeNoPeer, Err: err}
	}
	return err
}

func printed(c *cobra.Command, r Result) error {
	return ui.Print(c, r, func(t *ui.Table) {
		if r.Pings == 0 {
			t.Row("no ping")
			return
		}
		t.Row("peer", r.Peer)
		t.Row("pings", r.Pings)
		t.Row("bytes of each", r.Size)
		t.Row("reads agreed", fmt.Sprintf("%d in, %d out", r.ReadsIn, r.ReadsOut))
		t.Row("round trip", (time.Duration(r.Seconds*float64(time.Second)) / time.Duration(r.Pings)).Round(100*time.Nanosecond))
	})
}

func closeDevice(d transport.Device, w io.Writer) {
	if err := d.Close(); err != nil {
		ui.Note(w, "close the device: %v", err)
	}
}
