package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/delay"
	"github.com/sluice-storage/sluice/blockdev/file"
	"github.com/sluice-storage/sluice/blockdev/limit"
	memdev "github.com/sluice-storage/sluice/blockdev/mem"
	"github.com/sluice-storage/sluice/blockdev/null"
	"github.com/sluice-storage/sluice/target/scsi"
)

// volume is one open volume and the logical unit that serves it.
type volume struct {
	cfg VolumeConfig
	dev blockdev.Device
	lu  *scsi.LogicalUnit

	spaceMu sync.Mutex // while the file system is asked for its room, which may take long
	closed  bool       // guarded by spaceMu
}

// openVolume opens the engine that cfg names and makes a logical unit of it.
func (d *Daemon) openVolume(cfg VolumeConfig) (*volume, error) {
	dev, err := openEngine(cfg, d.stateDir)
	if err != nil {
		return nil, fmt.Errorf("volume %s: %w", cfg.Name, err)
	}
	if dev, err = limited(dev, cfg.Limits); err != nil {
		return nil, fmt.Errorf("volume %s: %w", cfg.Name, err)
	}
	lu, err := d.newUnit(cfg, dev)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("volume %s: %w", cfg.Name, err), dev.Close())
	}
	return &volume{cfg: cfg, dev: dev, lu: lu}, nil
}

func (d *Daemon) newUnit(cfg VolumeConfig, dev blockdev.Device) (*scsi.LogicalUnit, error) {
	state := filepath.Join(d.stateDir, "scsi")
	return scsi.NewLogicalUnit(scsi.LUOptions{
		Device: dev, Name: cfg.Name, Serial: cfg.Serial, Vendor: "SLUICE", Product: "VOLUME",
		ReadOnly: cfg.ReadOnly, Removable: cfg.Removable,
		AllowFormat: cfg.Erase, AllowSanitize: cfg.Erase, ThinThreshold: int64(cfg.LowSpace), StateDir: state, Log: d.log,
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
		return file.Open(cfg.Path, file.Options{
			Size: int64(cfg.Size), ReadOnly: cfg.ReadOnly, Direct: cfg.Direct, Logical: cfg.Block, Physical: cfg.Physical,
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

// sizeOnly reports whether two configurations of one volume differ in nothing but a size that grows, which needs no
// reopening.
func sizeOnly(a, b VolumeConfig) bool {
	grown := a
	grown.Size = b.Size
	return same(grown, b) && b.Size > a.Size && a.Engine == "file"
}
