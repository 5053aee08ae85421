// Package blockcmd has the commands that reach volumes: discover, inquiry, read, write, cp.
package blockcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/cmd/internal/fabricflag"
	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/internal/logging"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/fabric"
)

// Connection is what every command that reaches a volume can be told.
type Connection struct {
	Initiator   string // iSCSI name
	Provider    string // iwarp, verbs
	Exposure    string // windows, whole-slab
	AckTimeout  time.Duration
	CRC         string // on, always, off, peer
	Credentials string // a file with CHAP names and secrets
	// Reconnect is how long requests wait for a lost target: 0 for the default, negative for ever.
	Reconnect time.Duration
	Log       *zap.Logger // nil logs nothing

	cmd *cobra.Command // whose flags these are, nil for none
}

// Flags gives a command the connection's flags.
func (c *Connection) Flags(cmd *cobra.Command) {
	c.cmd = cmd
	fs := cmd.Flags()
	fs.StringVar(&c.Initiator, "initiator", "", "iSCSI name to log in with (default: made of the host name)")
	fabricflag.Add(fs, &c.Provider, &c.Exposure, &c.CRC, &c.AckTimeout)
	fs.StringVar(&c.Credentials, "credentials", "", "file with CHAP credentials: lines username=, password=, target_username=, target_password=")
}

// Open makes the initiator and its fabric device; the function it returns closes both.
func (c *Connection) Open() (*block.Initiator, func() error, error) {
	return c.OpenWith(mem.NewPool(memory), 0)
}

// words are those that say what RDMA goes through.
func (c *Connection) words() fabricflag.Flags {
	return fabricflag.Flags{Provider: c.Provider, Exposure: c.Exposure, CRC: c.CRC, AckTimeout: c.AckTimeout}
}

// Check refuses words that mean nothing, before anything is done.
func (c *Connection) Check() error { return c.words().Check() }

// Fabric makes devices as was asked for. Close it.
func (c *Connection) Fabric() (*fabric.Set, error) {
	return c.words().Set(c.errs())
}

func (c *Connection) errs() io.Writer {
	if c.cmd != nil {
		return c.cmd.ErrOrStderr()
	}
	return os.Stderr
}

// WarnOfExposure says in a line what was allowed to a target, for a connection that another process will make.
func (c *Connection) WarnOfExposure(urls string) {
	if c.Exposure == fabric.WholeSlab || strings.Contains(urls, "exposure="+fabric.WholeSlab) {
		ui.Note(c.errs(), "sluice: exposure %s: a target that is reached through an adapter without memory windows may read and write all registered memory of the process that serves this",
			fabric.WholeSlab)
	}
}

// OpenWith is Open with a pool, which it takes over, and a number of commands under way on a session (0 for the default).
func (c *Connection) OpenWith(pool *mem.Pool, depth int) (*block.Initiator, func() error, error) {
	o := block.Options{Name: c.Initiator, Memory: pool, Depth: depth, ReconnectLimit: c.Reconnect, Log: logging.FromZap(c.Log), StateDir: block.DefaultStateDir()}
	if c.Credentials != "" {
		var err error
		if o.CHAP, o.MutualCHAP, err = readCredentials(c.Credentials); err != nil {
			return nil, nil, err
		}
	}
	set, err := c.Fabric()
	if err != nil {
		return nil, nil, err
	}
	o.Provider = set.Device
	ini, err := block.New(o)
	if err != nil {
		return nil, nil, errors.Join(explain(err), set.Close())
	}
	return ini, func() error { return errors.Join(ini.Close(), pool.Close(), set.Close()) }, nil
}

// memory is what a command may hold: two copies' worth of pieces, and as much in the initiator.
const memory = 256 << 20

// Explain gives an error of the initiator its exit code.
func Explain(err error) error { return explain(err) }

// explain gives an error of the initiator its exit code.
func explain(err error) error {
	var (
		login *block.LoginError
		sense *block.SenseError
		bad   *block.URLError
		op    *net.OpError
		no    *transport.RejectedError
		word  *fabric.WordError
		dns   *net.DNSError
		code  ui.ExitError
	)
	switch {
	case err == nil, errors.As(err, &code):
		return err
	case errors.As(err, &bad), errors.As(err, &word):
		return ui.Usage(err)
	case errors.As(err, &no), fabric.Exposes(err):
		return ui.ExitError{Code: ui.CodeRefused, Err: err}
	case errors.As(err, &login):
		switch {
		case errors.Is(err, block.ErrNoTarget):
			err = fmt.Errorf("%w; sluice discover lists the targets of an address", err)
		case errors.Is(err, block.ErrAuth):
			err = fmt.Errorf("%w; see --credentials", err)
		}
		return ui.ExitError{Code: ui.CodeRefused, Err: err}
	case errors.As(err, &sense) && errors.Is(err, block.ErrNoUnit):
		return ui.ExitError{Code: ui.CodeRefused, Err: fmt.Errorf("%w; the target has no such LUN", err)}
	case errors.As(err, &dns), errors.As(err, &op) && op.Op == "dial", errors.Is(err, block.ErrNoPath):
		return ui.ExitError{Code: ui.CodeNoPeer, Err: fmt.Errorf("%w; does a target listen there? One behind RDMA adapters (RoCE, InfiniBand) listens for --provider verbs, or ?provider=verbs in the URL", err)}
	case errors.Is(err, blockdev.ErrMiscompare):
		return ui.ExitError{Code: ui.CodeDiffer, Err: err}
	}
	return err
}

// WithVolume opens the volume of a URL (several separated by commas are paths of one volume), runs f and closes it.
func (c *Connection) WithVolume(ctx context.Context, url string, f func(*block.Volume) error) error {
	ini, closer, err := c.Open()
	if err != nil {
		return err
	}
	v, err := ini.Open(ctx, strings.Split(url, ",")...)
	if err == nil {
		err = f(v)
		if cerr := v.Close(); !errors.Is(cerr, blockdev.ErrClosed) { // f may have closed it
			err = errors.Join(err, cerr)
		}
	}
	return explain(errors.Join(err, closer()))
}

// IsVolume reports whether an argument of cp names a volume.
func IsVolume(arg string) bool {
	return strings.HasPrefix(arg, "iser://") || strings.HasPrefix(arg, "iscsi://")
}

// args that every command of this package checks alike.
func volumeArg(n int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if err := cobra.ExactArgs(n)(c, args); err != nil {
			return ui.Usage(err)
		}
		return nil
	}
}
