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
	serial   string // as it was first seen; it stays while the volume is
}

type target struct {
	managed bool
	luns    map[int]string   // what the interface has mapped
	own     map[int]string   // what the file of the operator maps
	list    map[string][]int // initiators, with what they see; nil is all
	secrets map[string]string
}

func (t *target) volumeAt(lun int) string {
	if v, ok := t.own[lun]; ok {
		return v
	}
	return t.luns[lun]
}

// sees reports what an initiator that knows a secret has as a LUN.
func (t *target) sees(initiator string, lun int) string {
	if !t.letsIn(initiator) {
		return ""
	}
	if l := t.list[initiator]; l != nil && !slices.Contains(l, lun) {
		return ""
	}
	return t.volumeAt(lun)
}

func (t *target) letsIn(initiator string) bool {
	_, listed := t.list[initiator]
	return len(t.list) == 0 || listed
}

// model is what must be so.
type model struct {
	files   map[string][]byte // every image in the state directory
	volumes map[string]*volume
	targets map[string]*target
	exports map[string]bool
	sizes   map[string]int // what volumes of the operator's file were resized to
	conf    conf
}

// conf is the operator's file.
type conf struct {
	size   int  // of volume c0 in MiB; 0: not said
	second bool // volume c1 is there
	broken bool
}

const (
	confTarget = "iqn.2026-11.org.example:conf"
	madeTarget = "iqn.2026-11.org.example:made"
)

func (c conf) text(s *stand) string {
	size, second, broken := "", "", ""
	if c.size > 0 {
		size = fmt.Sprintf(", size: %dMiB", c.size)
	}
	if c.second {
		second = ", {name: c1}"
	}
	if c.broken {
		broken = "nonsense: 1\n"
	}
	return fmt.Sprintf(`state_dir: %s
timeouts: {drain: 1s}
portals: [{address: %q}]
files: {tcp: "%s:2049", rdma: none}
exports: [{name: /first, path: %s/exported, clients: [{match: "127.0.0.0/8", any_port: true}]}]
volumes: [{name: c0%s}%s]
targets: [{name: %q, luns: [{lun: 0, volume: c0}]}]
%s`, s.dir, s.portal(), s.ip, s.dir, size, second, confTarget, broken)
}

func (m *model) clone() *model {
	n := &model{files: maps.Clone(m.files), volumes: map[string]*volume{}, targets: map[string]*target{}, exports: maps.Clone(m.exports), sizes: maps.Clone(m.sizes), conf: m.conf}
	for k, v := range m.volumes {
		c := *v
		n.volumes[k] = &c
	}
	for k, t := range m.targets {
		n.targets[k] = &target{t.managed, maps.Clone(t.luns), t.own, maps.Clone(t.list), maps.Clone(t.secrets)}
	}
	return n
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

func (m *model) create(name string, size int) bool {
	file := name + ".img"
	if _, there := m.files[file]; m.volumes[name] != nil || there {
		return false // nor is a file that is there taken for an empty volume
	}
	m.files[file] = make([]byte, size)
	m.volumes[name] = &volume{file: file, managed: true}
	return true
}

func (m *model) copyOf(from, name string, readOnly bool) bool {
	if m.volumes[from] == nil || !reflink || !m.create(name, 0) {
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
	t := &target{managed: true, luns: map[int]string{}, list: map[string][]int{}, secrets: map[string]string{}}
	for _, i := range initiators {
		t.list[i] = nil
	}
	m.targets[name] = t
	return true
}

func (m *model) deleteTarget(name string) bool {
	if t := m.targets[name]; t == nil || !t.managed {
		return false
	}
	delete(m.targets, name)
	return true
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
	t := m.targets[tn]
	if t == nil || !t.managed {
		return false
	}
	t.list[initiator] = luns
	return true
}

func (m *model) deny(tn, initiator string) bool {
	t := m.targets[tn]
	if t == nil || !t.managed || len(t.list) < 2 {
		return false
	}
	if _, ok := t.list[initiator]; !ok {
		return false
	}
	delete(t.list, initiator)
	return true
}

func (m *model) secret(tn, user, secret string) bool {
	t := m.targets[tn]
	if t == nil || !t.managed || len(secret) < 12 {
		return false
	}
	t.secrets[user] = secret
	return true
}

func (m *model) removeSecret(tn, user string) bool {
	t := m.targets[tn]
	if t == nil || t.secrets[user] == "" || len(t.secrets) < 2 {
		return false
	}
	delete(t.secrets, user)
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

// load is a reload of an edited file: all of it or nothing.
func (m *model) load(c conf) bool {
	if c.broken || !c.second && m.mapped("c1") {
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
		m.volumes["c1"] = &volume{file: "c1.img"}
	case !c.second:
		delete(m.volumes, "c1")
	}
	m.conf = c
	return true
}
