package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/sluice-storage/sluice/target/admin"
)

// managed is what the administrative interface has changed. It lies in the state directory, is merged into the
// configuration at every load, and never touches the operator's own file.
type managed struct {
	Volumes []VolumeConfig  `yaml:"volumes,omitempty"`
	Targets []TargetConfig  `yaml:"targets,omitempty"`
	Maps    []managedMap    `yaml:"maps,omitempty"`  // LUNs added to targets of the operator's file
	Sizes   map[string]Size `yaml:"sizes,omitempty"` // volumes of the operator's file that were resized
	// SizedAt has the paths that they had then: another file has none of the sizes.
	SizedAt map[string]string `yaml:"sized_at,omitempty"`
	Portals []PortalConfig    `yaml:"portals,omitempty"`
	Exports []ExportConfig    `yaml:"exports,omitempty"`

	touched map[string]bool // targets that a change is about
}

type managedMap struct {
	Target string `yaml:"target"`
	LUN    uint16 `yaml:"lun"`
	Volume string `yaml:"volume"`
	// Unit is the key of the volume's identity when it was mapped: another volume that has its name has none of its maps.
	Unit string `yaml:"unit,omitempty"`
}

func managedPath(stateDir string) string { return filepath.Join(stateDir, "managed.yaml") }

func readManaged(stateDir string) (*managed, error) {
	m := &managed{Sizes: map[string]Size{}}
	path := managedPath(stateDir)
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return nil, &ConfigError{File: path, Detail: err.Error()}
	}
	if err := decodeStrictly(b, m); err != nil && len(bytes.TrimSpace(b)) > 0 {
		return nil, &ConfigError{File: path, Detail: yaml.FormatError(err, false, true)}
	}
	if m.Sizes == nil {
		m.Sizes = map[string]Size{}
	}
	// Earlier versions wrote an empty list where none was given. The interface has no way to hide every LUN.
	for _, t := range m.Targets {
		for i := range t.Initiators {
			if len(t.Initiators[i].LUNs) == 0 {
				t.Initiators[i].LUNs = nil
			}
		}
	}
	return m, nil
}

// unmap forgets the LUNs that were mapped into a target.
func (m *managed) unmap(target string) {
	m.Maps = slices.DeleteFunc(m.Maps, func(p managedMap) bool { return p.Target == target })
}

// forgetGone forgets maps and sizes of targets and volumes that c, which m was merged into, does not have: a later one of that name is
// another one. It returns the maps that it forgot, and whether it forgot anything.
func (m *managed) forgetGone(c *Config) (gone []managedMap, some bool) {
	m.Maps = slices.DeleteFunc(m.Maps, func(p managedMap) bool {
		stays := has(c.Targets, p.Target)
		if !stays {
			gone = append(gone, p)
		}
		return !stays
	})
	n := len(m.Sizes)
	maps.DeleteFunc(m.Sizes, func(volume string, _ Size) bool {
		return !slices.ContainsFunc(c.Volumes, func(v VolumeConfig) bool { return v.Name == volume && m.sizeIsOf(v) })
	})
	maps.DeleteFunc(m.SizedAt, func(volume, _ string) bool { return m.Sizes[volume] == 0 })
	return gone, len(gone) > 0 || len(m.Sizes) != n
}

// sizeIsOf reports whether the size that a command gave to a volume of that name is for the file that v names. Earlier versions did not
// write the file down.
func (m *managed) sizeIsOf(v VolumeConfig) bool {
	at := m.SizedAt[v.Name]
	return at == "" || at == v.place()
}

// text is the file's content. It is read back before it is written: a name with bytes that YAML cannot carry would come back as
// another name, or keep the daemon from starting.
func (m *managed) text() ([]byte, error) {
	b, err := yaml.Marshal(m)
	if err != nil {
		return nil, err
	}
	var back managed
	if err := decodeStrictly(b, &back); err != nil {
		return nil, fmt.Errorf("the change cannot be written down: its text is not read again (%w); leave out special characters", err)
	}
	if again, err := yaml.Marshal(&back); err != nil || !bytes.Equal(again, b) {
		return nil, errors.New("the change cannot be written down: it would be read as another one; leave out special characters")
	}
	head := []byte("# Written by sluiced for what \"sluice volume\" and \"sluice target\" change. Stop the daemon before editing.\n")
	return append(head, b...), nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// merge adds m to c, which was read from the operator's files. What those define by now wins.
func (c *Config) merge(m *managed) {
	c.managed, c.taken = m, map[string]bool{}
	mergeItems(c.taken, &c.Volumes, m.Volumes)
	mergeItems(c.taken, &c.Targets, m.Targets)
	mergeItems(c.taken, &c.Portals, m.Portals)
	mergeItems(c.taken, &c.Exports, m.Exports)
	for _, mp := range m.Maps {
		i := indexOf(c.Targets, mp.Target)
		if i < 0 {
			continue // left by a target that is gone
		}
		t := &c.Targets[i]
		switch {
		case slices.ContainsFunc(t.LUNs, func(l LUNConfig) bool { return l.LUN == mp.LUN }):
		case c.free(mp.Volume) != nil:
			c.skipped = append(c.skipped, mp)
		default:
			t.LUNs = append(slices.Clone(t.LUNs), LUNConfig{LUN: mp.LUN, Volume: mp.Volume})
		}
	}
}

// resize gives volumes of the operator's file the sizes that commands gave them, when paths are known.
func (c *Config) resize() {
	if c.managed == nil {
		return
	}
	for i := range c.Volumes {
		if v := &c.Volumes[i]; c.managed.Sizes[v.Name] > v.Size && c.managed.sizeIsOf(*v) {
			v.Size = c.managed.Sizes[v.Name]
		}
	}
}

// free fails where the volume does not exist, and where it is a LUN already.
func (c *Config) free(volume string) error {
	if !has(c.Volumes, volume) {
		return &admin.Error{Kind: admin.Invalid, Msg: fmt.Sprintf("there is no volume %s; see sluice volume list", volume)}
	}
	for _, t := range c.Targets {
		for _, l := range t.LUNs {
			if l.Volume == volume {
				return fmt.Errorf("volume %s is mapped by %s as LUN %d; a volume belongs to one LUN", volume, t.Name, l.LUN)
			}
		}
	}
	return nil
}

// takesAway fails where a change of the files takes from initiators what the operator will hardly mean: everything, because the file is
// empty, or a LUN that was mapped by command, because its volume has left the file. A start does not ask: it takes nothing away.
func (c *Config) takesAway(before *Config) error {
	if c.empty && !before.empty {
		return &ConfigError{File: c.source, Detail: "the file is empty, which would take everything away; write \"volumes: []\" if nothing is to be served"}
	}
	for _, mp := range c.skipped {
		if !slices.Contains(before.skipped, mp) {
			return &ConfigError{File: c.source, Detail: fmt.Sprintf("volume %s is LUN %d of %s, mapped by command, and cannot stay that: it is not configured any more, or another volume of that name or another LUN is; "+
				"sluice target unmap %s %d first", mp.Volume, mp.LUN, mp.Target, mp.Target, mp.LUN)}
		}
	}
	return nil
}

// dropIns adds the files of DIR.d beside the configuration file, in the order of their names: each may add volumes,
// targets, portals and exports.
func (c *Config) dropIns(path string) error {
	entries, err := os.ReadDir(path + ".d") // in that order
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &ConfigError{File: path + ".d", Detail: err.Error()}
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".yaml") {
			continue
		}
		f := filepath.Join(path+".d", e.Name())
		b, err := os.ReadFile(f)
		if err != nil {
			return &ConfigError{File: f, Detail: err.Error()}
		}
		add, err := parse(f, b)
		if err != nil {
			return err
		}
		if !same(add.settings(), (&Config{}).settings()) {
			return &ConfigError{File: f, Detail: "a drop-in may hold portals, volumes, targets and exports; settings belong into " + path}
		}
		more := keysOf(add)
		for i, k := range keysOf(c) {
			if k.isList() {
				k.value.Set(reflect.AppendSlice(k.value, more[i].value))
			}
		}
	}
	return nil
}

// settings is c without its lists.
func (c *Config) settings() Config {
	s := *c
	for _, k := range keysOf(&s) {
		if k.isList() {
			k.value.SetZero()
		}
	}
	return s
}

func (m *managed) clone() (*managed, error) {
	b, err := yaml.Marshal(m)
	if err != nil {
		return nil, err
	}
	out := &managed{}
	if err := yaml.Unmarshal(b, out); err != nil {
		return nil, fmt.Errorf("copy of the managed configuration: %w", err)
	}
	if out.Sizes == nil {
		out.Sizes = map[string]Size{}
	}
	return out, nil
}
