// Package fabric makes fabric devices from the names of their providers, for daemon and tools alike: what a name or a word means
// is decided here and nowhere else.
package fabric

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/iwarp"
	"github.com/sluice-storage/sluice/transport/shm"
)

// The providers that there are.
const (
	IWARP = "iwarp" // the software RNIC, over TCP
	Verbs = "verbs" // RDMA adapters, through rdma-core
	SHM   = "shm"   // memory that two processes of one host share
)

// Providers are the names, the default first.
var Providers = []string{IWARP, Verbs, SHM}

// CRCs are the words for the checksum of the software RNIC's frames, and Exposures those for what peers may reach of this side's
// memory by adapters that cannot show them the bytes of one I/O alone: such adapters are not used, or whole slabs are shown. The defaults
// come first.
var (
	CRCs      = []string{"on", "always", "peer", "off"}
	Exposures = []string{"windows", WholeSlab}
)

// WholeSlab is the exposure that adapters want which cannot show a peer the bytes of one I/O alone.
const WholeSlab = "whole-slab"

// AckTimeout is what a WordError calls Options.AckTimeout.
const AckTimeout = "the acknowledgement timeout"

var policies = []iwarp.CRC{iwarp.CRCAuto, iwarp.CRCOn, iwarp.CRCPeer, iwarp.CRCOff}

// Options say what a device is to be like. The zero value takes the defaults.
type Options struct {
	// Of the software RNIC:
	CRC        string // one of CRCs
	Revision   int    // of MPA: 1 or 2
	PeerToPeer bool   // ask for the peer-to-peer mode of RFC 6581

	// Of adapters:
	Devices  []string // by name, "mlx5_0"; all if empty
	Exposure string   // one of Exposures
	// AckTimeout is how long an adapter waits for an acknowledgement before it sends again; 0 leaves it to the connection manager.
	AckTimeout time.Duration

	// Of shared memory:
	Sockets     string      // the directory of listeners' sockets; empty is the provider's own choice
	SocketMode  fs.FileMode // of sockets, who may connect; 0 is this user alone
	SocketGroup int         // of sockets; 0 is this process's

	Log *zap.Logger // nil logs nothing
}

// WordError is a name or word that means nothing here, or nothing with a provider.
type WordError struct {
	What, Word string
	Known      []string
	With       string // the provider, where Word is known
}

func (e *WordError) Error() string {
	if e.With != "" {
		return fmt.Sprintf("%s %q is of RDMA adapters (provider %s), and means nothing with provider %s", e.What, e.Word, Verbs, e.With)
	}
	return fmt.Sprintf("%s %q is none of %s", e.What, e.Word, strings.Join(e.Known, ", "))
}

// Check finds what New would refuse before it opened anything.
func Check(provider string, o Options) error {
	for _, w := range []struct {
		what, word string
		known      []string
	}{{"the provider", provider, Providers}, {"the checksum", o.CRC, CRCs}, {"the exposure", o.Exposure, Exposures}} {
		if w.word != "" && !slices.Contains(w.known, w.word) {
			return &WordError{What: w.what, Word: w.word, Known: w.known}
		}
	}
	return CheckAckTimeout(o.AckTimeout)
}

// New makes a device; an empty name is the default provider's.
func New(provider string, o Options) (transport.Device, error) {
	if err := Check(provider, o); err != nil {
		return nil, err
	}
	if f := replacement(provider); f != nil {
		return f(o)
	}
	if provider == Verbs {
		d, err := openAdapters(o)
		if err != nil {
			return nil, fmt.Errorf("RDMA adapters cannot be used: %w", err)
		}
		return d, nil
	}
	if provider == "" {
		provider = Providers[0]
	}
	if o.Exposure == WholeSlab {
		return nil, &WordError{What: "the exposure", Word: o.Exposure, With: provider}
	}
	if o.AckTimeout != 0 {
		return nil, &WordError{What: AckTimeout, Word: o.AckTimeout.String(), With: provider}
	}
	if provider == SHM {
		return shm.New(shm.Options{Directory: o.Sockets, Socket: shm.Socket{Mode: o.SocketMode, Group: o.SocketGroup}}), nil
	}
	return iwarp.New(iwarp.Options{CRC: policies[max(0, slices.Index(CRCs, o.CRC))], Revision: o.Revision, PeerToPeer: o.PeerToPeer}), nil
}
