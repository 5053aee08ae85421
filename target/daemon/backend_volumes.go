package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/sluice-storage/sluice/target/admin"
	"github.com/sluice-storage/sluice/target/scsi"
)

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
	if from := d.volumes[s.Clone]; s.RBD != "" || from != nil && from.cfg.engine().image {
		return d.createImageLocked(s, from)
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
	err = d.serveNewFile(s.Name, cfg.Path)
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
		return admin.Done{}, &admin.Error{Kind: admin.Conflict, Msg: "only volumes on a file or an image can be resized"}
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
		m.SizedAt[name] = v.cfg.place()
		return nil
	})
}

// DeleteVolume implements admin.Backend.
func (d *Daemon) DeleteVolume(ctx context.Context, name string, data, dryRun bool) (admin.Done, error) {
	if err := d.lockChange(ctx); err != nil {
		return admin.Done{}, err
	}
	defer d.changeMu.Unlock()
	v, err := d.deletableLocked(name)
	if err != nil {
		return admin.Done{}, err
	}
	var files []string
	if data && v.cfg.engine().image {
		return d.deleteImageLocked(v, dryRun)
	}
	if data {
		if files, err = v.files(); err != nil {
			return admin.Done{}, err
		}
	}
	done, err := d.changeLocked(dryRun, "volume "+name+" forgotten", func(m *managed) error {
		// A map that is left belongs to a target that is not there.
		m.Maps = slices.DeleteFunc(m.Maps, func(p managedMap) bool { return p.Volume == name })
		m.Volumes = without(m.Volumes, name)
		return nil
	})
	switch {
	case err != nil:
		return done, err
	case dryRun:
		for _, f := range files {
			done.Changes = append(done.Changes, f+" deleted")
		}
		return done, nil
	}
	deleted, err := d.deleteFiles(name, files)
	for _, f := range deleted {
		done.Changes = append(done.Changes, f+" deleted")
	}
	if err != nil && len(deleted) == 0 {
		data = false // its file is there, and may be configured again
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

// deletableLocked is the volume of that name, if commands may delete it.
func (d *Daemon) deletableLocked(name string) (*volume, error) {
	v := d.volumes[name]
	if v == nil {
		return nil, &admin.Error{Kind: admin.NotFound, Msg: "there is no volume " + name}
	}
	if !d.cfg.managedVolume(name) {
		return nil, &admin.Error{Kind: admin.Conflict, Msg: "volume " + name + " is defined in " + d.source + "; remove it there and reload"}
	}
	for _, t := range d.cfg.Targets {
		for _, l := range t.LUNs {
			if l.Volume == name {
				return nil, &admin.Error{Kind: admin.Conflict, Msg: fmt.Sprintf("volume %s is LUN %d of %s; unmap it first", name, l.LUN, t.Name)}
			}
		}
	}
	return v, nil
}

// deleteFiles deletes the files of a volume that is forgotten, as far as that goes. A daemon that is killed meanwhile goes on with its
// next start.
func (d *Daemon) deleteFiles(volume string, files []string) (deleted []string, err error) {
	if len(files) == 0 {
		return nil, nil
	}
	err = d.noteDeletion(volume, files)
	for _, f := range files {
		if err == nil {
			err = removeFile(f)
		}
		if err != nil {
			return deleted, &admin.Error{Kind: admin.Conflict, Msg: "the volume is forgotten, but its file could not be deleted: " + err.Error()}
		}
		deleted = append(deleted, f)
	}
	return deleted, nil
}
