package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/sluice-storage/sluice/transport/fabric"
)

// ConfigError is a configuration that cannot be served: one sentence, with the file and, where the parser knows it,
// line and caret.
type ConfigError struct {
	File   string
	Detail string
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("configuration %s: %s", e.File, e.Detail)
}

// LoadConfig reads and checks a file with its drop-ins (FILE.d/*.yaml). Every key must be known.
func LoadConfig(path string) (*Config, error) { return load(path, "", "", false, nil, nil) }

// ParseConfig checks bytes as LoadConfig does a file; name stands in messages and relative paths begin at its directory.
func ParseConfig(name string, b []byte) (*Config, error) {
	c, err := parse(name, b)
	if err != nil {
		return nil, err
	}
	return c.finish(name, b, nil)
}

// load reads the file at path, or the embedded default, adds drop-ins and, for a daemon, what its administrative
// interface changed: m, or what the state directory has of it. now is what the daemon serves, nil at its start.
func load(path, stateDir, level string, serve bool, m *managed, now *Config) (*Config, error) {
	name, b := "(embedded default)", defaultYAML
	if path != "" {
		var err error
		name = path
		if b, err = os.ReadFile(path); err != nil {
			return nil, &ConfigError{File: path, Detail: err.Error()}
		}
	}
	c, err := parse(name, b)
	if err != nil {
		return nil, err
	}
	c.embedded = path == ""
	if path != "" {
		if err := c.dropIns(path); err != nil {
			return nil, err
		}
	}
	if stateDir != "" {
		if c.StateDir, err = filepath.Abs(stateDir); err != nil {
			return nil, &ConfigError{File: name, Detail: err.Error()}
		}
	}
	if level != "" {
		c.Log.Level = level
	}
	if serve {
		dir := c.StateDir
		if dir == "" {
			dir = DefaultStateDir()
		} else if !filepath.IsAbs(dir) {
			dir = filepath.Join(filepath.Dir(name), dir)
		}
		if m == nil {
			if m, err = readManaged(dir); err != nil {
				return nil, err
			}
		}
		c.merge(m)
		c.with = func(now *Config, m *managed) (*Config, error) { return again(now, path, stateDir, level, m) }
	}
	return c.finish(name, b, now)
}

// again is load for a daemon that serves now. Settings that need a restart are those that it started with, whatever the files say of the
// next start. One of them is the state directory: what commands made lies there, and so do the volumes and exports that have no path.
func again(now *Config, path, stateDir, level string, m *managed) (*Config, error) {
	asked, err := load(path, stateDir, level, true, m, nil)
	if err != nil {
		return nil, err
	}
	next, err := load(path, now.StateDir, level, true, m, now)
	if ce := (*ConfigError)(nil); errors.As(err, &ce) {
		return nil, &ConfigError{File: ce.File, Detail: "until the daemon starts again its earlier settings count, and with those " + ce.Detail}
	}
	if err != nil {
		return nil, err
	}
	next.asked, next.with = asked, asked.with
	return next, nil
}

// saysNothing reports whether a file holds no more than comments.
func saysNothing(b []byte) bool {
	for line := range bytes.Lines(b) {
		if l := bytes.TrimSpace(line); len(l) > 0 && l[0] != '#' && !bytes.Equal(l, []byte("---")) {
			return false
		}
	}
	return true
}

// parse reads one file strictly. It fills in no defaults.
func parse(name string, b []byte) (*Config, error) {
	c := &Config{}
	if err := decodeStrictly(b, c); err != nil && !saysNothing(b) {
		return nil, &ConfigError{File: name, Detail: strings.TrimSpace(yaml.FormatError(err, false, true))}
	}
	c.source, c.empty = name, saysNothing(b) // after decoding, which an empty document makes again
	return c, nil
}

// decodeStrictly refuses unknown keys. The library panics over some wrong files, for one a tag before a list that has no tag: an
// error, so that a typing error does not end the daemon on a reload.
func decodeStrictly(b []byte, into any) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("this is not YAML that can be read (%v): look for tags (!...), anchors and aliases, which have no use here", p)
		}
	}()
	return yaml.NewDecoder(bytes.NewReader(b), yaml.Strict()).Decode(into)
}

// finish fills in defaults, keeps the settings that a daemon that serves now cannot change, and checks the whole.
func (c *Config) finish(name string, b []byte, now *Config) (*Config, error) {
	dir, err := filepath.Abs(filepath.Dir(name))
	if err != nil {
		return nil, &ConfigError{File: name, Detail: err.Error()}
	}
	c.fill(dir)
	if now != nil {
		c.keep(now)
	}
	c.resize()
	if err := c.Check(); err != nil {
		return nil, &ConfigError{File: name, Detail: annotate(err, b)}
	}
	return c, nil
}

// annotate adds the line and a caret where the file has the value that err is about.
func annotate(err error, b []byte) string {
	var pe *placeError
	if !errors.As(err, &pe) {
		return err.Error()
	}
	path, perr := yaml.PathString(pe.path)
	if perr != nil {
		return err.Error()
	}
	src, perr := path.AnnotateSource(b, false)
	if perr != nil { // the value is a default, not in the file
		return err.Error()
	}
	return err.Error() + "\n" + strings.TrimRight(string(src), "\n ")
}

// fill gives what was left out its default, and lets paths begin at dir.
func (c *Config) fill(dir string) {
	if c.StateDir == "" {
		c.StateDir = DefaultStateDir()
	}
	c.StateDir = absolute(dir, c.StateDir)
	if c.Fabric == nil {
		c.Fabric = FabricConfig{{Provider: fabric.IWARP}, {Provider: fabric.Verbs, implied: true}, {Provider: fabric.SHM, implied: true}}
	}
	if len(c.Exports) > 0 && c.Files == nil {
		c.Files = &FilesConfig{}
	}
	for i := range c.Volumes {
		if v := &c.Volumes[i]; v.Engine == "" && v.RBD != nil {
			v.Engine = "rbd"
		}
	}
	c.fillDefaults()
	c.makeAbsolute(dir)
	c.computeDefaults()
	c.makeAbsolute(dir)
}

// computeDefaults gives keys that were left out the defaults that depend on other keys.
func (c *Config) computeDefaults() {
	if c.Limits.PerHost == 0 {
		c.Limits.PerHost = max(1, c.Limits.Connections-c.Limits.Connections/4)
	}
	for i := range c.Volumes {
		v := &c.Volumes[i]
		if v.Physical == 0 {
			v.Physical = max(4096, v.Block)
		}
		if v.RBD != nil {
			r := *v.RBD
			r.cluster = c.Ceph
			v.RBD = &r
			v.ReadOnly = v.ReadOnly || r.Snapshot != ""
		}
		if v.engine().file && v.Path == "" && v.Name != "" {
			v.Path = defaultPath(c.StateDir, v.Name)
		}
	}
	for i := range c.Exports {
		if e := &c.Exports[i]; e.Path == "" && e.Name != "" {
			e.Path = filepath.Join(c.StateDir, "exports", filepath.Base(e.Name))
		}
	}
}

// DefaultStateDir is where a daemon keeps its state when nothing else is said: /var/lib/sluice for root, below
// $XDG_STATE_HOME (or ~/.local/state) for other users.
func DefaultStateDir() string {
	if os.Geteuid() == 0 {
		return "/var/lib/sluice"
	}
	if d := os.Getenv("XDG_STATE_HOME"); d != "" {
		return filepath.Join(d, "sluice")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return filepath.Join(os.TempDir(), fmt.Sprintf("sluice-%d", os.Geteuid()))
	}
	return filepath.Join(home, ".local", "state", "sluice")
}

// defaultPath is where a file volume without a path lives.
func defaultPath(stateDir, volume string) string { return filepath.Join(stateDir, volume+".img") }
