package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/version"
	"github.com/sluice-storage/sluice/target/admin"
	"github.com/sluice-storage/sluice/target/scsi"
)

// The daemon is what the administrative interface changes.
var _ admin.Backend = (*Daemon)(nil)

// Info implements admin.Backend.
func (d *Daemon) Info() admin.Info {
	state := "serving"
	if d.Ready() != nil {
		state = "draining"
	}
	return admin.Info{Version: version.String(), PID: os.Getpid(), Started: d.started, Config: d.source, State: state, Dir: d.stateDir}
}

// Volumes implements admin.Backend.
func (d *Daemon) Volumes() []admin.Volume {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]admin.Volume, 0, len(d.volumes))
	for name, v := range d.volumes {
		g := v.dev.Geometry()
		a := admin.Volume{Name: name, Engine: v.cfg.Engine, Path: v.cfg.Path, Size: g.Size, Block: g.Logical, ReadOnly: v.cfg.ReadOnly, Managed: d.managedVolume(name)}
		if e, ok := v.dev.(blockdev.Explainer); ok {
			a.How = e.Path()
		}
		for _, t := range d.cfg.Targets {
			for _, l := range t.LUNs {
				if l.Volume == name {
					lun := int(l.LUN)
					a.Target, a.LUN = t.Name, &lun
				}
			}
		}
		out = append(out, a)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out
}

func (d *Daemon) managedVolume(name string) bool {
	return d.cfg.managed != nil && slices.ContainsFunc(d.cfg.managed.Volumes, func(v VolumeConfig) bool { return v.Name == name })
}

func (d *Daemon) managedTarget(name string) bool {
	return d.cfg.managed != nil && slices.ContainsFunc(d.cfg.managed.Targets, func(t TargetConfig) bool { return t.Name == name })
}

// Targets implements admin.Backend.
func (d *Daemon) Targets() []admin.Target {
	sessions := map[string]int{}
	for _, s := range d.Sessions() {
		sessions[s.Target]++
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]admin.Target, 0, len(d.cfg.Targets))
	for _, t := range d.cfg.Targets {
		a := admin.Target{Name: t.Name, Alias: t.Alias, LUNs: []admin.LUN{}, Initiators: []string{}, CHAP: t.Auth != nil, Sessions: sessions[t.Name], Managed: d.managedTarget(t.Name)}
		for _, l := range t.LUNs {
			a.LUNs = append(a.LUNs, admin.LUN{LUN: l.LUN, Volume: l.Volume})
		}
		for _, i := range t.Initiators {
			a.Initiators = append(a.Initiators, i.Name)
		}
		out = append(out, a)
	}
	return out
}

// Portals implements admin.Backend.
func (d *Daemon) Portals() []admin.Portal {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]admin.Portal, 0, len(d.portals))
	for _, p := range d.portals {
		out = append(out, admin.Portal{Address: p.l.Addr().String(), Group: p.cfg.Group})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Address < out[j].Address })
	return out
}

// Exports implements admin.Backend.
func (d *Daemon) Exports() []admin.Export {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]admin.Export, 0, len(d.cfg.Exports))
	for _, e := range d.cfg.Exports {
		out = append(out, admin.Export{Name: e.Name, Path: e.Path, Managed: d.managedExport(e.Name)})
	}
	return out
}

// Ready implements admin.Backend.
func (d *Daemon) Ready() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.drained:
		return &admin.Error{Kind: 503, Msg: "the daemon is draining"}
	default:
	}
	if !d.serving {
		return &admin.Error{Kind: 503, Msg: "the daemon is not serving"}
	}
	return nil
}

// ShowConfig implements admin.Backend.
func (d *Daemon) ShowConfig() ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cfg.Show()
}

// Drain implements admin.Backend: Run ends as on SIGTERM.
func (d *Daemon) Drain(context.Context) (admin.Done, error) {
	d.drainOne.Do(func() { close(d.drained) })
	return admin.Done{Changes: []string{"the daemon ends when what runs has finished"}}, nil
}

// ReloadConfig implements admin.Backend.
func (d *Daemon) ReloadConfig(_ context.Context, dryRun bool) (admin.Done, error) {
	var changes []Change
	if dryRun {
		next, err := d.load()
		if err != nil {
			return admin.Done{}, &admin.Error{Kind: admin.Invalid, Msg: err.Error()}
		}
		d.mu.Lock()
		changes = d.cfg.Diff(next)
		d.mu.Unlock()
	} else {
		var err error
		var bad *ConfigError
		switch changes, err = d.reloadFile(); {
		case errors.As(err, &bad):
			return admin.Done{}, &admin.Error{Kind: admin.Invalid, Msg: err.Error()}
		case err != nil:
			return admin.Done{}, &admin.Error{Kind: admin.Conflict, Msg: err.Error()}
		}
	}
	done := admin.Done{Changes: []string{}, DryRun: dryRun}
	for _, c := range changes {
		line := c.Kind + " " + c.Name + " " + c.What
		if c.Restart {
			line += " (takes effect when the daemon starts again)"
		}
		done.Changes = append(done.Changes, line)
	}
	if len(changes) == 0 {
		done.Changes = append(done.Changes, "nothing has changed")
	}
	return done, nil
}

// change edits the managed part of the configuration: what results is checked, written down durably, and then made so.
// When it cannot be made so the written part goes back to what it was. A dry run only checks, and writes nothing.
func (d *Daemon) change(dryRun bool, what string, edit func(*managed) error) (admin.Done, error) {
	d.changeMu.Lock()
	defer d.changeMu.Unlock()
	now, err := readManaged(d.stateDir)
	if err != nil {
		return admin.Done{}, err
	}
	next, err := now.clone()
	if err != nil {
		return admin.Done{}, err
	}
	if err := edit(next); err != nil {
		return admin.Done{}, err
	}
	if dryRun {
		d.mu.Lock()
		with := d.cfg.with
		d.mu.Unlock()
		if with == nil {
			return admin.Done{}, &admin.Error{Kind: admin.Conflict, Msg: "nothing can be tried: this daemon does not read its configuration from files"}
		}
		if _, err := with(next); err != nil {
			return admin.Done{}, &admin.Error{Kind: admin.Conflict, Msg: err.Error()}
		}
		return admin.Done{Changes: []string{what}, DryRun: true}, nil
	}
	if err := next.write(d.stateDir); err != nil {
		return admin.Done{}, fmt.Errorf("write %s: %w", managedPath(d.stateDir), err)
	}
	cfg, err := d.load()
	if err == nil {
		_, err = d.reload(cfg)
	}
	if err != nil {
		if werr := now.write(d.stateDir); werr != nil {
			return admin.Done{}, errors.Join(err, fmt.Errorf("%s could not be put back: %w", managedPath(d.stateDir), werr))
		}
	}
	if err != nil {
		return admin.Done{}, &admin.Error{Kind: admin.Conflict, Msg: err.Error()}
	}
	return admin.Done{Changes: []string{what}}, nil
}

func (d *Daemon) volumeConfig(name string) (VolumeConfig, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v := d.volumes[name]
	if v == nil {
		return VolumeConfig{}, &admin.Error{Kind: admin.NotFound, Msg: "there is no volume " + name}
	}
	return v.cfg, nil
}

// CreateVolume implements admin.Backend.
func (d *Daemon) CreateVolume(ctx context.Context, s admin.VolumeSpec) (admin.Done, error) {
	if s.Name == "" {
		return admin.Done{}, &admin.Error{Kind: admin.Invalid, Msg: "a volume needs a name"}
	}
	if _, err := d.volumeConfig(s.Name); err == nil {
		return admin.Done{}, &admin.Error{Kind: admin.Conflict, Msg: "there is a volume " + s.Name + " already"}
	}
	v := VolumeConfig{Name: s.Name, Engine: "file", Path: s.Path, Size: Size(s.Size), Block: s.Block, ReadOnly: s.ReadOnly}
	if v.Path == "" {
		v.Path = defaultPath(d.stateDir, s.Name)
	} else if !filepath.IsAbs(v.Path) {
		return admin.Done{}, &admin.Error{Kind: admin.Invalid, Msg: "the path must be absolute"}
	}
	what := fmt.Sprintf("volume %s of %v created in %s", s.Name, v.Size, v.Path)
	if s.Clone != "" {
		from, err := d.volumeConfig(s.Clone)
		if err != nil {
			return admin.Done{}, err
		}
		if v.Size, v.Block, v.Physical = max(v.Size, from.Size), from.Block, from.Physical; !s.DryRun {
			how, err := d.cloneFile(ctx, s.Clone, v.Path)
			if err != nil {
				return admin.Done{}, err
			}
			what = fmt.Sprintf("volume %s created from %s in %s (%s)", s.Name, s.Clone, v.Path, how)
		}
	} else if s.Size <= 0 {
		return admin.Done{}, &admin.Error{Kind: admin.Invalid, Msg: "a volume needs a size"}
	}
	done, err := d.change(s.DryRun, what, func(m *managed) error {
		m.Volumes = append(m.Volumes, v)
		return nil
	})
	if err != nil && s.Clone != "" && !s.DryRun {
		err = errors.Join(err, os.Remove(v.Path)) // the copy that was made a moment ago
	}
	return done, err
}

// ResizeVolume implements admin.Backend.
func (d *Daemon) ResizeVolume(_ context.Context, name string, s admin.ResizeSpec) (admin.Done, error) {
	v, err := d.volumeConfig(name)
	if err != nil {
		return admin.Done{}, err
	}
	switch {
	case v.Engine != "file":
		return admin.Done{}, &admin.Error{Kind: admin.Conflict, Msg: "only volumes of the file engine can be resized"}
	case s.Size <= int64(v.Size):
		return admin.Done{}, &admin.Error{Kind: admin.Conflict, Msg: fmt.Sprintf("volume %s has %v; it can only grow while it is served", name, v.Size)}
	}
	return d.change(s.DryRun, fmt.Sprintf("volume %s grown from %v to %v", name, v.Size, Size(s.Size)), func(m *managed) error {
		for i := range m.Volumes {
			if m.Volumes[i].Name == name {
				m.Volumes[i].Size = Size(s.Size)
				return nil
			}
		}
		m.Sizes[name] = Size(s.Size)
		return nil
	})
}

// DeleteVolume implements admin.Backend.
func (d *Daemon) DeleteVolume(_ context.Context, name string, data, dryRun bool) (admin.Done, error) {
	v, err := d.volumeConfig(name)
	if err != nil {
		return admin.Done{}, err
	}
	d.mu.Lock()
	mine := d.managedVolume(name)
	d.mu.Unlock()
	if !mine {
		return admin.Done{}, &admin.Error{Kind: admin.Conflict, Msg: "volume " + name + " is defined in " + d.source + "; remove it there and reload"}
	}
	for _, t := range d.Targets() {
		for _, l := range t.LUNs {
			if l.Volume == name {
				return admin.Done{}, &admin.Error{Kind: admin.Conflict, Msg: fmt.Sprintf("volume %s is LUN %d of %s; unmap it first", name, l.LUN, t.Name)}
			}
		}
	}
	done, err := d.change(dryRun, "volume "+name+" forgotten", func(m *managed) error {
		// A map that is left belongs to a target that is not there.
		m.Maps = slices.DeleteFunc(m.Maps, func(p managedMap) bool { return p.Volume == name })
		m.Volumes = slices.DeleteFunc(m.Volumes, func(v VolumeConfig) bool { return v.Name == name })
		return nil
	})
	if err != nil || !data {
		return done, err
	}
	done.Changes = append(done.Changes, v.Path+" deleted")
	if !dryRun {
		if err := os.Remove(v.Path); err != nil {
			return done, fmt.Errorf("the volume is forgotten, but its file could not be deleted: %w", err)
		}
	}
	return done, nil
}

// CreateTarget implements admin.Backend.
func (d *Daemon) CreateTarget(_ context.Context, s admin.TargetSpec) (admin.Done, error) {
	for _, t := range d.Targets() {
		if t.Name == s.Name {
			return admin.Done{}, &admin.Error{Kind: admin.Conflict, Msg: "there is a target " + s.Name + " already"}
		}
	}
	t := TargetConfig{Name: s.Name, Alias: s.Alias}
	for _, i := range s.Initiators {
		t.Initiators = append(t.Initiators, InitiatorConfig{Name: i})
	}
	return d.change(s.DryRun, "target "+s.Name+" created", func(m *managed) error {
		m.unmap(s.Name) // of an earlier target of this name
		m.Targets = append(m.Targets, t)
		return nil
	})
}

// forget removes what the state directory has of a target, so that a later one of its name begins with nothing: the states of its
// port groups, and the secrets that this interface was given.
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
func (d *Daemon) DeleteTarget(_ context.Context, name string, dryRun bool) (admin.Done, error) {
	if err := d.ours(name); err != nil {
		return admin.Done{}, err
	}
	return d.change(dryRun, "target "+name+" removed", func(m *managed) error {
		m.Targets = slices.DeleteFunc(m.Targets, func(t TargetConfig) bool { return t.Name == name })
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
func (d *Daemon) MapLUN(_ context.Context, target string, l admin.LUN, dryRun bool) (admin.Done, error) {
	i := slices.IndexFunc(d.Targets(), func(t admin.Target) bool { return t.Name == target })
	if i < 0 {
		return admin.Done{}, &admin.Error{Kind: admin.NotFound, Msg: "there is no target " + target}
	}
	if slices.ContainsFunc(d.Targets()[i].LUNs, func(o admin.LUN) bool { return o.LUN == l.LUN }) {
		return admin.Done{}, &admin.Error{Kind: admin.Conflict, Msg: fmt.Sprintf("LUN %d of %s is taken", l.LUN, target)}
	}
	return d.change(dryRun, fmt.Sprintf("volume %s is LUN %d of %s", l.Volume, l.LUN, target), func(m *managed) error {
		m.Maps = append(m.Maps, managedMap{Target: target, LUN: l.LUN, Volume: l.Volume})
		return nil
	})
}

// UnmapLUN implements admin.Backend.
func (d *Daemon) UnmapLUN(_ context.Context, target string, lun uint16, dryRun bool) (admin.Done, error) {
	return d.change(dryRun, fmt.Sprintf("LUN %d of %s unmapped", lun, target), func(m *managed) error {
		n := len(m.Maps)
		m.Maps = slices.DeleteFunc(m.Maps, func(p managedMap) bool { return p.Target == target && p.LUN == lun })
		if len(m.Maps) == n {
			return &admin.Error{Kind: admin.NotFound, Msg: fmt.Sprintf("LUN %d of %s was not mapped by this interface; what %s maps is changed there", lun, target, d.source)}
		}
		return nil
	})
}
