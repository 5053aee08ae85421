package shm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// A socket is found by a port alone, and the service behind it may be another one than host and port mean: two daemons may listen at two
// addresses of one host, and each network namespace has a loopback of its own. So who dials by host and port says which network and which
// addresses of it are meant, in the text of the request, and the listener refuses what TCP would not have brought to its address.

// service is what a listener by host and port serves. The zero value is a listener by its path, which serves all that find it.
type service struct {
	network string
	ips     []netip.Addr // none: all of this host's
}

const maxMeant = 5 // addresses in a request: with the network's name they fit maxDetail

// serviceAt is what a listener for an address serves.
func serviceAt(ctx context.Context, addr string) (service, error) {
	if _, is := pathOf(addr); is {
		return service{}, nil
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return service{}, fmt.Errorf("shm: %q is neither a path nor host:port: %w", addr, err)
	}
	s := service{network: network()}
	if host == "" {
		return s, nil
	}
	if s.ips, err = lookup(ctx, host); err != nil {
		return service{}, err
	}
	if slices.ContainsFunc(s.ips, netip.Addr.IsUnspecified) {
		s.ips = nil
	}
	return s, nil
}

// network is the name of this process's network namespace (namespaces(7)), empty where it cannot be told.
func network() string {
	name, _ := os.Readlink("/proc/self/ns/net")
	return name
}

// meant is what a request says of the service that its dialler means.
func meant(ips []netip.Addr) string {
	var b strings.Builder
	b.WriteString(network())
	for _, a := range ips[:min(len(ips), maxMeant)] {
		b.WriteString(" " + a.String())
	}
	return b.String()
}

var (
	errOtherNetwork = errors.New("shm: the socket is of a service in another network namespace; name it by its path (socket=) if that is what you want")
	errOtherAddress = errors.New("shm: the socket is of a service at another address of this host; name it by its path (socket=) if that is what you want")
)

// isMeant reports why this is not the service that a request means; one that says nothing means whatever it found.
func (s *service) isMeant(text string) error {
	name, rest, has := strings.Cut(text, " ")
	if !has {
		return nil
	}
	if name != "" && s.network != "" && name != s.network {
		return errOtherNetwork
	}
	if len(s.ips) == 0 {
		return nil
	}
	for _, t := range strings.Fields(rest) {
		if a, err := netip.ParseAddr(t); err == nil && slices.Contains(s.ips, a) {
			return nil
		}
	}
	return errOtherAddress
}

// lookup are the addresses of a host, in one form.
func lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	a, err := netip.ParseAddr(host)
	l := []netip.Addr{a}
	if err != nil {
		if l, err = net.DefaultResolver.LookupNetIP(ctx, "ip", host); err != nil {
			return nil, fmt.Errorf("shm: %w", err)
		}
	}
	for i := range l {
		l[i] = l[i].Unmap().WithZone("")
	}
	return l, nil
}

// here are those addresses of a host that are this one's.
func here(ctx context.Context, host string) (l []netip.Addr, err error) {
	if host == "" || host == "localhost" {
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}, nil
	}
	all, err := lookup(ctx, host)
	if err != nil {
		return nil, err
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	for _, a := range all {
		if a.IsLoopback() || slices.ContainsFunc(own, func(o net.Addr) bool {
			p, err := netip.ParsePrefix(o.String())
			return err == nil && p.Addr().Unmap() == a
		}) {
			l = append(l, a)
		}
	}
	return l, nil
}
