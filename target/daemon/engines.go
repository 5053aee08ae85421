package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/delay"
	"github.com/sluice-storage/sluice/blockdev/file"
	memdev "github.com/sluice-storage/sluice/blockdev/mem"
	"github.com/sluice-storage/sluice/blockdev/null"
)

// engine is what volumes of one kind are and can do. What depends on the kind asks here, never for its name.
type engine struct {
	name    string
	file    bool // its bytes are in a file or block device at the volume's path, which has a size and room of its own
	image   bool // its bytes are in an image of a Ceph cluster, which has a size of its own
	lasting bool // its bytes are there after a restart of the daemon, and so is what initiators know the volume by
	grows   bool // it can become larger while it is served
	clones  bool // a new volume can share its blocks
	open    func(cfg VolumeConfig, stateDir string) (blockdev.Device, error)
}

// engines are all that are built in, the default first.
var engines = []engine{
	{name: "file", file: true, lasting: true, grows: true, clones: true, open: openFile},
	{name: "rbd", image: true, lasting: true, grows: true, clones: true, open: openRBD},
	{name: "mem", open: openMem},
	{name: "null", open: openNull},
	{name: "delay", open: openDelay},
}

func engineNames() []string {
	var l []string
	for _, e := range engines {
		l = append(l, e.name)
	}
	return l
}

// engineNamed is an engine that can do nothing for a name that is none's, which an earlier version may have written down.
func engineNamed(name string) engine {
	for _, e := range engines {
		if e.name == name {
			return e
		}
	}
	return engine{name: name, open: func(VolumeConfig, string) (blockdev.Device, error) {
		return nil, fmt.Errorf("engine %q is not built in", name)
	}}
}

func (v VolumeConfig) engine() engine { return engineNamed(v.Engine) }

// openFile opens what is there and makes nothing. A file that is larger than its configuration says keeps its size: nothing is ever
// cut, and a growth that was interrupted before it was written down is no reason not to serve.
func openFile(cfg VolumeConfig, stateDir string) (blockdev.Device, error) {
	size := int64(cfg.Size)
	if fi, err := os.Stat(cfg.Path); err != nil || fi.Size() >= size || !fi.Mode().IsRegular() {
		size = 0
	}
	d, err := file.Open(cfg.Path, file.Options{
		Size: size, ReadOnly: cfg.ReadOnly, Direct: cfg.Direct, Logical: cfg.Block, Physical: cfg.Physical,
		Atomic: cfg.Atomic, Thick: cfg.Thick, Notes: mediaDir(stateDir), Earlier: filepath.Join(stateDir, cfg.Name),
	})
	if err != nil {
		return nil, err
	}
	return staging(d), nil
}

func openMem(cfg VolumeConfig, _ string) (blockdev.Device, error) {
	return memdev.Open(memdev.Options{Size: int64(cfg.Size), Logical: cfg.Block, Physical: cfg.Physical, ReadOnly: cfg.ReadOnly})
}

func openNull(cfg VolumeConfig, _ string) (blockdev.Device, error) {
	return null.Open(null.Options{Size: int64(cfg.Size), Logical: cfg.Block})
}

func openDelay(cfg VolumeConfig, _ string) (blockdev.Device, error) {
	below, err := memdev.Open(memdev.Options{Size: int64(cfg.Size), Logical: cfg.Block, Physical: cfg.Physical})
	if err != nil {
		return nil, err
	}
	return delay.Open(below, delay.Options{For: func(*blockdev.Request) time.Duration { return time.Duration(cfg.Delay) }})
}
