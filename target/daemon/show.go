package daemon

import (
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

// Show is the effective configuration as YAML: every key with the value that counts, which may wait for a restart to be what the files say. It holds no secret, because
// secrets live in files that the configuration only names.
func (c *Config) Show() ([]byte, error) { return yaml.Marshal(c) }

// Change is one difference between two configurations.
type Change struct {
	Kind string `json:"kind"` // volume, target, portal, srp, export, setting
	Name string `json:"name"`
	What string `json:"what"` // added, removed, changed
	// Restart says that the change takes effect only when the daemon starts again.
	Restart bool `json:"restart"`
}

// Diff lists what going from c to next changes: what has a name, in the order volumes, targets, portals of both kinds, exports, and then settings.
func (c *Config) Diff(next *Config) []Change {
	items := map[string][]Change{}
	var settings []Change
	keys, asked := keysOf(next), keysOf(next.fromFiles())
	for i, was := range keysOf(c) {
		is := asked[i]
		change := Change{Kind: "setting", Name: was.name, What: "changed", Restart: true}
		switch {
		case was.isList():
			l := diffItems(was.value, keys[i].value)
			if len(l) > 0 {
				items[l[0].Kind] = l
			}
			continue
		case same(was.value.Interface(), is.value.Interface()):
			continue
		case was.Tag.Get("reload") == comesAndGoes && was.value.IsZero():
			change.What, change.Restart = "added", false
		case was.Tag.Get("reload") == comesAndGoes && is.value.IsZero():
			change.What, change.Restart = "removed", false
		}
		settings = append(settings, change)
	}
	return slices.Concat(items["volume"], items["target"], items["portal"], items["srp"], items["export"], settings)
}

// fromFiles is what the files say of the settings.
func (c *Config) fromFiles() *Config {
	if c.asked != nil {
		return c.asked
	}
	return c
}

// diffItems lists the changes of items that have names.
func diffItems(a, b reflect.Value) []Change {
	var l []Change
	old := map[string]any{}
	for _, v := range a.Seq2() {
		_, name := v.Interface().(named).called()
		old[name] = v.Interface()
	}
	for _, v := range b.Seq2() {
		kind, name := v.Interface().(named).called()
		switch was, ok := old[name]; {
		case !ok:
			l = append(l, Change{Kind: kind, Name: name, What: "added"})
		case !same(was, v.Interface()):
			l = append(l, Change{Kind: kind, Name: name, What: "changed"})
		}
		delete(old, name)
	}
	for _, v := range a.Seq2() {
		if kind, name := v.Interface().(named).called(); old[name] != nil {
			l = append(l, Change{Kind: kind, Name: name, What: "removed"})
		}
	}
	return l
}

// same compares what two values say. A list that was left out and an empty one are the same, but where the key says that they are not
// (omitzero).
func same(a, b any) bool { return alike(reflect.ValueOf(a), reflect.ValueOf(b)) }

func alike(a, b reflect.Value) bool {
	if !a.IsValid() || !b.IsValid() || a.Type() != b.Type() {
		return a.IsValid() == b.IsValid() && !a.IsValid()
	}
	switch a.Kind() {
	case reflect.Pointer:
		if a.IsNil() || b.IsNil() {
			return a.IsNil() == b.IsNil()
		}
		return alike(a.Elem(), b.Elem())
	case reflect.Slice:
		if a.Len() != b.Len() {
			return false
		}
		for i := range a.Len() {
			if !alike(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	case reflect.Struct:
		as := keysIn(b)
		for i, k := range keysIn(a) {
			_, rest, _ := strings.Cut(k.Tag.Get("yaml"), ",")
			if !alike(k.value, as[i].value) || rest == "omitzero" && k.value.IsZero() != as[i].value.IsZero() {
				return false
			}
		}
		return true
	}
	return a.Equal(b)
}
