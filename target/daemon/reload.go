package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/savefile"
	"github.com/sluice-storage/sluice/target/admin"
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
	next, err := d.read(d.cfg, nil)
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

// read reads the configuration again. m is what commands made, nil for what the state directory has of that.
func (d *Daemon) read(now *Config, m *managed) (*Config, error) {
	if now.with == nil {
		return nil, &admin.Error{Kind: admin.Conflict, Msg: "nothing can be changed: this daemon does not read its configuration from files"}
	}
	if m == nil {
		var err error
		if m, err = readManaged(d.stateDir); err != nil {
			return nil, err
		}
	}
	return now.with(now, m)
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

// reloadLocked makes the daemon serve next. The caller holds changeMu: what is served changes with that alone. mu is taken for
// moments, so that a request that only reads the state never waits for a medium or a peer. What can fail is done first, beside what
// is served. commit, if any, makes the change last over a restart. What cannot be made or committed is taken back, and err says why.
// but is what went wrong after that: the change is made all the same, and nothing that belongs to it may be removed.
func (d *Daemon) reloadLocked(next *Config, commit func() error) (changes []Change, but, err error) {
	d.notify(reloading())
	defer d.notify(sd.SdNotifyReady)
	ctx, cancel := context.WithTimeout(d.life, reloadLimit)
	defer cancel()
	if d.ending() {
		return nil, nil, errEnding
	}
	before := d.cfg
	changes = before.Diff(next)
	p, err := d.plan(next, false)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("configuration not changed: %w", err), p.undo())
	}
	if d.ending() { // a stop does not wait for a change below a medium that hangs
		return nil, nil, errors.Join(errEnding, p.undo())
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
	told := before.asked != nil && same(before.asked.settings(), next.fromFiles().settings())
	for _, c := range changes {
		if c.Restart && told { // by the reload that read it first
			continue
		}
		d.log.Info("configuration", zap.String("audit", c.What), zap.String("kind", c.Kind), zap.String("name", c.Name), zap.Bool("needs_restart", c.Restart))
	}
	return changes, but, nil
}

var errEnding = errors.New("configuration not changed: the daemon is ending")

func (d *Daemon) ending() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ended
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

// apply makes the change: away with what goes, in with what comes, then what changed. Volumes that go and sizes that grow are
// left to finish: they cannot be taken back.
func (d *Daemon) apply(ctx context.Context, next *Config, p *plan) error {
	d.endTargets(ctx, next, p)
	d.mu.Lock()
	for name, v := range p.volumes {
		if d.volumes[name] != nil {
			p.came = append(p.came, v) // what was there has no medium, so there is nothing to close
		}
		d.volumes[name] = v
	}
	d.mu.Unlock()
	errs := []error{d.changeTargets(next, p), d.movePortals(ctx, next, p), d.moveSRP(next, p), d.applyFiles(ctx, next, p)}
	d.mu.Lock()
	d.cfg = next
	if p.files != nil && d.serving {
		d.serveFiles()
	}
	d.mu.Unlock()
	return errors.Join(errs...)
}

// endTargets ends the targets that next has not, and those that need a new device. They take no new session from now on; what their
// last commands wait for does not hold up the change.
func (d *Daemon) endTargets(ctx context.Context, next *Config, p *plan) {
	keep := map[string]bool{}
	for _, t := range next.Targets {
		keep[t.Name] = !p.fresh[t.Name]
	}
	for name := range maps.Clone(d.targets) {
		if keep[name] {
			continue
		}
		d.mu.Lock()
		if st := d.targets[name]; st != nil {
			d.replacing[name] = st
		}
		delete(d.targets, name)
		d.mu.Unlock()
		d.offerSRP(name, nil, nil)
		if err := errors.Join(d.server.RemoveTarget(ctx, name), d.srp.Await(ctx, name)); err != nil {
			d.log.Warn("commands of a target that was removed are still running", zap.String("target", name), zap.Error(err))
		}
	}
}

// changeTargets serves the targets that are new, and gives those that are served what has changed of them.
func (d *Daemon) changeTargets(next *Config, p *plan) error {
	old := map[string]TargetConfig{}
	for _, t := range d.cfg.Targets {
		old[t.Name] = t
	}
	var errs []error
	for _, t := range next.Targets {
		if _, changed := p.targets[t.Name]; !changed {
			continue
		}
		st, served := d.targets[t.Name]
		if !served {
			if old, st := d.replacing[t.Name], p.devices[t.Name]; old != nil && st != nil {
				st.Succeed(old)
			}
			errs = append(errs, d.addTarget(p.forms[t.Name], p.devices[t.Name]))
			continue
		}
		if st != nil {
			errs = append(errs, d.remap(st, t), moveGroups(st, old[t.Name], t))
		}
		it := p.forms[t.Name]
		it.SCSI = st
		errs = append(errs, d.server.UpdateTarget(it.Target))
		d.offerSRP(t.Name, it.srp, st)
	}
	return errors.Join(errs...)
}

// finish does what cannot be taken back: initiators learn of sizes, and what next does not name any more is closed and
// forgotten.
func (d *Daemon) finish(before, next *Config, p *plan) error {
	var errs []error
	for _, t := range before.Targets {
		if !has(next.Targets, t.Name) {
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
	for name, st := range d.replacing {
		if d.targets[name] == nil {
			st.Retire()
		}
	}
	d.mu.Lock()
	d.settleTargetsLocked(before, next, p)
	gone := d.settleVolumesLocked(next)
	d.mu.Unlock()
	for _, v := range gone {
		d.retire(v)
		if !v.cfg.engine().lasting {
			v.lu.Forget(false)
			d.forgetIdentity(v.cfg.Name, false)
		}
	}
	return errors.Join(errs...)
}

// settleTargetsLocked notes as what targets are served now, and why others are not.
func (d *Daemon) settleTargetsLocked(before, next *Config, p *plan) {
	clear(d.replacing)
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
		if !has(next.Targets, name) {
			delete(d.unserved, name)
		}
	}
}

// settleVolumesLocked gives volumes their new configuration, and takes out those that next has not.
func (d *Daemon) settleVolumesLocked(next *Config) (gone []*volume) {
	stays := map[string]bool{}
	for _, c := range next.Volumes {
		stays[c.Name] = true
		d.volumes[c.Name].cfg = c
	}
	for name, v := range d.volumes {
		if !stays[name] {
			gone = append(gone, v)
			delete(d.volumes, name)
		}
	}
	return gone
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
			pt.close() // now: a change that is taken back binds the address again
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
