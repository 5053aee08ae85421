package verbs

import (
	"fmt"
	"net/netip"
)

// Info is an adapter, for people who want to know what there is.
type Info struct {
	Name     string
	Driver   string
	Firmware string
	Fabric   string // "InfiniBand", "RoCE", "iWARP"
	Library  string // versions of rdma-core's libraries
	Ports    []PortInfo
	Windows  bool // memory windows of type 2: one can be made
	// Exposure is what an initiator of Sluice can give a peer through this adapter, Target what a target gives, in a few words: or why
	// it is not used so.
	Exposure, Target           string
	UsedExposing, UsedByTarget bool
	MaxSGE                     int
	MaxReads                   int
	MaxQueue                   int // work requests of a queue pair
	MaxMessage                 int
	// Problem says why Open would not use the adapter, and what to do; empty where it would.
	Problem string
}

// PortInfo is a port of an adapter.
type PortInfo struct {
	Number int
	State  string // "active", "down"
	Link   string // "Ethernet", "InfiniBand"
	MTU    int
	GIDs   []GIDInfo
}

// GIDInfo is an address of a port.
type GIDInfo struct {
	Index     int
	GID       string
	Kind      string // "RoCE v2"
	Interface string
}

// List says what adapters there are and what Open with o would do with each. Those that o does not name are left out.
func List(o Options) ([]Info, error) {
	tab, err := openTable()
	if err != nil {
		return nil, err
	}
	return list(tab, o)
}

func list(tab table, o Options) ([]Info, error) {
	o = o.withDefaults()
	devs, err := tab.Devices()
	if err != nil {
		return nil, fmt.Errorf("verbs: list the RDMA devices: %w", err)
	}
	var all []Info
	probe := &Device{tab: tab, opt: o}
	unmanaged := manages(tab)
	for i := range devs {
		if !o.takes(devs[i].Name) {
			continue
		}
		info, err := describe(probe, &devs[i])
		if err == nil {
			err = unmanaged
		}
		if err != nil {
			info.Problem = err.Error()
		}
		info.Library = tab.Version()
		all = append(all, info)
	}
	return all, nil
}

func describe(d *Device, a *deviceAttr) (Info, error) {
	i := Info{Name: a.Name, Driver: a.Driver, Firmware: a.Firmware, Fabric: "InfiniBand", MaxSGE: least(maxSGE, a.MaxSGE),
		MaxReads: least(maxReads, min(a.MaxReadIn, a.MaxReadOut)), MaxQueue: a.MaxQPWR, MaxMessage: maxMessage}
	windows, err := d.try(a)
	if err != nil {
		return i, err
	}
	t := traitOf(a, windows)
	i.Windows = windows
	i.Exposure, i.UsedExposing = d.opt.asInitiator(t)
	i.Target, i.UsedByTarget = d.opt.asTarget(t)
	for p := 1; p <= a.Ports; p++ {
		port, err := d.tab.Port(a.Dev, p)
		if err != nil {
			return i, fmt.Errorf("verbs: %s: port %d: %w", a.Name, p, err)
		}
		i.MaxMessage = least(i.MaxMessage, int(port.MaxMessage))
		pi := PortInfo{Number: p, State: stateText(port.State), Link: "unknown", MTU: port.ActiveMTU}
		switch port.Link {
		case linkEthernet:
			if pi.Link = "Ethernet"; a.Kind == kindIB {
				i.Fabric = "RoCE"
			}
		case linkInfiniBand:
			pi.Link = "InfiniBand"
		}
		gids, err := d.tab.GIDs(a.Dev, p)
		if err != nil {
			return i, fmt.Errorf("verbs: %s: port %d: addresses: %w", a.Name, p, err)
		}
		for _, g := range gids {
			pi.GIDs = append(pi.GIDs, GIDInfo{Index: g.Index, GID: netip.AddrFrom16(g.GID).String(), Kind: kindText(g.Kind), Interface: g.Netdev})
		}
		i.Ports = append(i.Ports, pi)
	}
	if a.Kind == kindIWARP {
		i.Fabric = "iWARP"
	}
	return i, nil
}

func stateText(s portState) string {
	switch s {
	case portDown:
		return "down"
	case portInit:
		return "initializing"
	case portArmed:
		return "armed"
	case portActive:
		return "active"
	}
	return "unknown"
}

func kindText(k gidKind) string {
	switch k {
	case gidRoCEv1:
		return "RoCE v1"
	case gidRoCEv2:
		return "RoCE v2"
	}
	return "InfiniBand"
}
