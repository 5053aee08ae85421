package operator

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"pgregory.net/rapid"
)

// conf is the operator's file.
type conf struct {
	size   int    // of volume c0 in MiB; 0: not said
	second bool   // volume c1 is there
	beside bool   // it is defined in a file of sluiced.yaml.d
	wrong  string // a mistake, of those below
}

// mistakes are lines at the end of the file with which it is refused as a whole.
var mistakes = map[string]string{
	"an unknown key":            "nonsense: 1\n",
	"no YAML":                   "volumes: [}\n",
	"a key twice":               "volumes: []\n",
	"a number of another kind":  "limits: {connections: many}\n",
	"a unit that there is not":  "memory: 1parsec\n",
	"a value that there is not": "fabric: {crc: perhaps}\n",
	"no such volume":            "",
	"two targets of a name":     "",
	"a volume in two LUNs":      "",
	"an address that is none":   "",
	"a name that is none":       "",
}

// replaced are mistakes within the text: what is there and what takes its place.
var replaced = map[string][2]string{
	"no such volume":          {"volume: c0}", "volume: c9}"},
	"two targets of a name":   {"targets: [", "targets: [{name: \"" + confTarget + "\"}, "},
	"a volume in two LUNs":    {"volume: c0}", "volume: c0}, {lun: 5, volume: c0}"},
	"an address that is none": {":3260", ":threetwosixty"},
	"a name that is none":     {"name: \"" + confTarget, "name: \"disks"},
}

func (c conf) text(s *stand) string {
	size, second := "", ""
	if c.size > 0 {
		size = fmt.Sprintf(", size: %dMiB", c.size)
	}
	if c.second && !c.beside {
		second = ", {name: c1}"
	}
	text := fmt.Sprintf(`state_dir: %s
timeouts: {drain: 1s}
portals: [{address: %q}]
files: {tcp: "%s:3262", rdma: none}
exports: [{name: /first, path: %s/exported, clients: [{match: "127.0.0.0/8", any_port: true}]}]
volumes: [{name: c0%s}%s]
targets: [{name: %q, luns: [{lun: 0, volume: c0}]}]
`, s.dir, s.portal(), s.ip, s.dir, size, second, confTarget)
	if r, ok := replaced[c.wrong]; ok {
		return strings.Replace(text, r[0], r[1], 1)
	}
	return text + mistakes[c.wrong]
}

// put writes the file, and the one beside it.
func (c conf) put(s *stand) error {
	beside := filepath.Join(s.conf+".d", "second.yaml")
	if err := os.MkdirAll(filepath.Dir(beside), 0o755); err != nil {
		return err
	}
	if c.second && c.beside {
		if err := os.WriteFile(beside, []byte("volumes: [{name: c1}]\n"), 0o600); err != nil {
			return err
		}
	} else if err := os.Remove(beside); err != nil && !os.IsNotExist(err) {
		return err
	}
	return os.WriteFile(s.conf, []byte(c.text(s)), 0o600)
}

func (o *operator) mistake() string { return one(o, "mistake", sorted(keys(mistakes))...) }

// edit changes the operator's file and has it read.
func (o *operator) edit() step {
	c := conf{size: one(o, "size", 0, 1, 2, 3, 4), second: rapid.Bool().Draw(o.t, "second"), beside: rapid.Bool().Draw(o.t, "beside")}
	if o.chance("wrong", 2) {
		c.wrong = o.mistake()
	}
	return step{args: []string{"reload"}, edits: &c, hup: rapid.Bool().Draw(o.t, "hup"), apply: func(m *model) bool { return m.load(c) }}
}
