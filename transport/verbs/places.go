package verbs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/transport"
)

var _ transport.Placer = (*Device)(nil)

// Places is where the adapters in use can listen for an address. A wildcard of rdma_cm's is one on every adapter of the machine, those
// included that are not used, and those that come later (cma_add_one): it becomes the addresses of the adapters in use. An iWARP adapter
// takes the port from TCP, by a socket of the kernel's (siw) or in its hardware, before the kernel sees a connection to it.
func (d *Device) Places(ctx context.Context, addr string) ([]transport.Place, error) {
	all, err := lookup(ctx, addr)
	if err != nil {
		return nil, err
	}
	if !d.enter() {
		return nil, transport.ErrClosed
	}
	defer d.wg.Done()
	wild := all[0].Addr().IsUnspecified()
	if wild {
		if all, err = d.everywhere(all); err != nil {
			return nil, err
		}
	}
	var places []transport.Place
	var errs []error
	for _, at := range all {
		a, err := d.adapterAt(at.Addr())
		if err != nil {
			if !wild || !errors.Is(err, errNoAdapter) { // others of the machine's addresses are expected
				errs = append(errs, fmt.Errorf("verbs: listen on %s: %w", at, err))
			}
			continue
		}
		places = append(places, transport.Place{Address: at.String(), Device: a.attr.Name, SharesTCP: a.attr.Kind == kindIWARP})
	}
	if len(places) == 0 {
		if len(errs) == 0 {
			return nil, fmt.Errorf("verbs: listen on %s: no RDMA device in use has an address of this kind", addr)
		}
		return nil, errors.Join(errs...)
	}
	return places, nil
}

// everywhere is every address of the machine that wildcards stand for; that of IPv6 stands for both families, as with TCP.
func (d *Device) everywhere(wild []netip.AddrPort) ([]netip.AddrPort, error) {
	ips, err := d.opt.local()
	if err != nil {
		return nil, fmt.Errorf("verbs: this machine's addresses: %w", err)
	}
	var all []netip.AddrPort
	for _, w := range wild {
		for _, ip := range ips {
			at := netip.AddrPortFrom(ip, w.Port())
			if (ip.Is4() || w.Addr().Is6()) && !slices.Contains(all, at) {
				all = append(all, at)
			}
		}
	}
	return all, nil
}

// localAddrs are the addresses of this machine that others can reach without naming an interface.
func localAddrs() ([]netip.Addr, error) {
	l, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var ips []netip.Addr
	for _, a := range l {
		p, err := netip.ParsePrefix(a.String())
		if ip := p.Addr().Unmap(); err == nil && !ip.IsLoopback() && !ip.IsLinkLocalUnicast() {
			ips = append(ips, ip)
		}
	}
	return ips, nil
}

var errNoAdapter = errors.New("no RDMA device has this address")

// adapterAt is the adapter that an address belongs to. Only the kernel knows: an id that is bound to the address names it.
func (d *Device) adapterAt(ip netip.Addr) (*rnic, error) {
	id, err := d.cm.newID(unheard{})
	if err != nil {
		return nil, err
	}
	defer d.cm.dropID(id)
	if err := d.tab.BindAddr(id, netip.AddrPortFrom(ip, 0)); err != nil {
		if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EADDRNOTAVAIL) {
			return nil, fmt.Errorf("%w: %w", errNoAdapter, err)
		}
		return nil, err
	}
	w, err := d.tab.Where(id)
	if err != nil {
		return nil, err
	}
	return d.adapterOf(w.Dev)
}

// unheard owns an id of which there is nothing to hear.
type unheard struct{}

func (unheard) cmEvent(cmEvent) {}
