package fabric

import (
	"errors"
	"fmt"
	"time"

	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/verbs"
)

// Adapter is an RDMA adapter of this machine, and what Sluice would do with it.
type Adapter struct {
	Name      string `json:"name"`
	Driver    string `json:"driver"` // the kernel's
	Firmware  string `json:"firmware,omitempty"`
	Fabric    string `json:"fabric"` // InfiniBand, RoCE, iWARP
	Library   string `json:"library"`
	Ports     []Port `json:"ports"`
	Windows   bool   `json:"windows"` // memory windows of type 2
	Target    string `json:"target"`  // what a target lets its clients reach, or why it does not use the adapter
	Initiator string `json:"initiator"`
	AsTarget  bool   `json:"used_by_target"`
	AsInit    bool   `json:"used_by_initiator"`
	// What to write to use it, where it is not: into the configuration, and behind a command.
	TargetToUse    string `json:"target_to_use,omitempty"`
	InitiatorToUse string `json:"initiator_to_use,omitempty"`
	MaxSGE         int    `json:"max_sge"`
	MaxReads       int    `json:"max_reads"`
	MaxQueue       int    `json:"max_queue"`
	MaxMessage     int    `json:"max_message"`
	Problem        string `json:"problem,omitempty"` // why it cannot be used, and what to do
}

// Port is a port of an adapter.
type Port struct {
	Number int    `json:"number"`
	State  string `json:"state"` // active, down
	Link   string `json:"link"`  // Ethernet, InfiniBand
	MTU    int    `json:"mtu"`
	GIDs   []GID  `json:"gids"`
}

// GID is an address of a port.
type GID struct {
	Index     int    `json:"index"`
	GID       string `json:"gid"`
	Kind      string `json:"kind"` // RoCE v2
	Interface string `json:"interface,omitempty"`
}

func (o Options) verbs() verbs.Options {
	return verbs.Options{Devices: o.Devices, WholeSlab: o.Exposure == WholeSlab, AckTimeout: o.AckTimeout, Log: o.Log}
}

// AckTimeoutError is a time that no adapter has, or that this kernel lets no program set.
type AckTimeoutError = verbs.AckTimeoutError

// CheckAckTimeout finds a time that no adapter has.
func CheckAckTimeout(d time.Duration) error { return verbs.CheckAckTimeout(d) }

func openAdapters(o Options) (transport.Device, error) {
	d, err := verbs.Open(o.verbs())
	if err != nil { // not a nil *verbs.Device in an interface
		return nil, err
	}
	return d, nil
}

// Adapters reports why no RDMA adapter can be used here, or nil; none reports that there is none, or no library for any, and
// that is no fault.
func Adapters() (none bool, err error) {
	if replacement(Verbs) != nil {
		return false, nil
	}
	err = verbs.Available()
	var lib *verbs.LibraryError
	return errors.Is(err, verbs.ErrNoDevices) || errors.Is(err, verbs.ErrNotBuilt) || errors.As(err, &lib), err
}

// Exposes reports that err is the refusal to use an adapter for what that would expose: another try ends alike.
func Exposes(err error) bool {
	var shut *verbs.ExposureError
	var window *verbs.WindowError
	return errors.As(err, &shut) || errors.As(err, &window)
}

// List says what adapters there are.
func List(o Options) ([]Adapter, error) {
	l, err := verbs.List(o.verbs())
	if err != nil {
		return nil, err
	}
	out := make([]Adapter, 0, len(l))
	for _, i := range l {
		a := Adapter{Name: i.Name, Driver: i.Driver, Firmware: i.Firmware, Fabric: i.Fabric, Library: i.Library, Windows: i.Windows, Target: i.Target,
			Initiator: i.Exposure, AsTarget: i.UsedByTarget, AsInit: i.UsedExposing, MaxSGE: i.MaxSGE, MaxReads: i.MaxReads, MaxQueue: i.MaxQueue, MaxMessage: i.MaxMessage, Problem: i.Problem}
		if !a.AsTarget && a.Problem == "" {
			a.TargetToUse = fmt.Sprintf("fabric: [{provider: iwarp}, {provider: verbs, devices: [%s], exposure: whole-slab}]", a.Name)
		}
		if !a.AsInit && a.Problem == "" {
			a.InitiatorToUse = "--provider verbs --exposure whole-slab, or ?provider=verbs&exposure=whole-slab in the URL"
		}
		for _, p := range i.Ports {
			port := Port{Number: p.Number, State: p.State, Link: p.Link, MTU: p.MTU}
			for _, g := range p.GIDs {
				port.GIDs = append(port.GIDs, GID{Index: g.Index, GID: g.GID, Kind: g.Kind, Interface: g.Interface})
			}
			a.Ports = append(a.Ports, port)
		}
		out = append(out, a)
	}
	return out, nil
}
