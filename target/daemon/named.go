package daemon

import "slices"

// named is an item of a list of the configuration's in which names are unique.
type named interface {
	// called is the kind of the item, as operators read it, and its name.
	called() (kind, name string)
}

func (v VolumeConfig) called() (kind, name string) { return "volume", v.Name }
func (t TargetConfig) called() (kind, name string) { return "target", t.Name }
func (p PortalConfig) called() (kind, name string) { return "portal", p.Address }
func (p SRPConfig) called() (kind, name string)    { return "srp", p.Address }
func (e ExportConfig) called() (kind, name string) { return "export", e.Name }

// indexOf is the place of the item of that name, -1 where there is none.
func indexOf[T named](l []T, name string) int {
	return slices.IndexFunc(l, func(v T) bool {
		_, is := v.called()
		return is == name
	})
}

func has[T named](l []T, name string) bool { return indexOf(l, name) >= 0 }

// without is the list without the item of that name.
func without[T named](l []T, name string) []T {
	return slices.DeleteFunc(l, func(v T) bool {
		_, is := v.called()
		return is == name
	})
}

// mergeItems adds to the list what commands made, but for what the operator's file has under the same name, which it notes in taken.
func mergeItems[T named](taken map[string]bool, list *[]T, made []T) {
	for _, v := range made {
		kind, name := v.called()
		if taken[kind+" "+name] = has(*list, name); !taken[kind+" "+name] {
			*list = append(*list, v)
		}
	}
}

// byCommand reports whether commands may change the item of that name: what the operator's file has taken over is the operator's.
func byCommand[T named](c *Config, made func(*managed) []T, name string) bool {
	if c.managed == nil {
		return false
	}
	i := indexOf(made(c.managed), name)
	if i < 0 {
		return false
	}
	kind, _ := made(c.managed)[i].called()
	return !c.taken[kind+" "+name]
}

func (c *Config) managedVolume(name string) bool {
	return byCommand(c, func(m *managed) []VolumeConfig { return m.Volumes }, name)
}

func (c *Config) managedTarget(name string) bool {
	return byCommand(c, func(m *managed) []TargetConfig { return m.Targets }, name)
}

func (c *Config) managedPortal(name string) bool {
	return byCommand(c, func(m *managed) []PortalConfig { return m.Portals }, name)
}

func (c *Config) managedExport(name string) bool {
	return byCommand(c, func(m *managed) []ExportConfig { return m.Exports }, name)
}

// takenItem names an item that an edit from now to next is about and that the operator's file has, "" where there is none.
func takenItem[T named](now, next, served []T, taken map[string]bool) string {
	for _, v := range now {
		kind, name := v.called()
		i := indexOf(next, name)
		if i < 0 && has(served, name) || i >= 0 && taken[kind+" "+name] && !same(v, next[i]) {
			return kind + " " + name
		}
	}
	return ""
}
