package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/target/scsi"
)

// plan is what a reload opened before it touched anything.
type plan struct {
	volumes map[string]*volume // opened
	came    []*volume          // of those, volumes that had no medium
	grown   []*volume          // have a larger medium, which initiators have not seen yet
	portals []*portal
	srp     []*srpPortal
	targets map[string]TargetConfig // new or changed
	fresh   map[string]bool         // targets that need a new device: their groups or their kind have changed
	devices map[string]*scsi.Target // of new and fresh targets
	forms   map[string]targetForm   // of new and changed targets, without their devices
	files   *files                  // the file service, when there was none
	offer   *offer                  // the exports, where they have changed or some were not served
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
	for _, pt := range p.srp {
		pt.close()
	}
	if p.files != nil {
		_ = p.files.close(context.Background()) // it has served nothing
	}
	return errors.Join(errs...)
}

// plan opens what next needs and the daemon has not. A file volume that must be opened again under another configuration
// is refused while it is served, because it is locked then. With all every target counts as changed.
func (d *Daemon) plan(next *Config, all bool) (*plan, error) {
	p := &plan{volumes: map[string]*volume{}, targets: map[string]TargetConfig{}, fresh: map[string]bool{}, devices: map[string]*scsi.Target{}, forms: map[string]targetForm{}}
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
	if err := d.planSRP(next, p); err != nil {
		return p, err
	}
	if err := d.planFiles(next, p, all); err != nil {
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
			form, err = formOf(t) // reads the secrets
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
