package daemon

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/rbd"
	"github.com/sluice-storage/sluice/target/admin"
)

// place is what a volume's bytes are called, for people and for the records of the state directory: a path, or an image.
func (v VolumeConfig) place() string {
	if v.RBD == nil {
		return v.Path
	}
	return v.RBD.String()
}

// String is the image as rbd(8) names it: pool/namespace/image@snapshot.
func (r *RBDConfig) String() string {
	s := r.Pool + "/"
	if r.Namespace != "" {
		s += r.Namespace + "/"
	}
	s += r.Image
	if r.Snapshot != "" {
		s += "@" + r.Snapshot
	}
	return s
}

func (r *RBDConfig) options() rbd.Options {
	return rbd.Options{
		Cluster: rbd.Cluster{Conf: r.cluster.Conf, User: r.cluster.User, Keyring: r.cluster.Keyring, Timeout: time.Duration(r.cluster.Timeout)},
		Pool:    r.Pool, Namespace: r.Namespace, Image: r.Image, Snapshot: r.Snapshot,
	}
}

// openRBD opens an image that is there. One that is smaller than configured grows, as a file does.
func openRBD(cfg VolumeConfig, _ string) (blockdev.Device, error) {
	if cfg.RBD == nil {
		return nil, errors.New("it has no image")
	}
	o := cfg.RBD.options()
	o.ReadOnly, o.Logical, o.Physical = cfg.ReadOnly, cfg.Block, cfg.Physical
	d, err := rbd.Open(o)
	if err != nil {
		return nil, err
	}
	if size := int64(cfg.Size); size > d.Geometry().Size && !cfg.ReadOnly {
		if err := d.Grow(size); err != nil {
			return nil, errors.Join(err, d.Close())
		}
	}
	return d, nil
}

// parseImage reads "pool/image" or "pool/namespace/image".
func parseImage(s string) (*RBDConfig, error) {
	part := strings.Split(s, "/")
	if len(part) < 2 || len(part) > 3 || slices.Contains(part, "") || strings.ContainsAny(s, "@\x00") {
		return nil, &admin.Error{Kind: admin.Invalid, Msg: fmt.Sprintf("%q is no image: POOL/IMAGE or POOL/NAMESPACE/IMAGE", s)}
	}
	r := &RBDConfig{Pool: part[0], Image: part[len(part)-1]}
	if len(part) == 3 {
		r.Namespace = part[1]
	}
	return r, nil
}

// createImageLocked makes a volume on an image: on one that is there, a new one, or a snapshot or a clone of from's, made by RBD. What was
// made goes again when the volume cannot be.
func (d *Daemon) createImageLocked(s admin.VolumeSpec, from *volume) (admin.Done, error) {
	conflict := func(format string, a ...any) (admin.Done, error) {
		return admin.Done{}, &admin.Error{Kind: admin.Conflict, Msg: fmt.Sprintf(format, a...)}
	}
	v := VolumeConfig{Name: s.Name, Engine: "rbd", Block: s.Block, ReadOnly: s.ReadOnly}
	var err error
	if s.RBD != "" {
		if v.RBD, err = parseImage(s.RBD); err != nil {
			return admin.Done{}, err
		}
	}
	var makeIt func() error
	how := "on an image that is there"
	switch {
	case s.Path != "":
		return admin.Done{}, &admin.Error{Kind: admin.Invalid, Msg: "a volume on an image has no path"}
	case s.Clone != "" && (from == nil || from.image == nil):
		return conflict("volume %s is not on an image, or is not served; only images share their blocks with images", s.Clone)
	case s.Clone != "":
		if why := from.lu.Unerased(); why != "" {
			return conflict("volume %s cannot be cloned now: %s", s.Clone, why)
		}
		if from.cfg.RBD.Snapshot != "" {
			return conflict("volume %s is a snapshot; clone the volume that it is of", s.Clone)
		}
		to := *from.cfg.RBD
		switch {
		case s.ReadOnly && v.RBD == nil:
			to.Snapshot = s.Name
			makeIt, how = func() error { return from.image.Snapshot(to.Snapshot) }, "a snapshot of "+s.Clone
		case s.ReadOnly:
			return admin.Done{}, &admin.Error{Kind: admin.Invalid, Msg: "a snapshot is in its image; leave --rbd out"}
		default:
			if to.Image = s.Name; v.RBD != nil {
				if v.RBD.Pool != to.Pool || v.RBD.Namespace != to.Namespace {
					return conflict("a clone of volume %s is in its pool, %s", s.Clone, to.Pool)
				}
				to.Image = v.RBD.Image
			}
			makeIt, how = func() error { return from.image.Clone(to.Image) }, "a clone of "+s.Clone
		}
		v.RBD = &to
		v.promiseAs(&from.cfg)
		if s.Size > 0 && s.Size < from.dev.Geometry().Size {
			return conflict("volume %s has %v; its clone has as much at least", s.Clone, Size(from.dev.Geometry().Size))
		}
		v.Size = Size(s.Size)
	case s.Size > 0:
		v.RBD.cluster = d.cfg.Ceph
		v.Size = Size(s.Size)
		makeIt, how = func() error { return rbd.Create(v.RBD.options(), s.Size) }, "a new image"
	}
	what := fmt.Sprintf("volume %s created on %s (%s)", s.Name, v.RBD, how)
	add := func(m *managed) error {
		m.Volumes = append(m.Volumes, v)
		return nil
	}
	// What is wrong with names and sizes is said before anything is made.
	done, err := d.changeLocked(true, what, add)
	if err != nil || s.DryRun {
		return done, err
	}
	if makeIt != nil {
		if err := makeIt(); err != nil {
			return admin.Done{}, asRefusal(err)
		}
	}
	if done, err = d.changeLocked(false, what, add); err != nil && makeIt != nil {
		v.RBD.cluster = d.cfg.Ceph
		err = errors.Join(err, rbd.Remove(v.RBD.options(), ""))
	}
	return done, err
}

// deleteImageLocked forgets a volume and removes its image, or its snapshot of one. The image of a daemon that is killed between the two stays,
// as one of no volume.
func (d *Daemon) deleteImageLocked(v *volume, dryRun bool) (admin.Done, error) {
	name, o := v.cfg.Name, v.cfg.RBD.options()
	if v.why != nil {
		return admin.Done{}, &admin.Error{Kind: admin.Conflict, Msg: "volume " + name + " is not served (" + v.why.Error() + "), so its image stays; leave --data out"}
	}
	gone := v.cfg.RBD.String() + " removed"
	done, err := d.changeLocked(dryRun, "volume "+name+" forgotten", func(m *managed) error {
		m.Maps = slices.DeleteFunc(m.Maps, func(p managedMap) bool { return p.Volume == name })
		m.Volumes = without(m.Volumes, name)
		return nil
	})
	if err != nil || dryRun {
		done.Changes = append(done.Changes, gone)
		return done, err
	}
	err = rbd.Remove(o, v.image.ID())
	v.lu.Forget(err != nil)
	d.forgetIdentity(name, err != nil)
	if err != nil {
		return done, &admin.Error{Kind: admin.Conflict, Msg: "the volume is forgotten, but its image stays: " + err.Error()}
	}
	done.Changes = append(done.Changes, gone)
	return done, nil
}
