// Package fabric makes fabric devices from the names of their providers, for daemon and tools alike: what a name or a word means
// is decided here and nowhere else.
package fabric

import (
	"fmt"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// The providers that there are.
const (
	IWARP = "iwarp" // the software RNIC, over TCP
	Verbs = "verbs" // RDMA adapters, through rdma-core
)

// Providers are the names, the default first.
var Providers = []string{IWARP, Verbs}

// CRCs are the words for the checksum of the software RNIC's frames, and exposures those for what an adapter without memory
// windows shows a peer; the defaults first.
var (
	CRCs      = []string{"on", "always", "peer", "off"}
	Exposures = []string{"windows", "whole-slab"}
)

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

	Log *zap.Logger // nil logs nothing
}

// ErrWord is a name or word that means nothing here.
type ErrWord struct {
	What, Word string
	Known      []string
}

func (e *ErrWord) Error() string {
	return fmt.Sprintf("%s %q is none of %s", e.What, e.Word, strings.Join(e.Known, ", "))
}

// Check finds what New would refuse before it opened anything.
func Check(provider string, o Options) error {
	for _, w := range []struct {
		what, word string
		known      []string
	}{{"the provider", provider, Providers}, {"the checksum", o.CRC, CRCs}, {"the exposure", o.Exposure, Exposures}} {
		if w.word != "" && !slices.Contains(w.known, w.word) {
			return &ErrWord{w.what, w.word, w.known}
		}
	}
	return nil
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
	return iwarp.New(iwarp.Options{CRC: policies[max(0, slices.Index(CRCs, o.CRC))], Revision: o.Revision, PeerToPeer: o.PeerToPeer}), nil
}
