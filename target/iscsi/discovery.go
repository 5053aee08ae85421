package iscsi

import (
	"net"
	"sort"
	"strconv"
	"strings"
)

// sendTargets builds the answer to a SendTargets key (RFC 7143 appendix C).
func (c *conn) sendTargets(value string) []byte {
	s := c.srv
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	switch {
	case value == "All" && c.discovery:
		for n := range s.targets {
			names = append(names, n)
		}
		sort.Strings(names)
	case value == "" && !c.discovery && c.target != nil:
		names = []string{c.target.Name}
	case value != "" && value != "All" && (c.discovery || c.target != nil && value == c.target.Name):
		names = []string{value}
	}
	var b []byte
	for _, n := range names {
		t := s.targets[n]
		if t == nil {
			continue
		}
		if _, ok := t.allow(c.initiator); !ok {
			continue
		}
		b = append(b, "TargetName="...)
		b = append(append(b, n...), 0)
		// No alias: libiscsi takes nothing but names and addresses here.
		seen := map[string]bool{}
		for _, p := range s.portals {
			// A port that only adapters have is for who came by one; TCP's initiators would find nothing there.
			own := apart(p.addr, p.Beside)
			if p.Beside != nil && !own || own != apart(c.local, c.portal.Beside) {
				continue
			}
			a := p.address(c.local)
			if a == "" || seen[a] {
				continue
			}
			seen[a] = true
			b = append(b, "TargetAddress="...)
			b = append(append(b, a...), 0)
		}
		if len(b) > maxTextAnswer {
			break
		}
	}
	return b
}

// apart reports whether an address beside another listener's has a port of its own.
func apart(addr, beside net.Addr) bool {
	if beside == nil {
		return false
	}
	_, a, err := net.SplitHostPort(addr.String())
	_, b, berr := net.SplitHostPort(beside.String())
	return err == nil && berr == nil && a != b
}

// address is what SendTargets says of a portal to an initiator that came by local.
func (p *portalEntry) address(local net.Addr) string {
	a := p.Advertise
	if a == "" {
		host, port, err := net.SplitHostPort(p.addr.String())
		if err != nil {
			return ""
		}
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
			// A wildcard listens where the initiator came in, if that is an address of its family.
			lh, _, err := net.SplitHostPort(local.String())
			if err != nil { // the initiator is on this host, and came by no address of IP
				if lh = "127.0.0.1"; ip != nil && ip.To4() == nil {
					lh = "::1"
				}
			}
			if ip != nil && ip.To4() != nil && net.ParseIP(lh).To4() == nil {
				return ""
			}
			host = lh
		}
		if i := strings.IndexByte(host, '%'); i >= 0 {
			host = host[:i] // a zone means something on this machine only
		}
		a = net.JoinHostPort(host, port)
	}
	return a + "," + strconv.Itoa(int(p.Group))
}

// trimGroup takes the portal group off a TargetAddress.
func trimGroup(a string) string {
	if i := strings.LastIndexByte(a, ','); i >= 0 {
		return a[:i]
	}
	return a
}
