package operator

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"

	"pgregory.net/rapid"
)

func one[T any](o *operator, what string, of ...T) T { return rapid.SampledFrom(of).Draw(o.t, what) }

// likely draws from what makes sense, three times of four, and otherwise from everything: most refusals are found soon.
func likely[T any](o *operator, what string, sense []T, of ...T) T {
	if len(sense) > 0 && rapid.IntRange(0, 3).Draw(o.t, "sense of "+what) > 0 {
		of = sense
	}
	return one(o, what, of...)
}

var names = []string{"c0", "c1", "v1", "v2", "v3"}

// volumes are those that are there and fit.
func (o *operator) volumes(fit func(name string) bool) []string {
	return slices.DeleteFunc(slices.Sorted(keys(o.m.volumes)), func(n string) bool { return !fit(n) })
}

func (o *operator) free(name string) bool {
	_, there := o.m.files[name+".img"]
	return !there && o.m.volumes[name] == nil
}

func (o *operator) fresh() []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !o.free(n) })
}

func (o *operator) anyTarget() string {
	return likely(o, "target", slices.Sorted(keys(o.m.targets)), confTarget, madeTarget)
}

// ours is most often the target that can be changed.
func (o *operator) ours() string {
	return likely(o, "target", []string{madeTarget}, confTarget, madeTarget)
}

func (o *operator) create() step {
	name, size := likely(o, "volume", o.fresh(), names...), one(o, "size", 1, 2, 3)
	return step{args: []string{"volume", "create", name, fmt.Sprintf("%dMiB", size)}, apply: func(m *model) bool { return m.create(name, size*mib) }}
}

func (o *operator) resize() step {
	name, size := likely(o, "volume", o.volumes(func(string) bool { return true }), names...), one(o, "size", 1, 2, 3, 4)
	return step{args: []string{"volume", "resize", name, fmt.Sprintf("%dMiB", size)}, apply: func(m *model) bool { return m.resize(name, size*mib) }}
}

func (o *operator) remove() step {
	name := likely(o, "volume", o.volumes(func(n string) bool { return o.m.volumes[n].managed && !o.m.mapped(n) }), names...)
	data := rapid.Bool().Draw(o.t, "data")
	return step{args: []string{"volume", "delete", name, "--yes", fmt.Sprintf("--data=%v", data)}, apply: func(m *model) bool { return m.remove(name, data) }}
}

func (o *operator) copy() step {
	from, name := likely(o, "volume", o.volumes(func(string) bool { return true }), names...), likely(o, "copy", o.fresh(), names...)
	if rapid.Bool().Draw(o.t, "snapshot") {
		return step{args: []string{"volume", "snapshot", from, name}, apply: func(m *model) bool { return m.copyOf(from, name, true) }}
	}
	return step{args: []string{"volume", "create", name, "--clone", from}, apply: func(m *model) bool { return m.copyOf(from, name, false) }}
}

func (o *operator) target() step {
	if gone := o.m.targets[madeTarget] == nil; rapid.IntRange(0, 3).Draw(o.t, "delete") == 0 || !gone {
		name := o.ours()
		return step{args: []string{"target", "delete", name, "--yes"}, apply: func(m *model) bool { return m.deleteTarget(name) }}
	}
	return o.createTarget()
}

func (o *operator) createTarget() step {
	args, list := []string{"target", "create", madeTarget}, []string(nil)
	if rapid.Bool().Draw(o.t, "listed") {
		list = []string{one(o, "host", hosts...)}
		args = append(args, "--initiator", list[0])
	}
	return step{args: args, apply: func(m *model) bool { return m.createTarget(madeTarget, list) }}
}

func (o *operator) mapLUN() step {
	name := o.anyTarget()
	var open []int
	if t := o.m.targets[name]; t != nil {
		open = slices.DeleteFunc(slices.Clone(luns), func(l int) bool { return t.volumeAt(l) != "" })
	}
	lun, v := likely(o, "lun", open, luns...), likely(o, "volume", o.volumes(func(n string) bool { return !o.m.mapped(n) }), names...)
	return step{args: []string{"target", "map", name, strconv.Itoa(lun), v}, apply: func(m *model) bool { return m.mapLUN(name, lun, v) }}
}

func (o *operator) unmap() step {
	name := o.anyTarget()
	var taken []int
	if t := o.m.targets[name]; t != nil {
		taken = slices.Sorted(keys(t.luns))
	}
	lun := likely(o, "lun", taken, luns...)
	return step{args: []string{"target", "unmap", name, strconv.Itoa(lun)}, apply: func(m *model) bool { return m.unmapLUN(name, lun) }}
}

func (o *operator) allow() step {
	name, host := o.ours(), one(o, "host", hosts...)
	args, only := []string{"target", "allow", name, host}, []int(nil)
	if rapid.Bool().Draw(o.t, "some") {
		only = []int{one(o, "lun", luns...)}
		args = append(args, "--lun", strconv.Itoa(only[0]))
	}
	return step{args: args, apply: func(m *model) bool { return m.allow(name, host, only) }}
}

func (o *operator) deny() step {
	name, host := o.ours(), one(o, "host", hosts...)
	return step{args: []string{"target", "deny", name, host, "--yes"}, apply: func(m *model) bool { return m.deny(name, host) }}
}

func (o *operator) secret() step {
	name, user := o.ours(), one(o, "user", "alice", "bob")
	if rapid.IntRange(0, 2).Draw(o.t, "remove") == 0 {
		return step{args: []string{"target", "secret", name, user, "--remove"}, apply: func(m *model) bool { return m.removeSecret(name, user) }}
	}
	secret := one(o, "secret", "short", "a-long-enough-secret", "another-long-secret")
	return step{args: []string{"target", "secret", name, user}, stdin: secret + "\n", apply: func(m *model) bool { return m.secret(name, user, secret) }}
}

func (o *operator) export() step {
	name := one(o, "export", "/second", "/second", "/first")
	if rapid.Bool().Draw(o.t, "remove") {
		return step{args: []string{"exports", "remove", name, "--yes"}, apply: func(m *model) bool { return m.removeExport(name) }}
	}
	return step{args: []string{"exports", "add", name, filepath.Join(o.dir, "exported"), "--client", "127.0.0.0/8", "--any-port"}, apply: func(m *model) bool { return m.addExport(name) }}
}
