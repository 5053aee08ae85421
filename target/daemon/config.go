package daemon

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

// Config is the configuration file. configs/sluiced.yaml documents every key; a key that is not here is refused.
type Config struct {
	StateDir string         `yaml:"state_dir" json:"state_dir"`
	Log      LogConfig      `yaml:"log" json:"log"`
	Memory   Size           `yaml:"memory" json:"memory"`
	Fabric   FabricConfig   `yaml:"fabric" json:"fabric"`
	Timeouts TimeoutsConfig `yaml:"timeouts" json:"timeouts"`
	Limits   BoundsConfig   `yaml:"limits" json:"limits"`
	Portals  []PortalConfig `yaml:"portals" json:"portals"`
	Volumes  []VolumeConfig `yaml:"volumes" json:"volumes"`
	Targets  []TargetConfig `yaml:"targets" json:"targets"`
	// DiscoveryAuth guards discovery sessions; nobody needs a secret to discover without it.
	DiscoveryAuth *AuthConfig    `yaml:"discovery_auth" json:"discovery_auth,omitempty"`
	ISNS          string         `yaml:"isns" json:"isns,omitempty"`
	Exports       []ExportConfig `yaml:"exports" json:"exports,omitempty"`
	Files         *FilesConfig   `yaml:"files" json:"files,omitempty"`

	Admin AdminConfig `yaml:"admin" json:"admin,omitzero"`

	embedded bool            // it is the embedded default
	source   string          // the file it was read from, for people
	empty    bool            // that file says nothing
	skipped  []managedMap    // LUNs mapped by command that cannot be: their volume is not there, or another LUN, or another volume
	touched  map[string]bool // targets whose secrets are to be read; nil for all
	managed  *managed        // what was merged in, nil without a daemon
	taken    map[string]bool // what commands made and the operator's file defines by now: "volume NAME", "target NAME", "export NAME"
	// with reads the files again and merges m instead of what is written down; nil without a daemon.
	with func(m *managed) (*Config, error)
}

// LogConfig says how the daemon logs to standard error.
type LogConfig struct {
	Level  string `yaml:"level" json:"level"`           // debug, info, warn, error
	Format string `yaml:"format" json:"format"`         // console, json
	Audit  string `yaml:"audit" json:"audit,omitempty"` // file of logins, refusals and changes; with the rest if empty
}

// AdminConfig opens the administrative interface to other machines, to holders of certificates that client_ca signed. The
// socket in the state directory is always there.
type AdminConfig struct {
	Listen   string `yaml:"listen" json:"listen,omitempty"` // host:port, empty for none
	Cert     string `yaml:"cert" json:"cert,omitempty"`     // PEM files
	Key      string `yaml:"key" json:"key,omitempty"`
	ClientCA string `yaml:"client_ca" json:"client_ca,omitempty"`
}

// FabricConfig lists the fabrics that RDMA clients are served over.
type FabricConfig []ProviderConfig

// ProviderConfig is one of them.
type ProviderConfig struct {
	Provider string   `yaml:"provider" json:"provider"`                     // iwarp, verbs
	CRC      string   `yaml:"crc,omitempty" json:"crc,omitempty"`           // iwarp: on, always, off, peer
	Devices  []string `yaml:"devices,omitempty" json:"devices,omitempty"`   // verbs: adapters by name; all if empty
	Exposure string   `yaml:"exposure,omitempty" json:"exposure,omitempty"` // verbs: windows, whole-slab
	// verbs: ports of their own for adapters, in place of the portals' and of files.rdma's; 0 for none
	ISERPort int `yaml:"iser_port,omitempty" json:"iser_port,omitempty"`
	NFSPort  int `yaml:"nfs_port,omitempty" json:"nfs_port,omitempty"`
	// verbs: how long an adapter waits for an acknowledgement before it sends again; 0 for the connection manager's
	AckTimeout Duration `yaml:"ack_timeout,omitempty" json:"ack_timeout,omitempty"`

	implied bool // not configured: used where there are adapters
}

// UnmarshalYAML takes a list, or the one provider of older files.
func (f *FabricConfig) UnmarshalYAML(node ast.Node) error {
	if _, is := node.(*ast.SequenceNode); is {
		var l []ProviderConfig
		if err := yaml.NodeToValue(node, &l, yaml.Strict()); err != nil {
			return err
		}
		*f = append(FabricConfig{}, l...)
		return nil
	}
	var one ProviderConfig
	if err := yaml.NodeToValue(node, &one, yaml.Strict()); err != nil {
		return err
	}
	*f = FabricConfig{one}
	return nil
}

// TimeoutsConfig bounds how long a peer may keep the daemon waiting.
type TimeoutsConfig struct {
	Login Duration `yaml:"login" json:"login"`
	Peer  Duration `yaml:"peer" json:"peer"`
	Drain Duration `yaml:"drain" json:"drain"`
}

// BoundsConfig bounds what all peers together may take.
type BoundsConfig struct {
	Connections int `yaml:"connections" json:"connections"` // block connections open at a time, unfinished logins included
	PerHost     int `yaml:"per_host" json:"per_host"`       // of them by one host
}

// PortalConfig is one address that block sessions come in on, iSER and iSCSI/TCP alike.
type PortalConfig struct {
	Address string `yaml:"address" json:"address"`
	Group   uint16 `yaml:"group" json:"group"` // target portal group tag
}

// VolumeConfig is one block device.
type VolumeConfig struct {
	Name      string        `yaml:"name" json:"name"`
	Engine    string        `yaml:"engine" json:"engine"` // file, mem, null, delay
	Path      string        `yaml:"path" json:"path,omitempty"`
	Size      Size          `yaml:"size" json:"size"`
	Block     int           `yaml:"block" json:"block"`
	Physical  int           `yaml:"physical" json:"physical"`
	Direct    bool          `yaml:"direct" json:"direct,omitempty"`
	ReadOnly  bool          `yaml:"read_only" json:"read_only,omitempty"`
	Removable bool          `yaml:"removable" json:"removable,omitempty"`
	Thick     bool          `yaml:"thick" json:"thick,omitempty"`
	Erase     bool          `yaml:"erase" json:"erase,omitempty"`
	Atomic    bool          `yaml:"atomic" json:"atomic,omitempty"`
	LowSpace  Size          `yaml:"low_space" json:"low_space,omitempty"`
	Serial    string        `yaml:"serial" json:"serial,omitempty"`
	NAA       string        `yaml:"naa" json:"naa,omitempty"`
	Vendor    string        `yaml:"vendor" json:"vendor,omitempty"`
	Product   string        `yaml:"product" json:"product,omitempty"`
	Delay     Duration      `yaml:"delay" json:"delay,omitempty"`
	Limits    *LimitsConfig `yaml:"limits" json:"limits,omitempty"`
}

// LimitsConfig bounds what one volume may do, 0 meaning no bound.
type LimitsConfig struct {
	IOPS      int64 `yaml:"iops" json:"iops,omitempty"`           // requests a second
	Bandwidth Size  `yaml:"bandwidth" json:"bandwidth,omitempty"` // bytes a second
}

// TargetConfig is one iSCSI target.
type TargetConfig struct {
	Name       string            `yaml:"name" json:"name"`
	Alias      string            `yaml:"alias" json:"alias,omitempty"`
	LUNs       []LUNConfig       `yaml:"luns" json:"luns"`
	Auth       *AuthConfig       `yaml:"auth" json:"auth,omitempty"`
	Initiators []InitiatorConfig `yaml:"initiators" json:"initiators,omitempty"`
	Redirect   string            `yaml:"redirect" json:"redirect,omitempty"`
	ALUA       string            `yaml:"alua" json:"alua,omitempty"`
	PortGroups []PortGroupConfig `yaml:"port_groups" json:"port_groups,omitempty"`
}

// PortGroupConfig is a target port group: portals that share an access state (ALUA).
type PortGroupConfig struct {
	Group     uint16   `yaml:"group" json:"group"`
	Portals   []uint16 `yaml:"portals" json:"portals"` // target portal group tags
	State     string   `yaml:"state" json:"state,omitempty"`
	Preferred bool     `yaml:"preferred" json:"preferred,omitempty"`
}

// LUNConfig maps a volume into a target.
type LUNConfig struct {
	LUN    uint16 `yaml:"lun" json:"lun"`
	Volume string `yaml:"volume" json:"volume"`
}

// AuthConfig names CHAP secrets; the secrets themselves live in a file that only its owner can read.
type AuthConfig struct {
	SecretsFile string   `yaml:"secrets_file" json:"secrets_file"`
	Algorithms  []string `yaml:"algorithms" json:"algorithms,omitempty"`
	MutualUser  string   `yaml:"mutual_user" json:"mutual_user,omitempty"`
}

// InitiatorConfig allows one initiator; a target with any lets in no other.
type InitiatorConfig struct {
	Name string `yaml:"name" json:"name"`
	// LUNs is what it sees. A list that is left out means every LUN, later ones too; an empty one in the operator's file, none.
	LUNs []uint16 `yaml:"luns,omitzero" json:"luns,omitzero"`
}

// ExportConfig is one directory served by NFS.
type ExportConfig struct {
	Path    string         `yaml:"path" json:"path"` // the directory here
	Name    string         `yaml:"name" json:"name"` // the path clients mount, "/data"
	Clients []ClientConfig `yaml:"clients" json:"clients,omitempty"`
	AnonUID uint32         `yaml:"anon_uid" json:"anon_uid,omitempty"`
	AnonGID uint32         `yaml:"anon_gid" json:"anon_gid,omitempty"`
	Async   bool           `yaml:"async" json:"async,omitempty"`
	Subtree bool           `yaml:"subtree_check" json:"subtree_check,omitempty"`
}

// ClientConfig is one rule of an export; the first that matches counts.
type ClientConfig struct {
	Match    string `yaml:"match" json:"match"` // CIDR, address, host name, *.domain or *
	ReadOnly bool   `yaml:"read_only" json:"read_only,omitempty"`
	Squash   string `yaml:"squash" json:"squash,omitempty"` // root, all, none
	AnyPort  bool   `yaml:"any_port" json:"any_port,omitempty"`
}

// FilesConfig sets the addresses of the file service, NFS, MOUNT and the rest alike.
type FilesConfig struct {
	TCP     string   `yaml:"tcp" json:"tcp"`
	RDMA    string   `yaml:"rdma" json:"rdma"`
	Rpcbind string   `yaml:"rpcbind" json:"rpcbind"`       // none, embedded, system
	Grace   Duration `yaml:"grace" json:"grace,omitempty"` // for clients to reclaim locks after a restart; 0: 90 s
}

// Size is a number of bytes, written with a binary unit: 512, 64KiB, 1GiB.
type Size int64

// UnmarshalYAML parses "1GiB"; a bare number is bytes.
func (s *Size) UnmarshalYAML(node ast.Node) error {
	n, err := ParseSize(scalar(node))
	if err != nil {
		return &yaml.SyntaxError{Message: err.Error(), Token: node.GetToken()}
	}
	*s = Size(n)
	return nil
}

func scalar(node ast.Node) string {
	if s, ok := node.(*ast.StringNode); ok {
		return s.Value
	}
	return node.String()
}

// MarshalText writes the largest binary unit that divides the size.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

var units = []struct {
	name string
	n    int64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

func (s Size) String() string {
	for _, u := range units {
		if s != 0 && int64(s)%u.n == 0 {
			return strconv.FormatInt(int64(s)/u.n, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// ParseSize reads "4096", "64KiB", "1.5GiB"; K, M, G, T and KB mean the binary units too.
func ParseSize(in string) (int64, error) {
	t := strings.TrimSpace(in)
	i := strings.IndexFunc(t, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	num, unit := t, ""
	if i >= 0 {
		num, unit = t[:i], strings.TrimSpace(t[i:])
	}
	mult := int64(1)
	switch strings.ToLower(unit) {
	case "", "b":
	case "k", "kb", "kib":
		mult = 1 << 10
	case "m", "mb", "mib":
		mult = 1 << 20
	case "g", "gb", "gib":
		mult = 1 << 30
	case "t", "tb", "tib":
		mult = 1 << 40
	default:
		return 0, fmt.Errorf("%q is no size: use bytes or KiB, MiB, GiB, TiB", in)
	}
	if n, err := strconv.ParseInt(num, 10, 64); err == nil {
		if n > (1<<62)/mult {
			return 0, fmt.Errorf("%q is too large a size", in)
		}
		return n * mult, nil
	}
	f, err := strconv.ParseFloat(num, 64)
	if err != nil || f < 0 || f > float64(int64(1<<62)/mult) {
		return 0, fmt.Errorf("%q is no size: use bytes or KiB, MiB, GiB, TiB", in)
	}
	return int64(f * float64(mult)), nil
}

// Duration is a time.Duration written as "5s" or "2m".
type Duration time.Duration

// UnmarshalYAML parses "5s".
func (d *Duration) UnmarshalYAML(node ast.Node) error {
	v, err := time.ParseDuration(scalar(node))
	if err != nil || v < 0 {
		return &yaml.SyntaxError{Message: fmt.Sprintf("%q is no duration: write 500ms, 5s or 2m", scalar(node)), Token: node.GetToken()}
	}
	*d = Duration(v)
	return nil
}

// MarshalText writes the form that UnmarshalText reads.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }
