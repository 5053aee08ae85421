package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/limit"
	"github.com/sluice-storage/sluice/blockdev/rbd"
	"github.com/sluice-storage/sluice/target/admin"
	"github.com/sluice-storage/sluice/target/scsi"
)

// volume is one configured volume and the logical unit that serves it.
type volume struct {
	cfg   VolumeConfig
	dev   blockdev.Device
	lu    *scsi.LogicalUnit
	image *rbd.Device // of the rbd engine, nil for others
	// info describes the file that was opened, nil without one.
	info os.FileInfo
	// key is identity.Key, empty where the identity is not known and for engines that begin empty at each start.
	key string
	// why the volume has no medium, nil where it has one: its unit is NOT READY then.
	why error

	spaceMu sync.Mutex // while the file system is asked for its room, which may take long
	closed  bool       // guarded by spaceMu
}

// errMissing says that a volume's file is not there. No file is made in its place: its file system may not be mounted.
var errMissing = errors.New("is missing")

// startVolume opens a volume at the start. One that cannot be opened is there without a medium, so that the others are served.
func (d *Daemon) startVolume(cfg VolumeConfig) (*volume, error) {
	v, err := d.openVolume(cfg, nil)
	if err != nil {
		v, err = d.absentVolume(cfg, nil, err)
	}
	if err == nil && v.why != nil {
		d.log.Error("a volume is not served; its LUNs are not ready", zap.String("volume", cfg.Name), zap.Error(v.why))
	}
	return v, err
}

// openVolume opens the engine that cfg names and makes a logical unit of it. It fails where a volume that is served, or one of more, has
// the same identity. A file that is not there leaves the unit without a medium.
func (d *Daemon) openVolume(cfg VolumeConfig, more map[string]*volume) (_ *volume, err error) {
	v := &volume{cfg: cfg}
	if cfg.engine().file {
		v.info, err = os.Stat(cfg.Path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			return d.absentVolume(cfg, more, fmt.Errorf("%s %w; mount its file system and reload, or make a new file: sluice volume create %s", cfg.Path, errMissing, cfg.Name))
		}
		if err != nil {
			return nil, fmt.Errorf("volume %s: %w", cfg.Name, err)
		}
	}
	if v.dev, err = cfg.engine().open(cfg, d.stateDir); err != nil {
		return nil, fmt.Errorf("volume %s: %w", cfg.Name, err)
	}
	defer func() {
		if err != nil && v.dev != nil {
			err = errors.Join(err, v.dev.Close())
		}
	}()
	switch has := Size(v.dev.Geometry().Size); {
	case has < cfg.Size:
		return nil, fmt.Errorf("volume %s: %s has %v, less than the %v that are configured, and cannot grow by itself", cfg.Name, cfg.place(), has, cfg.Size)
	case has > cfg.Size && cfg.Size > 0:
		d.log.Warn("a volume is larger than configured; it keeps its size", zap.String("volume", cfg.Name), zap.Stringer("size", has), zap.Stringer("configured", cfg.Size))
	}
	b := bearer{regular: v.info != nil && v.info.Mode().IsRegular(), medium: true}
	if v.info != nil && !b.regular {
		if b.device, err = blockdev.Identity(v.dev); err != nil {
			return nil, fmt.Errorf("volume %s: %w", cfg.Name, err)
		}
	}
	if v.image, _ = v.dev.(*rbd.Device); v.image != nil {
		if b.device, err = v.image.Identity(); err != nil {
			return nil, fmt.Errorf("volume %s: %w", cfg.Name, err)
		}
	}
	id, err := d.identify(cfg, b)
	if err == nil {
		err = d.checkUnique(cfg, id, more)
	}
	if err != nil {
		return nil, fmt.Errorf("volume %s: %w", cfg.Name, err)
	}
	if cfg.engine().lasting {
		v.key = id.Key
	}
	dev, err := limited(v.dev, cfg.Limits)
	if err != nil {
		v.dev = nil // closed
		return nil, fmt.Errorf("volume %s: %w", cfg.Name, err)
	}
	v.dev = dev
	if v.lu, err = d.newUnit(cfg, v.dev, id, 0); err != nil {
		return nil, fmt.Errorf("volume %s: %w", cfg.Name, err)
	}
	lu := v.lu
	blockdev.OnChange(v.dev, func() {
		if err := lu.Refresh(); err != nil {
			d.log.Warn("the medium of a volume has changed and does not say how", zap.String("volume", cfg.Name), zap.Error(err))
		}
	})
	return v, nil
}

// absentVolume makes a volume without a medium; why is the reason. Its unit has the volume's identity where that is known, and
// otherwise a random one that no other unit will have.
func (d *Daemon) absentVolume(cfg VolumeConfig, more map[string]*volume, why error) (*volume, error) {
	as := cfg
	key := ""
	id, err := d.identify(cfg, bearer{regular: cfg.engine().file})
	if err == nil && id != nil && d.checkUnique(cfg, id, more) == nil {
		key = id.Key
	} else {
		id = newIdentity()
		as.NAA, as.Serial = "", ""
	}
	asc := scsi.ASCNotReadyManual
	if errors.Is(why, errMissing) {
		asc = scsi.ASCMediumNotPresent
	}
	v := &volume{cfg: cfg, key: key, why: why, dev: absent{blockdev.Geometry{Size: int64(cfg.Size), Logical: cfg.Block, Physical: cfg.Physical}}}
	v.lu, err = d.newUnit(as, v.dev, id, asc)
	return v, err
}

// checkUnique fails where another volume has the identity already: initiators would take two disks for two paths to one.
func (d *Daemon) checkUnique(cfg VolumeConfig, id *identity, more map[string]*volume) error {
	naa, eui, serial := unitIdentity(cfg, id)
	for _, volumes := range []map[string]*volume{d.volumes, more} {
		for name, o := range volumes {
			if name == cfg.Name {
				continue
			}
			n, e := o.lu.Identity()
			if bytes.Equal(n, naa) || bytes.Equal(e, eui) || o.lu.Serial() == serial {
				return fmt.Errorf("it has the identity of volume %s: a file that was copied together with its PATH.identity becomes a disk of its own when %s is removed", name, beside(cfg.Path))
			}
		}
	}
	return nil
}

// absent is the device of a unit without a medium, which the device server never asks for data.
type absent struct{ geo blockdev.Geometry }

func (a absent) Geometry() blockdev.Geometry { return a.geo }

func (a absent) Submit(r *blockdev.Request) { r.Finish(blockdev.ErrMedium) }

func (a absent) Close() error { return nil }

func (d *Daemon) newUnit(cfg VolumeConfig, dev blockdev.Device, id *identity, notReady scsi.ASC) (*scsi.LogicalUnit, error) {
	naa, eui, serial := unitIdentity(cfg, id)
	o := scsi.LUOptions{
		Device: dev, Name: cfg.Name, Serial: serial, NAA: naa, EUI: eui, StateKey: id.Key, NotReady: notReady, Vendor: cfg.Vendor, Product: cfg.Product,
		ReadOnly: cfg.ReadOnly, Removable: cfg.Removable, Volatile: !cfg.engine().lasting,
		AllowFormat: cfg.Erase, AllowSanitize: cfg.Erase, ThinThreshold: int64(cfg.LowSpace), StateDir: d.scsiState(), Log: d.log,
	}
	if o.Vendor == "" {
		o.Vendor = "SLUICE"
	}
	if o.Product == "" {
		o.Product = "VOLUME"
	}
	return scsi.NewLogicalUnit(o)
}

// files are what "volume delete --data" deletes: the volume's file and what this daemon keeps beside it. It fails where the path leads
// to another file by now, and for a block device, which is not removed.
func (v *volume) files() ([]string, error) {
	conflict := func(format string, a ...any) error {
		return &admin.Error{Kind: admin.Conflict, Msg: fmt.Sprintf(format, a...)}
	}
	if v.info == nil || v.why != nil {
		return nil, conflict("volume %s has no file to delete; leave --data out", v.cfg.Name)
	}
	if !v.info.Mode().IsRegular() {
		return nil, conflict("volume %s is on %s, which is no file; leave --data out, and erase the device by other means", v.cfg.Name, v.cfg.Path)
	}
	path, err := filepath.EvalSymlinks(v.cfg.Path)
	if err != nil {
		return nil, conflict("the file of volume %s is gone: %v; leave --data out", v.cfg.Name, err)
	}
	if fi, err := os.Lstat(path); err != nil || !os.SameFile(fi, v.info) {
		return nil, conflict("%s is not the file any more that volume %s has open; leave --data out, and delete by hand what is to go", path, v.cfg.Name)
	}
	l := []string{path}
	if v.cfg.Atomic {
		l = append(l, v.cfg.Path+".redo")
	}
	if id, err := readIdentity(beside(v.cfg.Path)); err == nil && id != nil {
		l = append(l, beside(v.cfg.Path))
	}
	return l, nil
}

// limited puts the limits of l before dev, which it closes when they make no sense.
func limited(dev blockdev.Device, l *LimitsConfig) (blockdev.Device, error) {
	if l == nil || l.IOPS == 0 && l.Bandwidth == 0 {
		return dev, nil
	}
	d, err := limit.Open(dev, limit.Options{IOPS: l.IOPS, Bandwidth: int64(l.Bandwidth)})
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return d, nil
}

// mediaDir has what is known of media under their own names: losses, and logs of atomic writes to block devices.
func mediaDir(stateDir string) string { return filepath.Join(stateDir, "media") }

// follows returns the size that an open volume grows to when it gets the configuration next, or 0 where it does not grow. It fails where
// next cannot be had while the volume is served. The size of a volume is its device's, and never becomes less.
func (v *volume) follows(next VolumeConfig) (int64, error) {
	if same(v.cfg, next) {
		return 0, nil
	}
	if !same(v.cfg.grownTo(next), next) || !v.cfg.engine().grows {
		return 0, fmt.Errorf("volume %s: only its size can change, and only upwards, while it is served; remove it, reload, and add it again", next.Name)
	}
	switch has := Size(v.dev.Geometry().Size); {
	case next.Size < has && next.Size != 0:
		return 0, fmt.Errorf("volume %s has %v; it can only grow, and a size of %v would cut it", next.Name, has, next.Size)
	case next.Size > has:
		return int64(next.Size), nil
	}
	return 0, nil
}

// grownTo is the volume's configuration with the values of next for those keys that can change while it is served.
func (v VolumeConfig) grownTo(next VolumeConfig) VolumeConfig {
	as := keysOf(next)
	for i, k := range keysOf(&v) {
		if k.Tag.Get("reload") == canGrow {
			k.value.Set(as[i].value)
		}
	}
	return v
}
