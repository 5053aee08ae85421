package daemon

import (
	"net"
	"net/netip"
	"slices"

	"github.com/sluice-storage/sluice/transport/fabric"
)

// place is an address that something of the configuration listens at.
type place struct {
	what, address string
	host          string
	port          int
}

// placeOf reads an address; false is for one that is none, and for port 0, which is free by what it means.
func placeOf(what, address string) (place, bool) {
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return place{}, false
	}
	port, err := net.LookupPort("tcp", service)
	return place{what, address, host, port}, err == nil && port != 0
}

// meets reports whether two places cannot both be listened at: a wildcard is every address of its family, and :: of both.
func (p place) meets(o place) bool {
	if p.port != o.port {
		return false
	}
	a, aerr := netip.ParseAddr(p.host)
	b, berr := netip.ParseAddr(o.host)
	all := func(host string, ip netip.Addr) bool { return host == "" || ip.Is6() && ip.IsUnspecified() }
	switch {
	case p.host == o.host || all(p.host, a) || all(o.host, b):
		return true
	case aerr != nil || berr != nil:
		return false // a name, which is asked for when it is listened at
	case a.Is4() && a.IsUnspecified():
		return b.Unmap().Is4()
	case b.Is4() && b.IsUnspecified():
		return a.Unmap().Is4()
	}
	return a.Unmap() == b.Unmap()
}

func (p place) String() string { return p.what + " " + p.address }

// checkOwnPorts refuses ports of adapters that something else here has. An iWARP adapter takes its port from TCP without a word, and
// of two listeners at one place the clients of both would find the first.
func (c *Config) checkOwnPorts(p ProviderConfig, path func(key string) string) error {
	if p.ISERPort == 0 && p.NFSPort == 0 {
		return nil
	}
	soft := slices.ContainsFunc(c.Fabric, func(o ProviderConfig) bool { return o.Provider == fabric.IWARP })
	var tcp []place // that TCP listens at
	add := func(what, address string) {
		if l, ok := placeOf(what, address); ok {
			tcp = append(tcp, l)
		}
	}
	for _, o := range c.Portals {
		add("the portal", o.Address)
	}
	add("admin.listen", c.Admin.Listen)
	if len(c.Exports) > 0 && c.Files != nil {
		add("files.tcp", c.Files.TCP)
		if soft {
			add("files.rdma", c.Files.RDMA)
		}
	}
	type own struct {
		key  string
		n    int
		from place // what it stands in for
		is   place
	}
	var owns []own
	serve := func(key string, n int, what, address string) {
		was, ok := placeOf(what, address)
		if host, _, err := net.SplitHostPort(address); err == nil && n != 0 { // of port 0 too
			was.what, was.address, was.host, ok = what, address, host, true
		}
		if ok {
			at := was
			if n != 0 {
				at.port = n
			}
			owns = append(owns, own{key, n, was, at})
		}
	}
	for _, o := range c.Portals {
		serve("iser_port", p.ISERPort, "the portal", o.Address)
	}
	if len(c.Exports) > 0 && c.Files != nil {
		serve("nfs_port", p.NFSPort, "files.rdma", c.Files.RDMA)
	}
	for i, o := range owns {
		for _, t := range tcp {
			if o.n != 0 && o.from != t && o.is.meets(t) {
				return at(path(o.key), "fabric: %s %d is where %v listens, and an adapter would take the port from it: choose one that nothing else here has", o.key, o.n, t)
			}
		}
		for _, other := range owns[:i] {
			if (o.n != 0 || other.n != 0) && o.is.meets(other.is) {
				key, n := o.key, o.n
				if n == 0 {
					key, n = other.key, other.n
				}
				return at(path(key), "fabric: %s %d puts %v and %v at one place, where clients of both would find the first: %s", key, n, other.from, o.from, remedy(o.key == other.key))
			}
		}
	}
	return nil
}

func remedy(portals bool) string {
	if portals {
		return "adapters with a port of their own serve one portal of a host; leave iser_port out, or give the portals different addresses"
	}
	return "choose another iser_port or nfs_port"
}
