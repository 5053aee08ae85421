package verbs

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
)

// Options tune the provider. The zero value takes every adapter and is right for most.
type Options struct {
	// Devices are the adapters to use, by name ("mlx5_0"); all when empty.
	Devices []string
	// ToS is the type of service of connections that are dialled (the traffic class of RoCE v2, with which switches choose a
	// priority); 0 leaves it to the system.
	ToS uint8
	// Retry and RNRRetry are how often the adapter sends again what was not acknowledged, and what met no receive: nil is 7,
	// which for the latter means without end.
	Retry, RNRRetry *uint8
	// AckTimeout is how long the adapter waits for an acknowledgement before it sends again, rounded up to 4.096 us times a power of
	// two; 0 leaves it to the connection manager, on InfiniBand to what the subnet manager says of the path. iWARP has TCP's.
	AckTimeout time.Duration
	// WholeSlab lets adapters without memory windows expose all registered memory to the peer of a connection whose upper
	// protocol exposes any; without it such a connection is refused. It also takes iWARP adapters whose Reads open all registered
	// memory to writes of every peer; without it they are left alone.
	WholeSlab bool
	// Log hears of adapters and ports that come and go; nil for silence.
	Log *zap.Logger

	after afterFunc                    // time, for tests
	local func() ([]netip.Addr, error) // this machine's addresses, likewise
}

func (o Options) withDefaults() Options {
	seven := uint8(7)
	if o.Retry == nil {
		o.Retry = &seven
	}
	if o.RNRRetry == nil {
		o.RNRRetry = &seven
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	if o.after == nil {
		o.after = realAfter
	}
	if o.local == nil {
		o.local = localAddrs
	}
	return o
}

func (o *Options) validate() error {
	if *o.Retry > 7 || *o.RNRRetry > 7 {
		return fmt.Errorf("verbs: retry counts of %d and %d; they have three bits and are at most 7", *o.Retry, *o.RNRRetry)
	}
	return CheckAckTimeout(o.AckTimeout)
}

// takes reports whether an adapter is one of those to use.
func (o *Options) takes(name string) bool {
	return len(o.Devices) == 0 || slices.Contains(o.Devices, name)
}

// ErrNoDevices is Open's and Available's answer on a machine without RDMA adapters.
var ErrNoDevices = errors.New("verbs: there is no RDMA device to use")

func noDevices() error { return fmt.Errorf("%w: %s", ErrNoDevices, whyNone(sysRoot, tryNode)) }

// errNoSuchDevice says that a configured adapter is not there.
func errNoSuchDevice(names []string, have []deviceAttr) error {
	var there []string
	for _, d := range have {
		there = append(there, d.Name)
	}
	return fmt.Errorf("verbs: no RDMA device is called %s; there are: %s", strings.Join(names, ", "), strings.Join(there, ", "))
}
