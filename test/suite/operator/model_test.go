package operator

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
)

const mib = 1 << 20

// volume is what the model knows of one. Its bytes are those of its file.
type volume struct {
	file     string
	managed  bool // made by the interface, not by the file of the operator
	readOnly bool
	block    int
	serial   string // as it was first seen; it stays while the volume is
}

type target struct {
	managed bool
	luns    map[int]string   // what the interface has mapped
	own     map[int]string   // what the file of the operator maps
	list    map[string][]int // initiators, with what they see; nil is all
	secrets map[string]string
	names   map[string][]string // by user: the initiators that it is for
	mutual  [2]string           // user and secret of the target's own proof
	state   string              // of its port group
}

func newTarget(managed bool) *target {
	return &target{managed: managed, luns: map[int]string{}, own: map[int]string{}, list: map[string][]int{}, secrets: map[string]string{}, names: map[string][]string{}, state: states[0]}
}

func (t *target) clone() *target {
	n := *t
	n.luns, n.own, n.list, n.secrets, n.names = maps.Clone(t.luns), maps.Clone(t.own), maps.Clone(t.list), maps.Clone(t.secrets), maps.Clone(t.names)
	return &n
}

func (t *target) volumeAt(lun int) string {
	if v, ok := t.own[lun]; ok {
		return v
	}
	return t.luns[lun]
}

// sees reports what an initiator that is let in has as a LUN.
func (t *target) sees(initiator string, lun int) string {
	if !t.letsIn(initiator) {
		return ""
	}
	if l := t.list[initiator]; l != nil && !slices.Contains(l, lun) {
		return ""
	}
	return t.volumeAt(lun)
}

// letsIn reports whether an initiator can log in, with a secret where there are any.
func (t *target) letsIn(initiator string) bool {
	_, listed := t.list[initiator]
	return (len(t.list) == 0 || listed) && (len(t.secrets) == 0 || t.user(initiator) != "")
}

// user is whose secret an initiator can use: one that is for it, or one that has no initiators, where none is for it.
func (t *target) user(initiator string) string {
	others := ""
	for _, u := range slices.Sorted(keys(t.secrets)) {
		switch {
		case slices.Contains(t.names[u], initiator):
			return u
		case len(t.names[u]) == 0 && others == "":
			others = u
		}
	}
	return others
}

// ready reports that the port group lets commands through to the medium.
func (t *target) ready() bool { return t.state == states[0] || t.state == states[1] }

// states are the access states that are tried, the first as it is at the beginning.
var states = []string{"active/optimized", "active/non-optimized", "standby", "unavailable"}

// model is what must be so.
type model struct {
	files   map[string][]byte // every image in the state directory
	volumes map[string]*volume
	targets map[string]*target
	exports map[string]bool
	sizes   map[string]int // what volumes of the operator's file were resized to
	portal  bool           // a second one
	away    string         // a volume whose file is not there
	conf    conf
}

const (
	confTarget = "iqn.2026-11.org.example:conf"
	madeTarget = "iqn.2026-11.org.example:made"
)

func newModel() *model {
	t := newTarget(false)
	t.own[0] = "c0"
	return &model{files: map[string][]byte{}, volumes: map[string]*volume{"c0": {file: "c0.img", block: 512}}, targets: map[string]*target{confTarget: t}, exports: map[string]bool{"/first": true}, sizes: map[string]int{}}
}

func (m *model) clone() *model {
	n := *m
	n.files, n.exports, n.sizes, n.volumes, n.targets = maps.Clone(m.files), maps.Clone(m.exports), maps.Clone(m.sizes), map[string]*volume{}, map[string]*target{}
	for k, v := range m.volumes {
		c := *v
		n.volumes[k] = &c
	}
	for k, t := range m.targets {
		n.targets[k] = t.clone()
	}
	return &n
}

// key is the same for two models that are the same.
func (m *model) key() string {
	out := fmt.Sprint(m.exports, m.sizes, m.portal, m.conf)
	for _, k := range slices.Sorted(keys(m.volumes)) {
		out += fmt.Sprint(" ", k, *m.volumes[k])
	}
	for _, k := range slices.Sorted(keys(m.targets)) {
		out += fmt.Sprint(" ", k, *m.targets[k])
	}
	for _, k := range slices.Sorted(keys(m.files)) {
		out += fmt.Sprint(" ", k, len(m.files[k]))
	}
	return out
}

func (m *model) same(n *model) bool {
	return m.key() == n.key() && maps.EqualFunc(m.files, n.files, bytes.Equal)
}

// known is the size that is configured for a volume, 0 for one that has that of its file.
func (m *model) known(v string) int {
	switch {
	case m.volumes[v].managed:
		return m.size(v)
	case v == "c0":
		return max(m.conf.size*mib, m.sizes[v])
	}
	return m.sizes[v]
}

func (m *model) size(v string) int { return len(m.files[m.volumes[v].file]) }

// mapped reports that a volume is a LUN somewhere.
func (m *model) mapped(v string) bool {
	for _, t := range m.targets {
		for _, l := range []map[int]string{t.luns, t.own} {
			for _, name := range l {
				if name == v {
					return true
				}
			}
		}
	}
	return false
}

func (m *model) resizeFile(v string, size int) {
	b := make([]byte, size)
	copy(b, m.files[m.volumes[v].file])
	m.files[m.volumes[v].file] = b
}

// What follows changes the model and reports whether the daemon must do so too.

func (m *model) create(name, file string, size, block int) bool {
	if _, there := m.files[file]; m.volumes[name] != nil || there {
		return false // nor is a file that is there taken for an empty volume
	}
	m.files[file] = make([]byte, size)
	m.volumes[name] = &volume{file: file, managed: true, block: block}
	return true
}

func (m *model) copyOf(from, name string, readOnly bool) bool {
	if m.volumes[from] == nil || !reflink || !m.create(name, name+".img", 0, m.volumes[from].block) {
		return false
	}
	v := m.volumes[name]
	v.readOnly = readOnly
	m.files[v.file] = bytes.Clone(m.files[m.volumes[from].file])
	return true
}

func (m *model) resize(name string, size int) bool {
	v := m.volumes[name]
	if v == nil || size <= m.size(name) || v.readOnly {
		return false
	}
	m.resizeFile(name, size)
	if !v.managed {
		m.sizes[name] = size
	}
	return true
}

func (m *model) remove(name string, data bool) bool {
	v := m.volumes[name]
	if v == nil || !v.managed || m.mapped(name) {
		return false
	}
	if data {
		delete(m.files, v.file)
	}
	delete(m.volumes, name)
	return true
}

func (m *model) createTarget(name string, initiators []string) bool {
	if m.targets[name] != nil {
		return false
	}
	t := newTarget(true)
	for _, i := range initiators {
		t.list[i] = nil
	}
	m.targets[name] = t
	return true
}

func (m *model) deleteTarget(name string) bool {
	if m.made(name) == nil {
		return false
	}
	delete(m.targets, name)
	return true
}

// made is a target that the interface may change.
func (m *model) made(name string) *target {
	if t := m.targets[name]; t != nil && t.managed {
		return t
	}
	return nil
}

func (m *model) mapLUN(tn string, lun int, v string) bool {
	t := m.targets[tn]
	if t == nil || m.volumes[v] == nil || m.mapped(v) || t.volumeAt(lun) != "" {
		return false
	}
	t.luns[lun] = v
	return true
}

func (m *model) unmapLUN(tn string, lun int) bool {
	t := m.targets[tn]
	if t == nil || t.luns[lun] == "" {
		return false
	}
	delete(t.luns, lun)
	return true
}

func (m *model) allow(tn, initiator string, luns []int) bool {
	t := m.made(tn)
	if t == nil {
		return false
	}
	t.list[initiator] = luns
	return true
}

func (m *model) deny(tn, initiator string) bool {
	t := m.made(tn)
	if t == nil || len(t.list) < 2 {
		return false
	}
	if _, ok := t.list[initiator]; !ok {
		return false
	}
	delete(t.list, initiator)
	return true
}

// secret sets one. No user's secret is the target's own (RFC 7143 section 9.2.1).
func (m *model) secret(tn, user, secret string, initiators []string) bool {
	t := m.made(tn)
	if t == nil || len(secret) < 12 || secret == t.mutual[1] {
		return false
	}
	t.secrets[user] = secret
	if initiators != nil {
		t.names[user] = initiators
	}
	return true
}

func (m *model) mutual(tn, user, secret string) bool {
	t := m.made(tn)
	if t == nil || len(secret) < 12 || len(t.secrets) == 0 {
		return false
	}
	for _, s := range t.secrets {
		if s == secret {
			return false
		}
	}
	t.mutual = [2]string{user, secret}
	return true
}

func (m *model) removeSecret(tn, user string) bool {
	t := m.made(tn)
	switch {
	case t == nil:
		return false
	case t.mutual[0] == user:
		t.mutual = [2]string{}
		return true
	case t.secrets[user] == "" || len(t.secrets) < 2:
		return false
	}
	delete(t.secrets, user)
	delete(t.names, user)
	return true
}

func (m *model) group(tn, state string) bool {
	if m.targets[tn] == nil {
		return false
	}
	m.targets[tn].state = state
	return true
}

func (m *model) addExport(name string) bool {
	if m.exports[name] {
		return false
	}
	m.exports[name] = true
	return true
}

func (m *model) removeExport(name string) bool {
	if !m.exports[name] || name == "/first" {
		return false
	}
	delete(m.exports, name)
	return true
}

func (m *model) setPortal(there bool) bool {
	if m.portal == there {
		return false
	}
	m.portal = there
	return true
}

// load is a reload of an edited file: all of it or nothing.
func (m *model) load(c conf) bool {
	if c.wrong != "" || !c.second && m.mapped("c1") {
		return false
	}
	if c.size > 0 {
		size := max(c.size*mib, m.sizes["c0"])
		if size < m.size("c0") {
			return false
		}
		m.resizeFile("c0", size)
	}
	switch {
	case c.second && m.volumes["c1"] == nil:
		m.volumes["c1"] = &volume{file: "c1.img", block: 512}
	case !c.second:
		delete(m.volumes, "c1")
	}
	m.conf = c
	return true
}
