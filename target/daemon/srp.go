package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/iscsi"
	wiresrp "github.com/sluice-storage/sluice/internal/srp"
	"github.com/sluice-storage/sluice/target/admin"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/target/srp"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/fabric"
)

// srpPortal is one address of SRP.
type srpPortal struct {
	cfg  SRPConfig          // guarded by Daemon.mu
	l    transport.Listener // of the software RNIC, nil without one
	over string             // the address that adapters serve
	stop context.CancelFunc
}

// close ends a portal, whose address is free then.
func (p *srpPortal) close() {
	if p.stop != nil {
		p.stop()
	}
	if p.l != nil {
		_ = p.l.Close()
	}
}

// checkInitiator says what is wrong with the name of an initiator: an iSCSI name, or that of an initiator port of SRP.
func checkInitiator(name string) error {
	if wiresrp.IsName(name) {
		_, err := wiresrp.ParseName(name)
		return err
	}
	return iscsi.CheckName(name)
}

// checkSRP looks at the addresses of SRP. Its target ports are others than those of iSCSI, and so are their relative identifiers.
func (c *Config) checkSRP() error {
	for i, p := range c.SRP {
		path := fmt.Sprintf("$.srp[%d]", i)
		if err := checkKeys(p, "srp ", below(path)); err != nil {
			return err
		}
		if has(c.SRP[:i], p.Address) {
			return at(path+".address", "srp %s is named twice", p.Address)
		}
		here, known := placeOf("srp", p.Address)
		for _, o := range c.Portals {
			if o.Group == p.Group {
				return at(path+".group", "srp %s: group %d is that of the portal %s; a target port of SRP is another one, and needs a group of its own", p.Address, p.Group, o.Address)
			}
			if there, ok := placeOf("the portal", o.Address); ok && known && here.meets(there) {
				return at(path+".address", "srp %s is where the portal %s listens: choose another port", p.Address, o.Address)
			}
		}
	}
	return nil
}

// srpRule says who may log in to a target over SRP.
type srpRule struct {
	listed bool // only those in luns may
	luns   map[scsi.SRPPort][]uint16
}

// may reports whether an initiator port may log in, and sees whether it is shown a LUN.
func (r *srpRule) may(p scsi.SRPPort) bool {
	_, named := r.luns[p]
	return named || !r.listed
}

func (r *srpRule) sees(p scsi.SRPPort, lun uint16) bool {
	luns := r.luns[p]
	return r.may(p) && (luns == nil || slices.Contains(luns, lun))
}

// overSRP is who may use a target over SRP. why says that no one may: SRP can ask no one for a proof, nor send initiators elsewhere.
func (t TargetConfig) overSRP() (r *srpRule, why string) {
	switch {
	case t.Auth != nil:
		return nil, "it has auth, and SRP has no authentication"
	case t.Redirect != "":
		return nil, "it has redirect, and SRP sends no one elsewhere"
	}
	r = &srpRule{listed: len(t.Initiators) > 0, luns: map[scsi.SRPPort][]uint16{}}
	for _, i := range t.Initiators {
		if p, err := wiresrp.ParseName(i.Name); err == nil {
			r.luns[scsi.SRPPort(p)] = i.LUNs
		}
	}
	if r.listed && len(r.luns) == 0 {
		return nil, "its initiators name no initiator port of SRP (srp. and 32 hexadecimal digits)"
	}
	return r, ""
}

// srpOffer is a target that is served over SRP.
type srpOffer struct {
	*srpRule
	st *scsi.Target
}

// findSRP says what a login gets (srp.Options.Find).
func (d *Daemon) findSRP(group uint16, port, initiator scsi.SRPPort) (srp.Grant, error) {
	d.offersMu.RLock()
	defer d.offersMu.RUnlock()
	for name, o := range d.offers {
		if srp.TargetPort(name, group) != port {
			continue
		}
		if !o.may(initiator) {
			return srp.Grant{}, fmt.Errorf("%s is not on the list of initiators of %s", initiator.Name(), name)
		}
		return srp.Grant{Target: name, SCSI: o.st, Sees: func(lun uint16) bool {
			d.offersMu.RLock()
			defer d.offersMu.RUnlock()
			o, there := d.offers[name]
			return there && o.sees(initiator, lun)
		}}, nil
	}
	id := wiresrp.PortID(port)
	return srp.Grant{}, fmt.Errorf("no target that is served over SRP has the port id_ext=%s,ioc_guid=%s; \"sluice target srp\" prints those of one", id.Ext(), id.GUID())
}

// SRPNotes says what an operator should know of targets that are served over SRP, or are not; nothing where the configuration has no SRP.
func (c *Config) SRPNotes() []string {
	var l []string
	if len(c.SRP) == 0 {
		return nil
	}
	for _, t := range c.Targets {
		if _, why := t.overSRP(); why != "" {
			l = append(l, "target "+t.Name+" is not served over SRP: "+why)
		} else if len(t.Initiators) == 0 {
			l = append(l, "target "+t.Name+" is open to everyone who reaches an address of srp: it has no initiators, and SRP has no authentication")
		}
	}
	return l
}

// srpPortsLocked are the ports of a target, where a provider of fabric is open; d.mu is held.
func (d *Daemon) srpPortsLocked(t TargetConfig, provided bool) (ports []admin.SRPPort, why string) {
	ports = []admin.SRPPort{}
	if len(d.srpPortals) == 0 {
		return ports, ""
	}
	if _, why = t.overSRP(); why != "" {
		return ports, why
	}
	if !provided {
		return ports, "no RDMA provider of fabric can be used, and SRP goes over RDMA alone; add software iWARP (provider: iwarp) to fabric, or see \"sluice rdma\" for what the adapters lack"
	}
	for _, p := range d.srpPortals {
		id := wiresrp.PortID(srp.TargetPort(t.Name, p.cfg.Group))
		ports = append(ports, admin.SRPPort{Address: p.over, Group: p.cfg.Group, IDExt: id.Ext(), IOCGUID: id.GUID()})
	}
	slices.SortFunc(ports, func(a, b admin.SRPPort) int { return strings.Compare(a.Address, b.Address) })
	return ports, ""
}

// offerSRP makes r what SRP offers of a target, nil for nothing. Sessions that may not go on end.
func (d *Daemon) offerSRP(name string, r *srpRule, st *scsi.Target) {
	d.offersMu.Lock()
	was := d.offers[name]
	offered := r != nil && st != nil
	if delete(d.offers, name); offered {
		d.offers[name] = srpOffer{r, st}
	}
	d.offersMu.Unlock()
	d.srp.EndSessions(name, func(p scsi.SRPPort) bool { return offered && st == was.st && r.may(p) })
	if offered {
		st.RefreshVisible()
	}
}

func (d *Daemon) openSRP(cfg *Config) error {
	for _, p := range cfg.SRP {
		pt, err := d.openSRPPortal(p)
		if err != nil {
			return err
		}
		d.srpPortals[p.Address] = pt
	}
	for _, line := range cfg.SRPNotes() {
		d.log.Info(line)
	}
	return nil
}

// openSRPPortal binds the address for the software RNIC.
func (d *Daemon) openSRPPortal(p SRPConfig) (*srpPortal, error) {
	pt := &srpPortal{cfg: p, over: p.Address}
	if d.device == nil {
		return pt, nil
	}
	l, err := d.device.Listen(context.Background(), p.Address)
	if err != nil {
		return nil, fmt.Errorf("srp %s: %w", p.Address, err)
	}
	pt.l, pt.over = l, listening(p.Address, l.Addr().String())
	return pt, nil
}

// serveSRP begins to take logins.
func (d *Daemon) serveSRP(p *srpPortal) {
	ctx, cancel := context.WithCancel(context.Background())
	p.stop = cancel
	group := func() uint16 {
		d.mu.Lock()
		defer d.mu.Unlock()
		return p.cfg.Group
	}
	serve := func(dev transport.Device, l transport.Listener) error {
		err := d.srp.Serve(ctx, dev, l, group)
		if errors.Is(err, srp.ErrClosed) {
			return nil
		}
		return err
	}
	if p.l != nil {
		d.portalWG.Go(func() {
			if err := serve(d.device, p.l); err != nil {
				select {
				case d.failed <- fmt.Errorf("srp %s: %w", p.cfg.Address, err):
				default:
				}
			}
		})
	}
	for _, a := range d.adapters {
		if a.cfg.Provider == fabric.SHM {
			continue // for which SRP has no initiator
		}
		d.portalWG.Go(func() { a.listen(ctx, p.over, p.l != nil, serve) })
	}
	d.log.Info("SRP open", zap.String("address", p.over), zap.Uint16("group", p.cfg.Group))
}

// planSRP opens the addresses that next has and the daemon has not.
func (d *Daemon) planSRP(next *Config, p *plan) error {
	for _, c := range next.SRP {
		if d.srpPortals[c.Address] != nil {
			continue
		}
		pt, err := d.openSRPPortal(c)
		if err != nil {
			return err
		}
		p.srp = append(p.srp, pt)
	}
	return nil
}

// moveSRP closes the addresses that go, whose sessions stay until they end, gives those that stay their groups, and serves those that came. A session
// keeps the group that it logged in by.
func (d *Daemon) moveSRP(next *Config, p *plan) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for addr, pt := range d.srpPortals {
		if i := indexOf(next.SRP, addr); i >= 0 {
			pt.cfg = next.SRP[i]
			continue
		}
		pt.close()
		delete(d.srpPortals, addr)
		d.log.Info("SRP closed", zap.String("address", addr))
	}
	for _, pt := range p.srp {
		d.srpPortals[pt.cfg.Address] = pt
		if d.serving {
			d.serveSRP(pt)
		}
	}
	return nil
}
