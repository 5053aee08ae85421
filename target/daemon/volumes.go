package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/delay"
	"github.com/sluice-storage/sluice/blockdev/file"
	"github.com/sluice-storage/sluice/blockdev/limit"
	memdev "github.com/sluice-storage/sluice/blockdev/mem"
	"github.com/sluice-storage/sluice/blockdev/null"
	"github.com/sluice-storage/sluice/target/admin"
	"github.com/sluice-storage/sluice/target/scsi"
)

// volume is one open volume and the logical unit that serves it.
type volume struct {
	cfg VolumeConfig
	dev blockdev.Device
	lu  *scsi.LogicalUnit
	// info is of the file that was opened, nil without one.
	info os.FileInfo

	spaceMu sync.Mutex // while the file system is asked for its room, which may take long
	closed  bool       // guarded by spaceMu
}

// openVolume opens the engine that cfg names and makes a logical unit of it.
func (d *Daemon) openVolume(cfg VolumeConfig) (*volume, error) {
	dev, err := openEngine(cfg, d.stateDir)
	if err != nil {
		return nil, fmt.Errorf("volume %s: %w", cfg.Name, err)
	}
	switch has := Size(dev.Geometry().Size); {
	case has < cfg.Size:
		return nil, errors.Join(fmt.Errorf("volume %s: %s has %v, less than the %v that are configured, and cannot grow by itself", cfg.Name, cfg.Path, has, cfg.Size), dev.Close())
	case has > cfg.Size && cfg.Size > 0:
		d.log.Warn("a volume is larger than configured; it keeps its size", zap.String("volume", cfg.Name), zap.Stringer("size", has), zap.Stringer("configured", cfg.Size))
	}
	if dev, err = limited(dev, cfg.Limits); err != nil {
		return nil, fmt.Errorf("volume %s: %w", cfg.Name, err)
	}
	lu, err := d.newUnit(cfg, dev)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("volume %s: %w", cfg.Name, err), dev.Close())
	}
	vol := &volume{cfg: cfg, dev: dev, lu: lu}
	if cfg.Engine == "file" {
		if vol.info, err = os.Stat(cfg.Path); err != nil {
			return nil, errors.Join(fmt.Errorf("volume %s: %w", cfg.Name, err), vol.close())
		}
	}
	return vol, nil
}

// files are what "volume delete --data" deletes: the volume's own file and what this daemon keeps beside it. What has come to
// lie at the path since is another's, and a block device is not ours to remove.
func (v *volume) files() ([]string, error) {
	conflict := func(format string, a ...any) error {
		return &admin.Error{Kind: admin.Conflict, Msg: fmt.Sprintf(format, a...)}
	}
	if v.info == nil {
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
	return l, nil
}

func (d *Daemon) newUnit(cfg VolumeConfig, dev blockdev.Device) (*scsi.LogicalUnit, error) {
	return scsi.NewLogicalUnit(scsi.LUOptions{
		Device: dev, Name: cfg.Name, Serial: cfg.Serial, Vendor: "SLUICE", Product: "VOLUME",
		ReadOnly: cfg.ReadOnly, Removable: cfg.Removable, Volatile: cfg.Engine != "file",
		AllowFormat: cfg.Erase, AllowSanitize: cfg.Erase, ThinThreshold: int64(cfg.LowSpace), StateDir: d.scsiState(), Log: d.log,
	})
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

func openEngine(cfg VolumeConfig, stateDir string) (blockdev.Device, error) {
	switch cfg.Engine {
	case "file":
		// A file that is larger than its configuration says keeps its size: nothing is ever cut, and a growth that was
		// interrupted before it was written down is no reason not to serve.
		size := int64(cfg.Size)
		if fi, err := os.Stat(cfg.Path); err == nil && (fi.Size() >= size || !fi.Mode().IsRegular()) {
			size = 0
		}
		return file.Open(cfg.Path, file.Options{
			Size: size, ReadOnly: cfg.ReadOnly, Direct: cfg.Direct, Logical: cfg.Block, Physical: cfg.Physical,
			Atomic: cfg.Atomic, Log: redoLog(cfg, stateDir), Thick: cfg.Thick,
			Loss: filepath.Join(stateDir, cfg.Name+".loss"),
		})
	case "mem":
		return memdev.Open(memdev.Options{Size: int64(cfg.Size), Logical: cfg.Block, Physical: cfg.Physical, ReadOnly: cfg.ReadOnly})
	case "null":
		return null.Open(null.Options{Size: int64(cfg.Size), Logical: cfg.Block})
	case "delay":
		below, err := memdev.Open(memdev.Options{Size: int64(cfg.Size), Logical: cfg.Block, Physical: cfg.Physical})
		if err != nil {
			return nil, err
		}
		return delay.Open(below, delay.Options{For: func(*blockdev.Request) time.Duration { return time.Duration(cfg.Delay) }})
	}
	return nil, fmt.Errorf("engine %q is not built in", cfg.Engine)
}

// redoLog is where the log of a volume's atomic writes lies: beside its file, so that both move together; for a block
// device in the state directory.
func redoLog(cfg VolumeConfig, stateDir string) string {
	if fi, err := os.Stat(cfg.Path); err == nil && fi.Mode()&os.ModeDevice != 0 {
		return filepath.Join(stateDir, cfg.Name+".redo")
	}
	return cfg.Path + ".redo"
}

// follows says what becomes of an open volume that is to have the configuration next: the size that it grows to, or 0 where
// nothing of it changes. Its size is the device's, whatever was configured, and never becomes less.
func (v *volume) follows(next VolumeConfig) (int64, error) {
	if same(v.cfg, next) {
		return 0, nil
	}
	sized := v.cfg
	sized.Size = next.Size
	if !same(sized, next) || v.cfg.Engine != "file" {
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
