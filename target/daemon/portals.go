package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/target/iscsi"
)

// portal is one listening address.
type portal struct {
	cfg  PortalConfig
	l    net.Listener
	stop context.CancelFunc
}

func (d *Daemon) openPortals(cfg *Config) error {
	for _, p := range cfg.Portals {
		pt, err := d.openPortal(p)
		if err != nil {
			return err
		}
		d.portals[p.Address] = pt
		if cfg.byChance(p.Address) {
			d.log.Warn("a portal that an earlier version took without a port listens at one by chance, another at each start: sluice portals remove it, and add it with a port",
				zap.String("portal", p.Address), zap.Stringer("now", pt.l.Addr()))
		}
	}
	return nil
}

// openPortal binds the address, or takes a copy of the service manager's socket for it: a reload that fails and a portal that goes
// close theirs, and the socket could not be bound again.
func (d *Daemon) openPortal(p PortalConfig) (*portal, error) {
	l, err := copyOf(d.given[p.Address])
	if l == nil && err == nil {
		l, err = net.Listen(network(p.Address), p.Address)
	}
	if err != nil {
		return nil, fmt.Errorf("portal %s: %w; is another target running on this machine?", p.Address, err)
	}
	return &portal{cfg: p, l: l}, nil
}

// copyOf is another descriptor of a socket, nil of none.
func copyOf(l net.Listener) (net.Listener, error) {
	s, ok := l.(interface{ File() (*os.File, error) })
	if !ok {
		return l, nil
	}
	f, err := s.File()
	if err != nil {
		return nil, err
	}
	c, err := net.FileListener(f)
	return c, errors.Join(err, f.Close())
}

// network keeps an address to the family it is written in: "tcp" would let 0.0.0.0 take IPv6's port as well, and a portal
// on [::] beside it could not be opened.
func network(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return "tcp"
	}
	a, err := netip.ParseAddr(host)
	switch {
	case err != nil: // a name, or none: every family
		return "tcp"
	case a.Is4():
		return "tcp4"
	default:
		return "tcp6"
	}
}

func (d *Daemon) servePortal(p *portal) {
	ctx, cancel := context.WithCancel(context.Background())
	p.stop = cancel
	d.portalWG.Go(func() {
		if err := d.server.Serve(ctx, p.l, iscsi.Portal{Group: p.cfg.Group}); err != nil {
			select {
			case d.failed <- fmt.Errorf("portal %s: %w", p.cfg.Address, err):
			default:
			}
		}
	})
	d.serveAdapters(ctx, p)
	d.log.Info("portal open", zap.Stringer("address", p.l.Addr()), zap.Uint16("group", p.cfg.Group))
}
