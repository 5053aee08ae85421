package daemon

import _ "embed"

//go:embed default.yaml
var defaultYAML []byte

// DefaultYAML is the configuration served when no file is named.
func DefaultYAML() []byte { return defaultYAML }

// Load reads the file at path with its drop-ins, or the embedded default when path is empty, with two keys overridden
// where not empty.
func Load(path, stateDir, level string) (*Config, error) {
	return load(path, stateDir, level, false, nil, nil)
}

// LoadServing is Load, with what the administrative interface of an earlier run changed.
func LoadServing(path, stateDir, level string) (*Config, error) {
	return load(path, stateDir, level, true, nil, nil)
}
