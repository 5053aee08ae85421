package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/savefile"
	"github.com/sluice-storage/sluice/target/iscsi"
	"github.com/sluice-storage/sluice/target/scsi"
)

// reloadLimit bounds how long a change waits for the sessions it ends.
const reloadLimit = 30 * time.Second

// closeLimit is how long a change waits for a volume that goes to be closed: for its last commands. Below a medium that hangs
// it is closed later, and its file stays locked until then.
const closeLimit = 2 * time.Second

// Reload makes the daemon serve next. Sessions that no change touches do not notice. A change that cannot be made as a whole
// is taken back.
func (d *Daemon) Reload(next *Config) error {
	d.changeMu.Lock()
	defer d.changeMu.Unlock()
	_, _, err := d.reloadLocked(next, nil)
	return err
}

// ReloadFile reads the configuration again and makes the daemon serve it, as Reload does.
func (d *Daemon) ReloadFile() error {
	_, _, err := d.reloadFile(context.Background())
	return err
}

// reloadFile reads under the lock of changes: what was read before another change would take that back.
func (d *Daemon) reloadFile(ctx context.Context) (changes []Change, but, err error) {
	if err := d.lockChange(ctx); err != nil {
		return nil, nil, err
	}
	defer d.changeMu.Unlock()
	next, err := d.load()
	if err == nil {
		err = next.takesAway(d.cfg)
	}
	if err != nil {
		// A service manager that asked for it waits until it hears that a reload began and ended (systemd.service(5),
		// Type=notify-reload), however it went.
		d.notify(reloading())
		d.notify(sd.SdNotifyReady)
		return nil, nil, fmt.Errorf("configuration not changed: %w", err)
	}
	return d.reloadLocked(next, func() error { return d.dropGone(next) })
}

// dropGone forgets the LUNs that the administrative interface mapped into targets that leave the operator's file, and the sizes that
// it gave to volumes that do.
func (d *Daemon) dropGone(next *Config) error {
	m, err := readManaged(d.stateDir)
	if err != nil {
		return err
	}
	if _, some := m.forgetGone(next); !some {
		return nil
	}
	text, err := m.text()
	if err != nil {
		return err
	}
	return savefile.Replace(managedPath(d.stateDir), text)
}

// reloadLocked makes the daemon serve next. Whoever calls it holds changeMu, under which alone what is served changes; mu is
// taken for moments only, so that nothing that waits for a medium or a peer holds up who only looks. Everything that can fail
// is done first, beside what is served. commit, if any, makes the change last over a restart; what cannot be made or committed
// is taken back, and is err. But is what went wrong after that: the change is made all the same, and nothing that it is of may be
// removed.
func (d *Daemon) reloadLocked(next *Config, commit func() error) (changes []Change, but, err error) {
	d.notify(reloading())
	defer d.notify(sd.SdNotifyReady)
	ctx, cancel := context.WithTimeout(d.life, reloadLimit)
	defer cancel()
	if d.ended {
		return nil, nil, errors.New("configuration not changed: the daemon is ending")
	}
	before := d.cfg
	changes = before.Diff(next)
	p, err := d.plan(next, false)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("configuration not changed: %w", err), p.undo())
	}
	if err = d.apply(ctx, next, p); err == nil && commit != nil {
		err = commit()
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("configuration not changed: %w", err), d.takeBack(ctx, before, p))
	}
	if but = d.finish(before, next, p); but != nil {
		d.log.Error("the configuration has changed, but not all that goes with it could be done", zap.Error(but))
	}
	for _, c := range changes {
		d.log.Info("configuration", zap.String("audit", c.What), zap.String("kind", c.Kind), zap.String("name", c.Name), zap.Bool("needs_restart", c.Restart))
	}
	return changes, but, nil
}

// takeBack makes the daemon serve before again, after apply has failed somewhere in p.
func (d *Daemon) takeBack(ctx context.Context, before *Config, p *plan) error {
	errs := []error{p.ungrow()}
	back, err := d.plan(before, true)
	if err != nil {
		errs = append(errs, err, back.undo())
	} else {
		errs = append(errs, d.apply(ctx, before, back), d.finish(before, before, back))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("and not all of it could be taken back: %w; restart the daemon", err)
	}
	return nil
}

// plan is what a reload opened before it touched anything.
type plan struct {
	volumes map[string]*volume // opened
	came    []*volume          // of those, volumes that had no medium
	grown   []*volume          // have a larger medium, which initiators have not seen yet
	portals []*portal
	targets map[string]TargetConfig // new or changed
	fresh   map[string]bool         // targets that need a new device: their groups or their kind have changed
	devices map[string]*scsi.Target // of new and fresh targets
	forms   map[string]iscsi.Target // of new and changed targets, without their devices
	files   *files                  // the file service, when there was none
}

func (p *plan) ungrow() error {
	var errs []error
	for _, v := range p.grown {
		errs = append(errs, blockdev.Ungrow(v.dev))
	}
	return errors.Join(errs...)
}

func (p *plan) undo() error {
	errs := []error{p.ungrow()}
	for _, v := range p.volumes {
		_ = v.close() // it was opened a moment ago and nothing has used it
	}
	for _, pt := range p.portals {
		_ = pt.l.Close()
	}
	if p.files != nil {
		_ = p.files.close(context.Background()) // it has served nothing
	}
	return errors.Join(errs...)
}

// plan opens what next needs and the daemon has not. A file volume that must be opened again under another configuration
// is refused while it is served: its lock is held. With all every target counts as changed.
func (d *Daemon) plan(next *Config, all bool) (*plan, error) {
	p := &plan{volumes: map[string]*volume{}, targets: map[string]TargetConfig{}, fresh: map[string]bool{}, devices: map[string]*scsi.Target{}, forms: map[string]iscsi.Target{}}
	grow := map[string]int64{}
	for _, v := range next.Volumes {
		old := d.volumes[v.Name]
		if old == nil || old.why != nil {
			vol, err := d.openVolume(v, p.volumes)
			known := old != nil && same(old.cfg, v)
			switch {
			case err == nil && (vol.why == nil || !known):
				p.volumes[v.Name] = vol
			case err != nil && !known:
				return p, err
			case err != nil:
				d.log.Warn("a volume can still not be served", zap.String("volume", v.Name), zap.Error(err))
			default:
				_ = vol.close() // as absent as the one that is there
			}
			continue
		}
		to, err := old.follows(v)
		if err != nil {
			return p, err
		}
		if to > 0 {
			grow[v.Name] = to
		}
	}
	d.dropStrangers(next, p.volumes)
	if err := next.takesAway(d.cfg); err != nil {
		return p, err
	}
	if err := d.planTargets(next, p, all); err != nil {
		return p, err
	}
	for _, pc := range next.Portals {
		if d.portals[pc.Address] == nil {
			pt, err := d.openPortal(pc)
			if err != nil {
				return p, err
			}
			p.portals = append(p.portals, pt)
		}
	}
	if err := d.planFiles(next, p); err != nil {
		return p, err
	}
	for name, to := range grow {
		v := d.volumes[name]
		if err := blockdev.Grow(v.dev, to); err != nil {
			return p, fmt.Errorf("volume %s: %w", name, err)
		}
		p.grown = append(p.grown, v)
	}
	return p, nil
}

// planTargets makes the devices of new targets.
func (d *Daemon) planTargets(next *Config, p *plan, all bool) error {
	was := map[string]TargetConfig{}
	for _, t := range d.cfg.Targets {
		was[t.Name] = t
	}
	unit := func(volume string) *scsi.LogicalUnit {
		if v := p.volumes[volume]; v != nil {
			return v.lu
		}
		return d.volumes[volume].lu
	}
	for _, t := range next.Targets {
		old, known := was[t.Name]
		_, served := d.targets[t.Name]
		form, wasServed := d.forms[t.Name]
		switch {
		case all && !wasServed:
			continue
		case all: // as it was, whatever its secrets file says now
		case served && same(old, t) && (t.Auth == nil || next.touched != nil && !next.touched[t.Name]):
			if !slices.ContainsFunc(t.LUNs, func(l LUNConfig) bool { return p.volumes[l.Volume] != nil }) {
				continue
			} // a volume of it was opened again
		default:
			var err error
			form, err = iscsiTarget(t, nil) // reads the secrets
			if err != nil && known && !served && same(old, t) && !next.touched[t.Name] {
				d.notServed(t.Name, err)
				continue
			}
			if err != nil {
				return err
			}
		}
		p.targets[t.Name], p.forms[t.Name] = t, form
		p.fresh[t.Name] = served && ((old.Redirect == "") != (t.Redirect == "") || !statesOnly(old, t))
		if !served || p.fresh[t.Name] {
			if !known && !all {
				// A daemon that was killed while it removed a target of this name may have left its state.
				if err := scsi.Forget(d.scsiState(), t.Name); err != nil {
					return fmt.Errorf("target %s: %w", t.Name, err)
				}
			}
			st, err := d.scsiTarget(t, unit)
			if err != nil && known && !served && same(old, t) {
				delete(p.targets, t.Name)
				d.notServed(t.Name, err)
				continue
			}
			if err != nil {
				return err
			}
			p.devices[t.Name] = st
		}
	}
	return nil
}

// apply makes the change: away with what goes, in with what comes, then what changed. Volumes that go and sizes that grow are
// left to finish: they cannot be taken back.
func (d *Daemon) apply(ctx context.Context, next *Config, p *plan) error {
	keep := map[string]bool{}
	for _, t := range next.Targets {
		keep[t.Name] = !p.fresh[t.Name]
	}
	for name := range maps.Clone(d.targets) {
		if keep[name] {
			continue
		}
		d.mu.Lock()
		delete(d.targets, name)
		d.mu.Unlock()
		// It takes no new session from now on; what its last commands wait for is not the change's business.
		if err := d.server.RemoveTarget(ctx, name); err != nil {
			d.log.Warn("commands of a target that was removed are still running", zap.String("target", name), zap.Error(err))
		}
	}
	d.mu.Lock()
	for name, v := range p.volumes {
		if d.volumes[name] != nil {
			p.came = append(p.came, v) // what was there has no medium, so there is nothing to close
		}
		d.volumes[name] = v
	}
	d.mu.Unlock()
	var errs []error
	old := map[string]TargetConfig{}
	for _, t := range d.cfg.Targets {
		old[t.Name] = t
	}
	for _, t := range next.Targets {
		if _, changed := p.targets[t.Name]; !changed {
			continue
		}
		st, served := d.targets[t.Name]
		if !served {
			errs = append(errs, d.addTarget(p.forms[t.Name], p.devices[t.Name]))
			continue
		}
		if st != nil {
			errs = append(errs, d.remap(st, t), moveGroups(st, old[t.Name], t))
		}
		it := p.forms[t.Name]
		it.SCSI = st
		errs = append(errs, d.server.UpdateTarget(it))
	}
	errs = append(errs, d.movePortals(ctx, next, p), d.applyFiles(ctx, next, p))
	d.mu.Lock()
	d.cfg = next
	if p.files != nil && d.serving {
		d.serveFiles()
	}
	d.mu.Unlock()
	return errors.Join(errs...)
}

// finish does what cannot be taken back: initiators learn of sizes, and what next does not name any more is closed and
// forgotten.
func (d *Daemon) finish(before, next *Config, p *plan) error {
	var errs []error
	for _, t := range before.Targets {
		if !slices.ContainsFunc(next.Targets, func(o TargetConfig) bool { return o.Name == t.Name }) {
			errs = append(errs, d.forget(t.Name, before.managedTarget(t.Name)))
		}
	}
	for _, v := range p.came {
		if v.why == nil {
			v.lu.MediumCame()
		}
	}
	for _, v := range p.grown {
		if err := v.lu.Refresh(); err != nil {
			errs = append(errs, fmt.Errorf("volume %s has grown, but its new size cannot be served yet: %w; reload", v.cfg.Name, err))
		}
	}
	named := map[string]bool{}
	d.mu.Lock()
	for _, t := range before.Targets {
		if _, served := d.targets[t.Name]; !served {
			delete(d.forms, t.Name)
		}
	}
	for name, form := range p.forms {
		if _, served := d.targets[name]; served {
			d.forms[name] = form
			delete(d.unserved, name)
		}
	}
	for name := range d.unserved {
		if !slices.ContainsFunc(next.Targets, func(t TargetConfig) bool { return t.Name == name }) {
			delete(d.unserved, name)
		}
	}
	for _, c := range next.Volumes {
		named[c.Name] = true
		d.volumes[c.Name].cfg = c
	}
	var gone []*volume
	for name, v := range d.volumes {
		if !named[name] {
			gone = append(gone, v)
			delete(d.volumes, name)
		}
	}
	d.mu.Unlock()
	for _, v := range gone {
		d.retire(v)
		if v.cfg.Engine != "file" {
			d.forgetIdentity(v.cfg.Name)
		}
	}
	return errors.Join(errs...)
}

// retire closes a volume that nothing refers to any more, and waits for that as long as closeLimit.
func (d *Daemon) retire(v *volume) {
	done := make(chan struct{})
	d.closing.Go(func() {
		defer close(done)
		if err := v.close(); err != nil {
			d.log.Error("volume not closed in order", zap.Error(err))
		}
	})
	t := time.NewTimer(closeLimit)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		d.log.Warn("the medium of a volume that was removed does not answer; it is closed when its last command has ended", zap.String("volume", v.cfg.Name))
	}
}

// remap brings a target's LUN map in line with t in place: LUNs that stay are not touched.
func (d *Daemon) remap(st *scsi.Target, t TargetConfig) error {
	will := map[uint16]*scsi.LogicalUnit{}
	for _, l := range t.LUNs {
		will[l.LUN] = d.volumes[l.Volume].lu
	}
	var errs []error
	for _, lun := range st.LUNs() {
		if will[lun] != st.LUN(lun) {
			errs = append(errs, st.RemoveLUN(lun))
		}
	}
	for lun, lu := range will {
		if st.LUN(lun) == nil {
			errs = append(errs, st.AddLUN(lun, lu))
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
		pt := d.portals[pc.Address]
		if pt == nil || pt.cfg.Group == pc.Group {
			continue
		}
		d.mu.Lock()
		pt.cfg = pc
		d.mu.Unlock()
		if pt.stop != nil {
			errs = append(errs, d.server.UpdatePortal(ctx, pt.l.Addr(), iscsi.Portal{Group: pc.Group}))
		}
		d.log.Info("portal group", zap.String("address", pc.Address), zap.Uint16("group", pc.Group))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
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
