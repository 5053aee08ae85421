package daemon

import _ "embed"

//go:embed default.yaml
var defaultYAML []byte

// DefaultYAML is the configuration served when no file is named.
func DefaultYAML() []byte { return defaultYAML }

// Load reads the file at path, or the embedded default when path is empty, with two keys overridden where not empty.
func Load(path, stateDir, level string) (*Config, error) {
	if path != "" {
		c, err := LoadConfig(path)
		if err != nil {
			return nil, err
		}
		return c.override(path, stateDir, level)
	}
	c, err := ParseConfig("(embedded default)", withStateDir(defaultYAML, stateDir))
	if err != nil {
		return nil, err
	}
	return c.override("(embedded default)", "", level)
}

// withStateDir puts state_dir in front, before paths are made from it.
func withStateDir(b []byte, dir string) []byte {
	if dir == "" {
		return b
	}
	return append([]byte("state_dir: '"+dir+"'\n"), b...)
}

func (c *Config) override(name, stateDir, level string) (*Config, error) {
	if stateDir != "" {
		for i := range c.Volumes {
			if v := &c.Volumes[i]; v.Engine == "file" && v.Path == defaultPath(c.StateDir, v.Name) {
				v.Path = defaultPath(stateDir, v.Name)
			}
		}
		c.StateDir = stateDir
	}
	if level != "" {
		c.Log.Level = level
	}
	if err := c.Check(); err != nil {
		return nil, &ConfigError{File: name, Detail: err.Error()}
	}
	return c, nil
}
