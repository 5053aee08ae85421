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
		a := admin.Volume{Name: name, Engine: v.cfg.Engine, Path: v.cfg.Path, Size: g.Size, Block: g.Logical, ReadOnly: v.cfg.ReadOnly, Managed: d.cfg.managedVolume(name)}
		if e, ok := v.dev.(blockdev.Explainer); ok {
			a.How = e.Path()
		}
		if a.Problem = v.lu.Unerased(); v.why != nil {
			a.Problem = v.why.Error()
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

// managedVolume reports whether commands may change a volume: what the operator's file has taken over is the operator's.
func (c *Config) managedVolume(name string) bool {
	return c.managed != nil && !c.taken["volume "+name] && slices.ContainsFunc(c.managed.Volumes, func(v VolumeConfig) bool { return v.Name == name })
}

func (c *Config) managedTarget(name string) bool {
	return c.managed != nil && !c.taken["target "+name] && slices.ContainsFunc(c.managed.Targets, func(t TargetConfig) bool { return t.Name == name })
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
		a := admin.Target{Name: t.Name, Alias: t.Alias, LUNs: []admin.LUN{}, Initiators: []string{}, CHAP: t.Auth != nil, Problem: d.unserved[t.Name], Sessions: sessions[t.Name], Managed: d.cfg.managedTarget(t.Name)}
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
func (d *Daemon) ReloadConfig(ctx context.Context, dryRun bool) (admin.Done, error) {
	var changes []Change
	var but error
	if dryRun {
		next, err := d.load()
		if err != nil {
			return admin.Done{}, &admin.Error{Kind: admin.Invalid, Msg: err.Error()}
		}
		d.mu.Lock()
		changes, err = d.cfg.Diff(next), d.wouldRefuse(next)
		d.mu.Unlock()
		if err != nil {
			return admin.Done{}, wrong(fmt.Errorf("configuration would not be changed: %w", err))
		}
	} else {
		var err error
		if changes, but, err = d.reloadFile(ctx); err != nil {
			kind := admin.Conflict
			if ce := (*ConfigError)(nil); errors.As(err, &ce) {
				kind = admin.Invalid
			}
			return admin.Done{}, &admin.Error{Kind: kind, Msg: err.Error()}
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
	done.Changes = append(done.Changes, doneBut(but)...)
	return done, nil
}

// CreateVolume implements admin.Backend. The volume's file is made first, and goes again when the volume cannot be.
func (d *Daemon) CreateVolume(ctx context.Context, s admin.VolumeSpec) (admin.Done, error) {
	if err := d.lockChange(ctx); err != nil {
		return admin.Done{}, err
	}
	defer d.changeMu.Unlock()
	if s.Name == "" {
		return admin.Done{}, &admin.Error{Kind: admin.Invalid, Msg: "a volume needs a name"}
	}
	if v := d.volumes[s.Name]; v != nil {
		return d.makeMissing(v, s)
	}
	v := VolumeConfig{Name: s.Name, Engine: "file", Path: s.Path, Size: Size(s.Size), Block: s.Block, ReadOnly: s.ReadOnly}
	if v.Path == "" {
		v.Path = defaultPath(d.stateDir, s.Name)
	} else if !filepath.IsAbs(v.Path) {
		return admin.Done{}, &admin.Error{Kind: admin.Invalid, Msg: "the path must be absolute"}
	}
	if s.Clone != "" {
		from := d.volumes[s.Clone]
		if from == nil {
			return admin.Done{}, &admin.Error{Kind: admin.NotFound, Msg: "there is no volume " + s.Clone}
		}
		v.Size = max(v.Size, Size(from.dev.Geometry().Size))
		v.promiseAs(&from.cfg)
	} else if s.Size <= 0 {
		return admin.Done{}, &admin.Error{Kind: admin.Invalid, Msg: fmt.Sprintf("a size is missing: sluice volume create %s 10GiB", s.Name)}
	}
	what := fmt.Sprintf("volume %s of %v created in %s", s.Name, v.Size, v.Path)
	add := func(m *managed) error {
		m.Volumes = append(m.Volumes, v)
		return nil
	}
	// What is wrong with names and sizes is said before a file is made.
	done, err := d.changeLocked(true, what, add)
	if err == nil {
		err = asRefusal(vacant(v.Path))
	}
	if err != nil || s.DryRun {
		return done, err
	}
	var made *madeFile
	if s.Clone != "" {
		var how string
		made, how, err = d.cloneFile(ctx, d.volumes[s.Clone], v)
		what = fmt.Sprintf("volume %s created from %s in %s (%s)", s.Name, s.Clone, v.Path, how)
	} else {
		made, err = d.makeVolume(v, fillEmpty(int64(v.Size), v.Thick))
	}
	if err != nil {
		return admin.Done{}, asRefusal(err)
	}
	if done, err = d.changeLocked(false, what, add); err != nil {
		return done, errors.Join(err, made.remove())
	}
	d.replaced(made.ends)
	return done, nil
}

// makeMissing makes the file of a volume that is configured and has none.
func (d *Daemon) makeMissing(v *volume, s admin.VolumeSpec) (admin.Done, error) {
	conflict := func(format string, a ...any) (admin.Done, error) {
		return admin.Done{}, &admin.Error{Kind: admin.Conflict, Msg: fmt.Sprintf(format, a...)}
	}
	cfg, size := v.cfg, Size(s.Size)
	if size == 0 {
		size = cfg.Size
	}
	switch {
	case v.why == nil:
		return conflict("there is a volume %s already", s.Name)
	case !errors.Is(v.why, errMissing):
		return conflict("there is a volume %s, whose file is there: %v", s.Name, v.why)
	case s.Clone != "" || s.ReadOnly:
		return conflict("volume %s is configured with a file of its own, %s; a clone needs another name", s.Name, cfg.Path)
	case s.Path != "" && s.Path != cfg.Path, s.Block != 0 && s.Block != cfg.Block:
		return conflict("volume %s is configured with path %s and blocks of %d; leave --path and --block out", s.Name, cfg.Path, cfg.Block)
	case cfg.Size != 0 && size != cfg.Size:
		return conflict("volume %s is configured with a size of %v; leave the size out", s.Name, cfg.Size)
	case size <= 0 || int64(size)%int64(cfg.Block) != 0:
		return admin.Done{}, &admin.Error{Kind: admin.Invalid, Msg: fmt.Sprintf("volume %s needs a size in blocks of %d bytes: sluice volume create %[1]s 10GiB", s.Name, cfg.Block)}
	}
	done := admin.Done{Changes: []string{fmt.Sprintf("file %s of %v made for volume %s", cfg.Path, size, s.Name)}, DryRun: s.DryRun}
	if err := vacant(cfg.Path); err != nil || s.DryRun {
		return done, err
	}
	made, err := d.makeVolume(cfg, fillEmpty(int64(size), cfg.Thick))
	if err != nil {
		return admin.Done{}, asRefusal(err)
	}
	err = d.servesAnew(s.Name, cfg.Path)
	if now := d.volumes[s.Name]; err == nil && now.why != nil {
		err = now.why
	}
	if err != nil {
		return admin.Done{}, &admin.Error{Kind: admin.Conflict, Msg: errors.Join(err, made.remove()).Error()}
	}
	d.replaced(made.ends)
	return done, nil
}

// asRefusal makes an error of the system one that the operator is told; the interface keeps others to the log.
func asRefusal(err error) error {
	if err == nil {
		return nil
	}
	if e := (*admin.Error)(nil); errors.As(err, &e) {
		return err
	}
	return &admin.Error{Kind: admin.Conflict, Msg: err.Error()}
}

// ResizeVolume implements admin.Backend.
func (d *Daemon) ResizeVolume(ctx context.Context, name string, s admin.ResizeSpec) (admin.Done, error) {
	if err := d.lockChange(ctx); err != nil {
		return admin.Done{}, err
	}
	defer d.changeMu.Unlock()
	v := d.volumes[name]
	if v == nil {
		return admin.Done{}, &admin.Error{Kind: admin.NotFound, Msg: "there is no volume " + name}
	}
	has := Size(v.dev.Geometry().Size)
	switch {
	case !v.cfg.engine().grows:
		return admin.Done{}, &admin.Error{Kind: admin.Conflict, Msg: "only volumes of the file engine can be resized"}
	case s.Size <= int64(has):
		return admin.Done{}, &admin.Error{Kind: admin.Conflict, Msg: fmt.Sprintf("volume %s has %v; it can only grow while it is served", name, has)}
	}
	return d.changeLocked(s.DryRun, fmt.Sprintf("volume %s grown from %v to %v", name, has, Size(s.Size)), func(m *managed) error {
		for i := range m.Volumes {
			if m.Volumes[i].Name == name && d.cfg.managedVolume(name) {
				m.Volumes[i].Size = Size(s.Size)
				return nil
			}
		}
		m.Sizes[name] = Size(s.Size)
		if m.SizedAt == nil {
			m.SizedAt = map[string]string{}
		}
		m.SizedAt[name] = v.cfg.Path
		return nil
	})
}

// DeleteVolume implements admin.Backend.
func (d *Daemon) DeleteVolume(ctx context.Context, name string, data, dryRun bool) (admin.Done, error) {
	if err := d.lockChange(ctx); err != nil {
		return admin.Done{}, err
	}
	defer d.changeMu.Unlock()
	v := d.volumes[name]
	if v == nil {
		return admin.Done{}, &admin.Error{Kind: admin.NotFound, Msg: "there is no volume " + name}
	}
	if !d.cfg.managedVolume(name) {
		return admin.Done{}, &admin.Error{Kind: admin.Conflict, Msg: "volume " + name + " is defined in " + d.source + "; remove it there and reload"}
	}
	for _, t := range d.cfg.Targets {
		for _, l := range t.LUNs {
			if l.Volume == name {
				return admin.Done{}, &admin.Error{Kind: admin.Conflict, Msg: fmt.Sprintf("volume %s is LUN %d of %s; unmap it first", name, l.LUN, t.Name)}
			}
		}
	}
	var files []string
	if data {
		var err error
		if files, err = v.files(); err != nil {
			return admin.Done{}, err
		}
	}
	done, err := d.changeLocked(dryRun, "volume "+name+" forgotten", func(m *managed) error {
		// A map that is left belongs to a target that is not there.
		m.Maps = slices.DeleteFunc(m.Maps, func(p managedMap) bool { return p.Volume == name })
		m.Volumes = slices.DeleteFunc(m.Volumes, func(v VolumeConfig) bool { return v.Name == name })
		return nil
	})
	if err != nil {
		return done, err
	}
	if dryRun {
		for _, f := range files {
			done.Changes = append(done.Changes, f+" deleted")
		}
		return done, nil
	}
	if data {
		err = d.noteDeletion(name, files)
	}
	for k, f := range files {
		if err == nil {
			err = removeFile(f)
		}
		if err != nil {
			err = &admin.Error{Kind: admin.Conflict, Msg: "the volume is forgotten, but its file could not be deleted: " + err.Error()}
			data = k > 0 // else it is there, and may be configured again
			break
		}
		done.Changes = append(done.Changes, f+" deleted")
	}
	v.lu.Forget(!data)
	if data || v.why == nil {
		d.forgetIdentity(name, !data)
	} else if v.key != "" { // what belongs to a file that is away is kept for it
		d.leftBehind(name, scsi.ForgetUnit(d.scsiState(), v.key, true))
	}
	if len(files) > 0 {
		d.forgetFile(name, d.deletionPath(name))
	}
	return done, err
}

// CreateTarget implements admin.Backend.
func (d *Daemon) CreateTarget(ctx context.Context, s admin.TargetSpec) (admin.Done, error) {
	t := TargetConfig{Name: s.Name, Alias: s.Alias}
	for _, i := range s.Initiators {
		t.Initiators = append(t.Initiators, InitiatorConfig{Name: i})
	}
	return d.change(ctx, s.DryRun, "target "+s.Name+" created", func(m *managed) error {
		if slices.ContainsFunc(d.cfg.Targets, func(o TargetConfig) bool { return o.Name == s.Name }) {
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
func (d *Daemon) MapLUN(ctx context.Context, target string, l admin.LUN, dryRun bool) (admin.Done, error) {
	return d.change(ctx, dryRun, fmt.Sprintf("volume %s is LUN %d of %s", l.Volume, l.LUN, target), func(m *managed) error {
		i := slices.IndexFunc(d.cfg.Targets, func(t TargetConfig) bool { return t.Name == target })
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
