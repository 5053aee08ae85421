package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/target/iscsi"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/scsi"
)

// reloadLimit bounds how long a change waits for the sessions it ends.
const reloadLimit = 30 * time.Second

// Reload makes the daemon serve next. Sessions that no change touches do not notice. Everything that can fail is done
// first, beside what is served; when any of it fails nothing has changed.
func (d *Daemon) Reload(next *Config) error {
	_, err := d.reload(next)
	return err
}

// ReloadFile reads the configuration again and makes the daemon serve it, as Reload does.
func (d *Daemon) ReloadFile() error {
	_, err := d.reloadFile()
	return err
}

// reloadFile reads and serves as one step among the changes of the administrative interface: what was read before one of them
// would take it back.
func (d *Daemon) reloadFile() ([]Change, error) {
	d.changeMu.Lock()
	defer d.changeMu.Unlock()
	next, err := d.load()
	if err != nil {
		// A service manager that asked for it waits until it hears that a reload began and ended (systemd.service(5),
		// Type=notify-reload), however it went.
		d.notify(reloading())
		d.notify(sd.SdNotifyReady)
		return nil, fmt.Errorf("configuration not changed: %w", err)
	}
	changes, err := d.reload(next)
	if err != nil {
		return changes, err
	}
	return changes, d.dropMaps(changes)
}

// dropMaps forgets the LUNs that the administrative interface mapped into targets that have left the operator's file: a later
// target of such a name is another one.
func (d *Daemon) dropMaps(changes []Change) error {
	m, err := readManaged(d.stateDir)
	if err != nil {
		return err
	}
	n := len(m.Maps)
	for _, c := range changes {
		if c.Kind == "target" && c.What == "removed" {
			m.unmap(c.Name)
		}
	}
	if len(m.Maps) == n {
		return nil
	}
	return m.write(d.stateDir)
}

func (d *Daemon) reload(next *Config) ([]Change, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.notify(reloading())
	defer d.notify(sd.SdNotifyReady)
	changes := d.cfg.Diff(next)
	p, err := d.plan(next)
	if err != nil {
		p.undo()
		return nil, fmt.Errorf("configuration not changed: %w", err)
	}
	err = d.apply(next, p)
	for _, c := range changes {
		d.log.Info("configuration", zap.String("audit", c.What), zap.String("kind", c.Kind), zap.String("name", c.Name), zap.Bool("needs_restart", c.Restart))
	}
	return changes, err
}

// plan is what a reload opened before it touched anything.
type plan struct {
	volumes map[string]*volume // opened: new ones, and changed ones under their new configuration
	grow    []VolumeConfig
	portals []*portal
	targets map[string]TargetConfig // new or changed
	fresh   map[string]bool         // targets that need a new device: their LUN map's volumes were opened again
	files   *files                  // the file service, when there was none
}

func (p *plan) undo() {
	for _, v := range p.volumes {
		_ = v.close() // it was opened a moment ago and nobody used it
	}
	for _, pt := range p.portals {
		_ = pt.l.Close()
	}
	if p.files != nil {
		_ = p.files.close(context.Background()) // it served nobody
	}
}

// plan opens what next needs and the daemon has not. A file volume that must be opened again under another configuration
// is refused while it is served: its lock is held.
func (d *Daemon) plan(next *Config) (*plan, error) {
	p := &plan{volumes: map[string]*volume{}, targets: map[string]TargetConfig{}, fresh: map[string]bool{}}
	for _, v := range next.Volumes {
		old := d.volumes[v.Name]
		switch {
		case old != nil && same(old.cfg, v):
		case old != nil && sizeOnly(old.cfg, v):
			p.grow = append(p.grow, v)
		case old != nil:
			return p, fmt.Errorf("volume %s: only its size can change, and only upwards, while it is served; remove it, reload, and add it again", v.Name)
		default:
			vol, err := d.openVolume(v)
			if err != nil {
				return p, err
			}
			p.volumes[v.Name] = vol
		}
	}
	was := map[string]TargetConfig{}
	for _, t := range d.cfg.Targets {
		was[t.Name] = t
	}
	for _, t := range next.Targets {
		if _, err := iscsiTarget(t, nil); err != nil { // reads the secrets
			return p, err
		}
		if old, ok := was[t.Name]; !ok || !same(old, t) || t.Auth != nil {
			p.targets[t.Name] = t
			p.fresh[t.Name] = ok && ((old.Redirect == "") != (t.Redirect == "") || !statesOnly(old, t))
		}
	}
	for _, pc := range next.Portals {
		if d.portals[pc.Address] == nil {
			if err := d.openPortal(pc); err != nil {
				return p, err
			}
			p.portals = append(p.portals, d.portals[pc.Address])
			delete(d.portals, pc.Address)
		}
	}
	return p, d.planFiles(next, p)
}

// planFiles opens the file service when the first export comes, and otherwise sees whether the exports could be opened.
func (d *Daemon) planFiles(next *Config, p *plan) (err error) {
	switch {
	case d.files == nil:
		p.files, err = d.openFiles(next)
	case next.Files != nil && !same(d.cfg.Exports, next.Exports):
		err = nfs.Check(next.exports()...)
	}
	return err
}

// applyFiles makes the change of the file service: it comes with the first export, unless the file names its addresses, and goes
// with the last.
func (d *Daemon) applyFiles(ctx context.Context, next *Config, p *plan) error {
	switch {
	case p.files != nil:
		d.files = p.files
		return nil
	case d.files == nil:
		return nil
	case next.Files == nil:
		err := d.files.close(ctx)
		d.files = nil
		d.log.Info("files closed", zap.String("why", "the last export is gone"))
		return err
	case !same(d.cfg.Exports, next.Exports):
		return d.files.nfs.SetExports(next.exports()...)
	}
	return nil
}

// apply makes the change: away with what goes, in with what comes, then what changed. An error here leaves the rest done
// and is reported, for nothing of it can be taken back without hurting sessions.
func (d *Daemon) apply(next *Config, p *plan) error {
	ctx, cancel := context.WithTimeout(context.Background(), reloadLimit)
	defer cancel()
	var errs []error
	keep, there := map[string]bool{}, map[string]bool{}
	for _, t := range next.Targets {
		keep[t.Name], there[t.Name] = !p.fresh[t.Name], true
	}
	for _, t := range d.cfg.Targets {
		if !keep[t.Name] {
			errs = append(errs, d.server.RemoveTarget(ctx, t.Name))
			delete(d.targets, t.Name)
		}
		if !there[t.Name] {
			errs = append(errs, d.forget(t.Name, d.managedTarget(t.Name)))
		}
	}
	for name, v := range p.volumes {
		d.volumes[name] = v
	}
	for _, v := range p.grow {
		errs = append(errs, d.grow(v))
	}
	old := map[string]TargetConfig{}
	for _, t := range d.cfg.Targets {
		old[t.Name] = t
	}
	for _, t := range next.Targets {
		if _, changed := p.targets[t.Name]; !changed {
			continue
		}
		st := d.targets[t.Name]
		if st == nil {
			errs = append(errs, d.addTarget(t))
			continue
		}
		errs = append(errs, d.remap(st, old[t.Name], t), moveGroups(st, old[t.Name], t))
		it, err := iscsiTarget(t, st)
		if err == nil {
			err = d.server.UpdateTarget(it)
		}
		errs = append(errs, err)
	}
	errs = append(errs, d.dropVolumes(next), d.movePortals(ctx, next, p), d.applyFiles(ctx, next, p))
	d.cfg = next
	if p.files != nil && d.serving {
		d.serveFiles()
	}
	return errors.Join(errs...)
}

// grow makes the file of a volume larger and tells its sessions.
func (d *Daemon) grow(v VolumeConfig) error {
	vol := d.volumes[v.Name]
	if err := os.Truncate(v.Path, int64(v.Size)); err != nil {
		return fmt.Errorf("volume %s: %w", v.Name, err)
	}
	vol.cfg = v
	return vol.lu.Refresh()
}

// remap changes a target's LUN map in place: LUNs that stay are not touched.
func (d *Daemon) remap(st *scsi.Target, old, next TargetConfig) error {
	was, will := map[uint16]string{}, map[uint16]string{}
	for _, l := range old.LUNs {
		was[l.LUN] = l.Volume
	}
	for _, l := range next.LUNs {
		will[l.LUN] = l.Volume
	}
	var errs []error
	for lun, v := range was {
		if will[lun] != v {
			errs = append(errs, st.RemoveLUN(lun))
		}
	}
	for lun, v := range will {
		if was[lun] != v {
			errs = append(errs, st.AddLUN(lun, d.volumes[v].lu))
		}
	}
	return errors.Join(errs...)
}

// dropVolumes closes what next does not name any more.
func (d *Daemon) dropVolumes(next *Config) error {
	keep := map[string]bool{}
	for _, v := range next.Volumes {
		keep[v.Name] = true
	}
	var errs []error
	for name, v := range d.volumes {
		if !keep[name] {
			errs = append(errs, v.close())
			delete(d.volumes, name)
		}
	}
	return errors.Join(errs...)
}

// movePortals closes the portals that go, whose sessions stay until they end, gives those that stay their group tags, and serves
// those that came.
func (d *Daemon) movePortals(ctx context.Context, next *Config, p *plan) error {
	var errs []error
	keep := map[string]bool{}
	for _, pc := range next.Portals {
		keep[pc.Address] = true
		if pt := d.portals[pc.Address]; pt != nil && pt.cfg.Group != pc.Group {
			pt.cfg = pc
			if pt.stop != nil {
				errs = append(errs, d.server.UpdatePortal(ctx, pt.l.Addr(), iscsi.Portal{Group: pc.Group}))
			}
			d.log.Info("portal group", zap.String("address", pc.Address), zap.Uint16("group", pc.Group))
		}
	}
	for addr, pt := range d.portals {
		if !keep[addr] {
			if pt.stop != nil {
				pt.stop()
			}
			delete(d.portals, addr)
			d.log.Info("portal closed", zap.String("address", addr))
		}
	}
	for _, pt := range p.portals {
		d.portals[pt.cfg.Address] = pt
		if d.serving {
			d.servePortal(pt)
		}
	}
	return errors.Join(errs...)
}
