package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/sluice-storage/sluice/target/admin"
	"github.com/sluice-storage/sluice/target/scsi"
)

// CreateTarget implements admin.Backend.
func (d *Daemon) CreateTarget(ctx context.Context, s admin.TargetSpec) (admin.Done, error) {
	t := TargetConfig{Name: s.Name, Alias: s.Alias}
	for _, i := range s.Initiators {
		t.Initiators = append(t.Initiators, InitiatorConfig{Name: i})
	}
	return d.change(ctx, s.DryRun, "target "+s.Name+" created", func(m *managed) error {
		if has(d.cfg.Targets, s.Name) {
			return &admin.Error{Kind: admin.Conflict, Msg: "there is a target " + s.Name + " already"}
		}
		m.unmap(s.Name) // of an earlier target of this name
		m.Targets = append(m.Targets, t)
		return nil
	})
}

// forget removes what the state directory has of a target, so that a later one of its name inherits nothing: the states of its
// port groups, and the secrets that this interface was given. What hosts took its LUNs for stays.
func (d *Daemon) forget(target string, managed bool) error {
	err := scsi.Forget(d.scsiState(), target)
	if !managed {
		return err
	}
	rerr := os.Remove(d.secretsOf(target))
	if errors.Is(rerr, fs.ErrNotExist) {
		rerr = nil
	}
	return errors.Join(err, rerr)
}

// DeleteTarget implements admin.Backend.
func (d *Daemon) DeleteTarget(ctx context.Context, name string, dryRun bool) (admin.Done, error) {
	return d.change(ctx, dryRun, "target "+name+" removed", func(m *managed) error {
		if err := d.ours(name); err != nil {
			return err
		}
		m.Targets = without(m.Targets, name)
		m.unmap(name)
		return nil
	})
}

// ours fails for a target that is not there or that the operator's file defines.
func (d *Daemon) ours(name string) error {
	for _, t := range d.Targets() {
		if t.Name == name {
			if !t.Managed {
				return &admin.Error{Kind: admin.Conflict, Msg: "target " + name + " is defined in " + d.source + "; change it there and reload"}
			}
			return nil
		}
	}
	return &admin.Error{Kind: admin.NotFound, Msg: "there is no target " + name}
}

// MapLUN implements admin.Backend.
func (d *Daemon) MapLUN(ctx context.Context, target string, l admin.LUN, dryRun bool) (admin.Done, error) {
	return d.change(ctx, dryRun, fmt.Sprintf("volume %s is LUN %d of %s", l.Volume, l.LUN, target), func(m *managed) error {
		i := indexOf(d.cfg.Targets, target)
		if i < 0 {
			return &admin.Error{Kind: admin.NotFound, Msg: "there is no target " + target}
		}
		if slices.ContainsFunc(d.cfg.Targets[i].LUNs, func(o LUNConfig) bool { return o.LUN == l.LUN }) {
			return &admin.Error{Kind: admin.Conflict, Msg: fmt.Sprintf("LUN %d of %s is taken", l.LUN, target)}
		}
		if err := d.cfg.free(l.Volume); err != nil {
			if ae := (*admin.Error)(nil); errors.As(err, &ae) {
				return ae
			}
			return &admin.Error{Kind: admin.Conflict, Msg: err.Error()}
		}
		// One that could not be served has no claim to its number.
		unit := d.volumes[l.Volume].key
		m.Maps = slices.DeleteFunc(m.Maps, func(p managedMap) bool {
			return p.Target == target && p.LUN == l.LUN || p.Volume == l.Volume && p.Unit != unit
		})
		m.Maps = append(m.Maps, managedMap{Target: target, LUN: l.LUN, Volume: l.Volume, Unit: unit})
		return nil
	})
}

// UnmapLUN implements admin.Backend.
func (d *Daemon) UnmapLUN(ctx context.Context, target string, lun uint16, dryRun bool) (admin.Done, error) {
	return d.change(ctx, dryRun, fmt.Sprintf("LUN %d of %s unmapped", lun, target), func(m *managed) error {
		n := len(m.Maps)
		m.Maps = slices.DeleteFunc(m.Maps, func(p managedMap) bool { return p.Target == target && p.LUN == lun })
		if len(m.Maps) == n {
			return &admin.Error{Kind: admin.NotFound, Msg: fmt.Sprintf("LUN %d of %s was not mapped by this interface; what %s maps is changed there", lun, target, d.source)}
		}
		return nil
	})
}
