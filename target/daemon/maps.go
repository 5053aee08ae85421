package daemon

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/savefile"
)

// dropStrangers removes from c those LUNs that were mapped by command and whose volume is another one than was mapped, with the same
// name: the configuration names another file or device for it. more are volumes that are not served yet.
func (d *Daemon) dropStrangers(c *Config, more map[string]*volume) {
	if c.managed == nil {
		return
	}
	for _, mp := range c.managed.Maps {
		v := more[mp.Volume]
		if v == nil {
			v = d.volumes[mp.Volume]
		}
		if v == nil || mp.Unit == "" || v.key == "" || v.key == mp.Unit || slices.Contains(c.skipped, mp) {
			continue
		}
		for i := range c.Targets {
			t := &c.Targets[i]
			if t.Name == mp.Target {
				t.LUNs = slices.DeleteFunc(slices.Clone(t.LUNs), func(l LUNConfig) bool { return l.LUN == mp.LUN && l.Volume == mp.Volume })
			}
		}
		c.skipped = append(c.skipped, mp)
	}
}

// stampMaps writes down which volumes the maps and sizes of an earlier version belong to. It forgets maps and sizes of targets and
// volumes that left the operator's file while the daemon did not run.
func (d *Daemon) stampMaps(c *Config) {
	if c.managed == nil {
		return
	}
	sizes := maps.Clone(c.managed.Sizes)
	gone, stamped := c.managed.forgetGone(c)
	for volume, size := range sizes {
		if c.managed.Sizes[volume] == 0 {
			d.log.Info("a size that was given by command is forgotten: the volume is not configured any more, or with another path", zap.String("volume", volume), zap.Stringer("size", size))
		}
	}
	for _, v := range c.Volumes {
		if c.managed.Sizes[v.Name] > 0 && c.managed.SizedAt[v.Name] == "" {
			if c.managed.SizedAt == nil {
				c.managed.SizedAt = map[string]string{}
			}
			c.managed.SizedAt[v.Name], stamped = v.place(), true
		}
	}
	for _, mp := range gone {
		d.log.Warn("a LUN that was mapped by command is forgotten: its target is not configured any more; if that comes back, map the volume again",
			zap.String("target", mp.Target), zap.Uint16("lun", mp.LUN), zap.String("volume", mp.Volume), zap.String("command", fmt.Sprintf("sluice target map %s %d %s", mp.Target, mp.LUN, mp.Volume)))
	}
	for i := range c.managed.Maps {
		mp := &c.managed.Maps[i]
		if v := d.volumes[mp.Volume]; v != nil && mp.Unit == "" && v.key != "" && !slices.Contains(c.skipped, *mp) {
			mp.Unit, stamped = v.key, true
		}
	}
	if !stamped {
		return
	}
	text, err := c.managed.text()
	if err == nil {
		err = savefile.Replace(managedPath(d.stateDir), text)
	}
	if err != nil {
		d.log.Warn("it could not be written down which volumes are mapped", zap.Error(err))
	}
}

// serveNewFile serves a volume whose file a command has made, as the LUNs that the one before it was.
func (d *Daemon) serveNewFile(name, path string) error {
	stamped := func(m managedMap) bool { return m.Volume == name && m.Unit != "" }
	if d.cfg.managed == nil || d.cfg.with == nil || !slices.ContainsFunc(d.cfg.managed.Maps, stamped) {
		_, _, err := d.reloadLocked(d.cfg, nil)
		return err
	}
	id, err := readIdentity(beside(path))
	if err == nil && id == nil {
		err = errors.New(beside(path) + " is gone; nothing was made")
	}
	if err != nil {
		return err
	}
	_, err = d.changeLocked(false, "", func(m *managed) error {
		for i := range m.Maps {
			if stamped(m.Maps[i]) {
				m.Maps[i].Unit = id.Key
			}
		}
		return nil
	})
	return err
}
