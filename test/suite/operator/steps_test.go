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

// chance is one in two to the power of n. Rapid's numbers are small ones most often, and its booleans are not.
func (o *operator) chance(what string, n int) bool {
	for range n {
		if !rapid.Bool().Draw(o.t, what) {
			return false
		}
	}
	return true
}

// part is one of 32 equal steps from 0 to 1.
func (o *operator) part(what string) float64 {
	n := 0
	for range 5 {
		n *= 2
		if rapid.Bool().Draw(o.t, what) {
			n++
		}
	}
	return float64(n) / 31
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
	name, size, block, file := likely(o, "volume", o.fresh(), names...), one(o, "size", 1, 2, 3), one(o, "block", 512, 512, 4096), ""
	args := []string{"volume", "create", name, fmt.Sprintf("%dMiB", size), "--block", strconv.Itoa(block)}
	if file = name + ".img"; name[0] == 'v' && o.chance("path", 2) { // the others may be the operator's own at any time
		file = "own-" + file
		args = append(args, "--path", filepath.Join(o.dir, file))
	}
	return step{args: args, apply: func(m *model) bool { return m.create(name, file, size*mib, block) }}
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
		return step{args: []string{"volume", "snapshot", from, name}, wet: !reflink, apply: func(m *model) bool { return m.copyOf(from, name, true) }}
	}
	return step{args: []string{"volume", "create", name, "--clone", from}, wet: !reflink, apply: func(m *model) bool { return m.copyOf(from, name, false) }}
}

func (o *operator) target() step {
	if gone := o.m.targets[madeTarget] == nil; rapid.IntRange(0, 3).Draw(o.t, "delete") == 0 || !gone {
		name := o.ours()
		return step{args: []string{"target", "delete", name, "--yes"}, apply: func(m *model) bool { return m.deleteTarget(name) }}
	}
	return o.createTarget()
}

func (o *operator) createTarget() step {
	args, list := []string{"target", "create", madeTarget, "--alias", "made here"}, []string(nil)
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

// known are the secrets that are tried; the first is too short.
var known = []string{"short", "a-long-enough-secret", "another-long-secret", "a-third-long-secret"}

func (o *operator) secret() step {
	name, user := o.ours(), one(o, "user", "alice", "bob")
	if rapid.IntRange(0, 2).Draw(o.t, "remove") == 0 {
		return step{args: []string{"target", "secret", name, user, "--remove"}, wet: true, apply: func(m *model) bool { return m.removeSecret(name, user) }}
	}
	secret, initiators := one(o, "secret", known...), []string(nil)
	args := []string{"target", "secret", name, user}
	if o.chance("for one", 1) {
		initiators = []string{one(o, "initiator", hosts...)}
		args = append(args, "--initiator", initiators[0])
	}
	return step{args: args, stdin: secret + "\n", wet: true, apply: func(m *model) bool { return m.secret(name, user, secret, initiators) }}
}

// mutual changes the target's own proof.
func (o *operator) mutual() step {
	name, user := o.ours(), one(o, "user", "disks", "store")
	if rapid.IntRange(0, 3).Draw(o.t, "remove") == 0 {
		return step{args: []string{"target", "secret", name, user, "--remove"}, wet: true, apply: func(m *model) bool { return m.removeSecret(name, user) }}
	}
	secret := one(o, "secret", known...)
	return step{args: []string{"target", "secret", name, user, "--mutual"}, stdin: secret + "\n", wet: true, apply: func(m *model) bool { return m.mutual(name, user, secret) }}
}

func (o *operator) group() step {
	name, state := o.anyTarget(), one(o, "state", states...)
	return step{args: []string{"target", "set-group", name, "1", state}, apply: func(m *model) bool { return m.group(name, state) }}
}

// listen opens the second portal or closes it.
func (o *operator) listen() step {
	open := likely(o, "open", []bool{!o.m.portal}, true, false)
	return step{args: []string{"portals", map[bool]string{true: "add", false: "remove"}[open], o.second()}, apply: func(m *model) bool { return m.setPortal(open) }}
}

func (o *operator) export() step {
	name := one(o, "export", "/second", "/second", "/first")
	if rapid.Bool().Draw(o.t, "remove") {
		return step{args: []string{"exports", "remove", name, "--yes"}, apply: func(m *model) bool { return m.removeExport(name) }}
	}
	args := []string{"exports", "add", name, filepath.Join(o.dir, "exported"), "--client", "127.0.0.0/8", "--any-port"}
	if rapid.Bool().Draw(o.t, "read only") {
		args = append(args, "--read-only")
	}
	return step{args: args, apply: func(m *model) bool { return m.addExport(name) }}
}
