package iscsi

import (
	"context"
	"net"
	"net/netip"
	"sort"

	"github.com/sluice-storage/sluice/target/iscsi/isns"
)

// RegisterISNS keeps this server's targets and portals registered with an iSNS server (RFC 4171) until the context ends,
// and takes them back then. It follows targets and portals as they come and go.
func (s *Server) RegisterISNS(ctx context.Context, o isns.Options) error {
	if o.Log == nil {
		o.Log = s.opt.Log
	}
	c := isns.New(o)
	s.mu.Lock()
	s.isns = append(s.isns, c)
	s.tellISNSLocked()
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		for i, o := range s.isns {
			if o == c {
				s.isns = append(s.isns[:i], s.isns[i+1:]...)
				break
			}
		}
		s.mu.Unlock()
	}()
	return c.Run(ctx)
}

// tellISNSLocked hands the present state to every client; they talk to their servers on their own time.
func (s *Server) tellISNSLocked() {
	if len(s.isns) == 0 {
		return
	}
	var r isns.Registration
	for _, t := range s.targets {
		r.Targets = append(r.Targets, isns.Target{Name: t.Name, Alias: t.Alias})
	}
	sort.Slice(r.Targets, func(i, j int) bool { return r.Targets[i].Name < r.Targets[j].Name })
	for _, p := range s.portals {
		if p.Beside != nil {
			continue
		}
		r.Portals = append(r.Portals, p.isnsPortals()...)
	}
	for _, c := range s.isns {
		c.Update(r)
	}
}

// isnsPortals are the addresses of a portal: iSNS wants numbers, and one for each address of a wildcard.
func (p *portalEntry) isnsPortals() []isns.Portal {
	a := p.Advertise
	if a == "" {
		a = p.addr.String()
	}
	ap, err := netip.ParseAddrPort(a)
	if err != nil {
		return nil // a host name, or no IP address at all
	}
	if !ap.Addr().IsUnspecified() {
		return []isns.Portal{{Addr: netip.AddrPortFrom(ap.Addr().WithZone(""), ap.Port()), Group: p.Group}}
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	var l []isns.Portal
	for _, n := range addrs {
		ip, ok := n.(*net.IPNet)
		if !ok || !ip.IP.IsGlobalUnicast() {
			continue
		}
		if at, ok := netip.AddrFromSlice(ip.IP); ok && (ap.Addr().Is6() || at.Unmap().Is4()) {
			l = append(l, isns.Portal{Addr: netip.AddrPortFrom(at.Unmap(), ap.Port()), Group: p.Group})
		}
	}
	return l
}
