package daemon

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/goccy/go-yaml"
)

// Show is the effective configuration as YAML: every key with the value that counts. It holds no secret, because
// secrets live in files that the configuration only names.
func (c *Config) Show() ([]byte, error) { return yaml.Marshal(c) }

// Change is one difference between two configurations.
type Change struct {
	Kind string `json:"kind"` // volume, target, portal, export, setting
	Name string `json:"name"`
	What string `json:"what"` // added, removed, changed
	// Restart says that the change takes effect only when the daemon starts again.
	Restart bool `json:"restart"`
}

// Diff lists what going from c to next changes, in the order volumes, targets, portals, exports, settings.
func (c *Config) Diff(next *Config) []Change {
	var ch []Change
	ch = append(ch, diff("volume", c.Volumes, next.Volumes, func(v VolumeConfig) string { return v.Name })...)
	ch = append(ch, diff("target", c.Targets, next.Targets, func(t TargetConfig) string { return t.Name })...)
	ch = append(ch, diff("portal", c.Portals, next.Portals, func(p PortalConfig) string { return p.Address })...)
	ch = append(ch, diff("export", c.Exports, next.Exports, func(e ExportConfig) string { return e.Name })...)
	for _, s := range []struct {
		name string
		a, b any
	}{
		{"state_dir", c.StateDir, next.StateDir}, {"log", c.Log, next.Log}, {"memory", c.Memory, next.Memory},
		{"fabric", c.Fabric, next.Fabric}, {"timeouts", c.Timeouts, next.Timeouts}, {"limits", c.Limits, next.Limits}, {"admin", c.Admin, next.Admin},
		{"discovery_auth", c.DiscoveryAuth, next.DiscoveryAuth}, {"isns", c.ISNS, next.ISNS},
	} {
		if !same(s.a, s.b) {
			ch = append(ch, Change{Kind: "setting", Name: s.name, What: "changed", Restart: true})
		}
	}
	// The file service comes and goes at once; another address takes a restart.
	switch {
	case c.Files == nil && next.Files != nil:
		ch = append(ch, Change{Kind: "setting", Name: "files", What: "added"})
	case c.Files != nil && next.Files == nil:
		ch = append(ch, Change{Kind: "setting", Name: "files", What: "removed"})
	case !same(c.Files, next.Files):
		ch = append(ch, Change{Kind: "setting", Name: "files", What: "changed", Restart: true})
	}
	return ch
}

func diff[T any](kind string, a, b []T, name func(T) string) []Change {
	var ch []Change
	old := map[string]T{}
	for _, v := range a {
		old[name(v)] = v
	}
	for _, v := range b {
		was, ok := old[name(v)]
		switch {
		case !ok:
			ch = append(ch, Change{Kind: kind, Name: name(v), What: "added"})
		case !same(was, v):
			ch = append(ch, Change{Kind: kind, Name: name(v), What: "changed"})
		}
		delete(old, name(v))
	}
	for _, v := range a {
		if _, gone := old[name(v)]; gone {
			ch = append(ch, Change{Kind: kind, Name: name(v), What: "removed"})
		}
	}
	return ch
}

// same compares what two values say: a list left out and an empty one are the same.
func same(a, b any) bool {
	x, xerr := json.Marshal(a)
	y, yerr := json.Marshal(b)
	return xerr == nil && yerr == nil && bytes.Equal(x, y)
}

// Schema is the JSON schema (2020-12) of the configuration file, for editors. It is made from the types that the file
// is read into, so it cannot fall behind them.
func Schema() map[string]any {
	s := schemaOf(reflect.TypeFor[Config]())
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = "sluiced configuration"
	return s
}

func schemaOf(t reflect.Type) map[string]any {
	switch t {
	case reflect.TypeFor[Size]():
		return map[string]any{"oneOf": []any{
			map[string]any{"type": "integer", "minimum": 0},
			map[string]any{"type": "string", "pattern": `^[0-9]+(\.[0-9]+)? *([KMGTkmgt]i?[Bb]?|[Bb])?$`},
		}}
	case reflect.TypeFor[Duration]():
		return map[string]any{"type": "string", "pattern": `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return schemaOf(t.Elem())
	case reflect.Struct:
		props := map[string]any{}
		for i := range t.NumField() {
			f := t.Field(i)
			if tag, _, _ := strings.Cut(f.Tag.Get("yaml"), ","); tag != "" && tag != "-" {
				props[tag] = schemaOf(f.Type)
			}
		}
		return map[string]any{"type": "object", "properties": props, "additionalProperties": false}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": schemaOf(t.Elem())}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Int, reflect.Int64:
		return map[string]any{"type": "integer"}
	case reflect.Uint16:
		return map[string]any{"type": "integer", "minimum": 0, "maximum": 65535}
	case reflect.Uint32:
		return map[string]any{"type": "integer", "minimum": 0, "maximum": 4294967295}
	}
	panic(fmt.Sprintf("daemon: configuration type %v has no schema", t))
}
