package daemon

import (
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

//go:generate go test -run TestDocumentsSayWhatTheFieldsDeclare -rewrite .

// Config is the configuration file. Here, and nowhere else, a key is declared: its field has the name, and in tags what counts
// where the key is left out, what it may be and what a reload makes of a change (keys.go has the tags, and what acts on them). The
// comment above a field, or behind it, is what operators read: go generate writes it to configs/sluiced.yaml,
// configs/sluiced.schema.json and docs/configuration.md, and a test fails where they differ. What is for programmers alone has an
// empty line below it. A rule about several keys together is in check.go, a default that is computed in load.go.
type Config struct {
	// Where volumes without a path, reservations, mode pages and file-handle keys live.
	// Default: /var/lib/sluice for root, else $XDG_STATE_HOME/sluice or ~/.local/state/sluice.
	StateDir string `yaml:"state_dir" json:"state_dir" otherwise:"as the text says" form:"path" example:"/var/lib/sluice" reload:"restart"`

	Log LogConfig `yaml:"log" json:"log" reload:"restart"`

	// (16 busy sessions of 16 MiB by default.)

	// Registered buffers, at most. Every byte in flight lives here. At least 32MiB.
	Memory Size `yaml:"memory" json:"memory" default:"256MiB" min:"32MiB" reload:"restart"`

	// What RDMA clients are served over: every portal, and files.rdma, by each of these at once. Default: software iWARP, RDMA
	// adapters where there are any, and as a service shared memory for programs of root on this host. One provider may stand here without a list, as "fabric: {provider: iwarp, crc: on}"; it is the only
	// one then.
	Fabric FabricConfig `yaml:"fabric" json:"fabric" reload:"restart"`

	Timeouts TimeoutsConfig `yaml:"timeouts" json:"timeouts" reload:"restart"`
	Limits   BoundsConfig   `yaml:"limits" json:"limits" reload:"restart"`

	// The administrative interface for other machines, over TLS, for holders of certificates that client_ca signed. The socket
	// admin.sock in state_dir is always there, for root and the daemon's own user. A key may be credential:NAME as well.
	Admin AdminConfig `yaml:"admin" json:"admin,omitzero" reload:"restart" file:"comment"`

	// Addresses for block sessions. One port takes iSER and iSCSI/TCP alike. Everyone who reaches a portal may log in unless
	// a target says otherwise (initiators, auth): so this file begins with this machine alone. 0.0.0.0:3260 is all of IPv4,
	// "[::]:3260" all of IPv6.
	Portals []PortalConfig `yaml:"portals" json:"portals" reload:"items"`

	// Addresses for block sessions of the SCSI RDMA Protocol (ib_srp of Linux; docs/srp.md), over each provider of fabric. There are none by default.
	// SRP has no authentication: targets with auth are not served by it, and those with initiators to the initiator ports that are named there alone.
	SRP []SRPConfig `yaml:"srp" json:"srp,omitempty" reload:"items" file:"comment"`

	// The Ceph cluster of volumes with engine rbd (docs/ceph.md).
	Ceph CephConfig `yaml:"ceph" json:"ceph,omitzero" reload:"restart" file:"comment"`

	Volumes []VolumeConfig `yaml:"volumes" json:"volumes" reload:"fixed items"`
	Targets []TargetConfig `yaml:"targets" json:"targets" reload:"items"`

	// Secrets for discovery sessions, as auth above; none by default.
	DiscoveryAuth *AuthConfig `yaml:"discovery_auth" json:"discovery_auth,omitempty" reload:"restart" file:"comment"`

	// An iSNS server to register targets and portals with (RFC 4171), "host:3205"; none by default. An iser_port is not registered: iSNS
	// cannot say of a portal that it is RDMA's alone.
	ISNS string `yaml:"isns" json:"isns,omitempty" reload:"restart" file:"comment"`

	// Directories served by NFS version 3, over TCP and RDMA.
	Exports []ExportConfig `yaml:"exports" json:"exports,omitempty" reload:"items" file:"comment"`

	// Addresses of the file service. It is there with the first export, and with this key.
	Files *FilesConfig `yaml:"files" json:"files,omitempty" reload:"presence" file:"comment"`

	embedded bool            // it is the embedded default
	source   string          // the file it was read from, for people
	empty    bool            // that file says nothing
	skipped  []managedMap    // LUNs mapped by command that cannot be: their volume is not there, or another LUN, or another volume
	touched  map[string]bool // targets whose secrets are to be read; nil for all
	managed  *managed        // what was merged in, nil without a daemon
	taken    map[string]bool // what commands made and the operator's file defines by now: "volume NAME", "target NAME", "export NAME"
	// with reads the files again, for a daemon that serves now, and merges m instead of what is written down; nil without a daemon.
	with func(now *Config, m *managed) (*Config, error)
	// asked is what the files say, where that was read by a running daemon: until it starts again, it has values of its own for some keys.
	asked *Config
}

// LogConfig says how the daemon logs to standard error.
type LogConfig struct {
	Level  string `yaml:"level" json:"level" default:"info" oneof:"debug,info,warn,error"`     // debug, info, warn, error; SIGUSR1 switches to debug and back
	Format string `yaml:"format" json:"format" default:"console" oneof:"console,json"`         // console for people, json for collectors
	Audit  string `yaml:"audit" json:"audit,omitempty" form:"path" otherwise:"standard error"` // file of JSON lines for logins, refusals and administrative changes; with everything else if empty
}

// AdminConfig opens the administrative interface to other machines, to holders of certificates that client_ca signed. The
// socket in the state directory is always there.
type AdminConfig struct {
	Listen   string `yaml:"listen" json:"listen,omitempty" form:"address" example:"0.0.0.0:3264"` // host:port; none by default
	Cert     string `yaml:"cert" json:"cert,omitempty" form:"path" example:"admin.pem"`           // PEM, as the two below
	Key      string `yaml:"key" json:"key,omitempty" form:"path" example:"admin.key"`
	ClientCA string `yaml:"client_ca" json:"client_ca,omitempty" form:"path" example:"operators.pem"`
}

// FabricConfig lists the fabrics that RDMA clients are served over.
type FabricConfig []ProviderConfig

// ProviderConfig is one of them.
type ProviderConfig struct {
	// iwarp: The software RNIC: iWARP over TCP, what Linux siw and iWARP adapters speak.
	// verbs: RDMA adapters (RoCE, InfiniBand, iWARP) through rdma-core; "sluice rdma" lists them. What is missing is logged
	// and looked for again; nothing else waits for it.
	// shm: memory shared with Sluice's own initiators on this host, by a socket a portal (docs/shm.md).
	Provider string `yaml:"provider" json:"provider" default:"iwarp" oneof:"providers" file:"each"`

	// Checksum of every frame. on: yes, but over loopback only if the peer asks; always: over loopback too; peer: only if the
	// peer asks; off: a peer that asks is refused.
	CRC string `yaml:"crc,omitempty" json:"crc,omitempty" default:"on" oneof:"on,always,off,peer" for:"provider=iwarp"`

	Devices []string `yaml:"devices,omitempty" json:"devices,omitempty" for:"provider=verbs" otherwise:"all" example:"[mlx5_0]" file:"comment"` // by name; all by default. Several entries may name different ones

	// An iWARP adapter whose RDMA Reads would open all registered memory to its clients' writes is not used; with whole-slab it is,
	// and the log says so ("sluice rdma"; RoCE, InfiniBand and siw expose nothing either way).
	Exposure string `yaml:"exposure,omitempty" json:"exposure,omitempty" default:"windows" oneof:"exposures" for:"provider=verbs"`

	// Ports in place of the portals' and of files.rdma's. An iWARP adapter shares TCP's ports, so it serves a portal by a port of its own
	// or not at all, and the log says so; software iWARP serves its clients at the portal. Nothing else here may have such a port, and
	// portals of one host, which would have one place in common, are refused.
	ISERPort int `yaml:"iser_port,omitempty" json:"iser_port,omitempty" form:"port" for:"provider=verbs" otherwise:"the portal's" example:"3261" file:"comment"`
	NFSPort  int `yaml:"nfs_port,omitempty" json:"nfs_port,omitempty" form:"port" for:"provider=verbs" otherwise:"that of files.rdma" example:"20050" file:"comment"`

	// How long an adapter of RoCE or InfiniBand waits for an acknowledgement before it sends again, rounded up to 4.096us times a power of
	// two (docs/rdma.md). By default the connection manager's. An error where the kernel cannot (before 5.1)
	AckTimeout Duration `yaml:"ack_timeout,omitempty" json:"ack_timeout,omitempty" for:"provider=verbs" otherwise:"the connection manager's" example:"60ms" file:"comment"`

	// The directory of the sockets: that of a portal with the port 3260 is 3260.sock, and that of files.rdma 20049.sock. Default: what the
	// service manager gives the daemon, /run/sluice for root, else $XDG_RUNTIME_DIR/sluice. Several entries may name different ones, as for containers.
	Sockets string `yaml:"sockets,omitempty" json:"sockets,omitempty" form:"path" for:"provider=shm" otherwise:"as the text says" example:"/run/sluice" file:"comment"`

	// Who may connect: the rights of the sockets' files, and their group. A client can read all memory that its own connection uses.
	Mode  string `yaml:"mode,omitempty" json:"mode,omitempty" for:"provider=shm" otherwise:"0600, the daemon's user and root" example:"\"0660\"" file:"comment"`
	Group string `yaml:"group,omitempty" json:"group,omitempty" for:"provider=shm" otherwise:"the daemon's" example:"disk" file:"comment"` // a name or a number

	implied bool // not configured: used where there is something to use
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
	Login Duration `yaml:"login" json:"login" default:"15s"` // from the first byte to the full-feature phase
	Peer  Duration `yaml:"peer" json:"peer" default:"60s"`   // a peer that acknowledges nothing, or moves none of the data that it asked for, for this long is gone
	Drain Duration `yaml:"drain" json:"drain" default:"10s"` // how long SIGTERM waits for running commands
}

// BoundsConfig bounds what all peers together may take.
type BoundsConfig struct {
	// (64 MiB of idle sessions by default.)

	Connections int `yaml:"connections" json:"connections" default:"1024" min:"1" max:"65536"`                // block connections open at a time, unfinished logins included
	PerHost     int `yaml:"per_host" json:"per_host" otherwise:"three quarters of connections" example:"768"` // of them by one host (an IPv4 address, an IPv6 network of 64 bits); three quarters of connections by default
}

// PortalConfig is one address that block sessions come in on, iSER and iSCSI/TCP alike.
type PortalConfig struct {
	Address string `yaml:"address" json:"address" required:"true" form:"address" example:"127.0.0.1:3260"`
	Group   uint16 `yaml:"group" json:"group" default:"1" min:"1" max:"65535"` // target portal group tag, 1 to 65535
}

// SRPConfig is one address that block sessions of the SCSI RDMA Protocol come in on.
type SRPConfig struct {
	Address string `yaml:"address" json:"address" required:"true" form:"address" example:"0.0.0.0:5555"`
	Group   uint16 `yaml:"group" json:"group" required:"true" min:"1" max:"65535" example:"2"` // relative target port identifier, 1 to 65535, which is in the identifiers of the ports; no portal above has it
}

// VolumeConfig is one block device.
type VolumeConfig struct {
	Name   string `yaml:"name" json:"name" required:"true" example:"data"`
	Engine string `yaml:"engine" json:"engine" default:"file" oneof:"engines"` // file, or rbd (an image of Ceph's); mem, null and delay are for tests

	// The file; NAME.img in state_dir by default; a block device may be named too. One that is missing leaves its LUNs not
	// ready and everything else served: "sluice volume create data" makes it, "sluice reload" finds one that came back.
	Path string `yaml:"path" json:"path,omitempty" form:"path" for:"engine=file" otherwise:"NAME.img in state_dir" example:"data.img" file:"comment"`

	// An image of the Ceph cluster, in place of a file; the engine is rbd then. "sluice volume create data 10GiB --rbd rbd/data" makes both.
	RBD *RBDConfig `yaml:"rbd" json:"rbd,omitempty" for:"engine=rbd" file:"comment"`

	Size      Size `yaml:"size" json:"size" otherwise:"the file's" example:"10GiB" reload:"grow"` // 0 or left out: as large as the file is; a larger size grows the file, a smaller one is refused by a reload
	Block     int  `yaml:"block" json:"block" default:"512" oneof:"512,4096" clone:"same"`        // logical block in bytes: 512 or 4096
	Physical  int  `yaml:"physical" json:"physical" otherwise:"4096" example:"4096" clone:"same"` // physical block in bytes
	Direct    bool `yaml:"direct" json:"direct,omitempty" for:"engine=file" clone:"same"`         // open with O_DIRECT, past the page cache
	ReadOnly  bool `yaml:"read_only" json:"read_only,omitempty"`
	Removable bool `yaml:"removable" json:"removable,omitempty" clone:"same"` // the medium can be ejected and locked
	Thick     bool `yaml:"thick" json:"thick,omitempty" for:"engine=file"`    // take all of the file's room now; initiators are not offered UNMAP
	Erase     bool `yaml:"erase" json:"erase,omitempty" clone:"same"`         // allow FORMAT UNIT and SANITIZE

	// Offer WRITE ATOMIC, up to 128KiB, whole or not at all after a loss of power: by the disk where it can (O_DIRECT and
	// RWF_ATOMIC), else by a log beside the file, PATH.redo. Engine file only.
	Atomic bool `yaml:"atomic" json:"atomic,omitempty" for:"engine=file" clone:"same"`

	LowSpace Size `yaml:"low_space" json:"low_space,omitempty" for:"engine=file" clone:"same"` // warn initiators when the file system has less than this left for the volume; 0: never

	// What initiators know the volume by is random, lies beside the file as PATH.identity (a block device's in state_dir) and
	// stays. These take another target's place; two volumes of one identity are refused.
	Serial  string `yaml:"serial" json:"serial,omitempty" otherwise:"random" length:"32"`                // unit serial number, up to 32 characters
	NAA     string `yaml:"naa" json:"naa,omitempty" otherwise:"random"`                                  // 16 or 32 hexadecimal digits, as in "naa.6001405..." of LIO
	Vendor  string `yaml:"vendor" json:"vendor,omitempty" otherwise:"SLUICE" length:"8" clone:"same"`    // of INQUIRY, up to 8 characters; SLUICE
	Product string `yaml:"product" json:"product,omitempty" otherwise:"VOLUME" length:"16" clone:"same"` // up to 16 characters; VOLUME

	Delay  Duration      `yaml:"delay" json:"delay,omitempty" for:"engine=delay"` // engine delay: how long each request waits
	Limits *LimitsConfig `yaml:"limits" json:"limits,omitempty" clone:"same"`
}

// CephConfig says which Ceph cluster, and as whom.
type CephConfig struct {
	Conf    string   `yaml:"conf" json:"conf,omitempty" form:"path" otherwise:"/etc/ceph/ceph.conf" example:"/etc/ceph/ceph.conf"`
	User    string   `yaml:"user" json:"user,omitempty" otherwise:"admin" example:"sluice"`                                                               // client.sluice, with "profile rbd" for mon and osd
	Keyring string   `yaml:"keyring" json:"keyring,omitempty" form:"path" otherwise:"what ceph.conf says" example:"/etc/ceph/ceph.client.sluice.keyring"` // the user's key
	Timeout Duration `yaml:"timeout" json:"timeout,omitempty" otherwise:"20s" example:"20s"`                                                              // how long a request waits for a cluster that is away; then initiators send it again
}

// RBDConfig names an image.
type RBDConfig struct {
	Pool      string `yaml:"pool" json:"pool" default:"rbd"`
	Namespace string `yaml:"namespace" json:"namespace,omitempty"`
	Image     string `yaml:"image" json:"image" required:"true" example:"data"`
	Snapshot  string `yaml:"snapshot" json:"snapshot,omitempty"` // of the image; the volume is read-only then

	cluster CephConfig // of the configuration
}

// LimitsConfig bounds what one volume may do, 0 meaning no bound.
type LimitsConfig struct {
	IOPS      int64 `yaml:"iops" json:"iops,omitempty" min:"1" max:"1000000000"` // requests a second, 0 for no limit
	Bandwidth Size  `yaml:"bandwidth" json:"bandwidth,omitempty"`                // bytes a second, 0 for no limit
}

// TargetConfig is one iSCSI target.
type TargetConfig struct {
	Name  string      `yaml:"name" json:"name" required:"true" example:"iqn.2026-11.io.sluice:data"`
	Alias string      `yaml:"alias" json:"alias,omitempty"`
	ALUA  string      `yaml:"alua" json:"alua,omitempty" otherwise:"implicit" oneof:"none,implicit,explicit,both" example:"implicit"` // none, implicit, explicit, both
	LUNs  []LUNConfig `yaml:"luns" json:"luns"`

	// Groups of portals that share an access state; without any, all are active/optimized.
	PortGroups []PortGroupConfig `yaml:"port_groups" json:"port_groups,omitempty" file:"comment"`

	// Who may log in. Without `initiators` everyone may; with it only those named, who see only `luns` if given: every LUN without,
	// none with [].
	Initiators []InitiatorConfig `yaml:"initiators" json:"initiators,omitempty" file:"comment"`

	// CHAP. credential:NAME is the service manager's credential of that name (LoadCredential=). The file has lines
	// "user secret initiator-name...", one "mutual user secret" for our answer, and mode 0600.
	Auth *AuthConfig `yaml:"auth" json:"auth,omitempty" file:"comment"`

	// Send initiators that log in to another address instead: "192.0.2.1:3260".
	Redirect string `yaml:"redirect" json:"redirect,omitempty" file:"comment"`
}

// PortGroupConfig is a target port group: portals that share an access state (ALUA).
type PortGroupConfig struct {
	Group     uint16   `yaml:"group" json:"group" required:"true" min:"1" max:"65535" example:"1"`                                                                                     // 1 to 65535
	Portals   []uint16 `yaml:"portals" json:"portals" required:"true" example:"[1]"`                                                                                                   // group tags of portals and of srp, as above
	State     string   `yaml:"state" json:"state,omitempty" oneof:"active/optimized,active/non-optimized,standby,unavailable" otherwise:"active/optimized" example:"active/optimized"` // active/optimized, active/non-optimized, standby, unavailable
	Preferred bool     `yaml:"preferred" json:"preferred,omitempty"`
}

// LUNConfig maps a volume into a target.
type LUNConfig struct {
	LUN    uint16 `yaml:"lun" json:"lun" max:"16383"` // 0 to 16383
	Volume string `yaml:"volume" json:"volume" required:"true" example:"data"`
}

// AuthConfig names CHAP secrets; the secrets themselves live in a file that only its owner can read.
type AuthConfig struct {
	SecretsFile string   `yaml:"secrets_file" json:"secrets_file" required:"true" form:"path" example:"secrets"`
	Algorithms  []string `yaml:"algorithms" json:"algorithms,omitempty" otherwise:"SHA3-256, SHA-256, SHA-1, MD5" example:"[SHA3-256, SHA-256, SHA-1, MD5]"`
	MutualUser  string   `yaml:"mutual_user" json:"mutual_user,omitempty" example:"target"`
}

// InitiatorConfig allows one initiator; a target with any lets in no other.
type InitiatorConfig struct {
	Name string `yaml:"name" json:"name" required:"true" example:"iqn.1993-08.org.debian:01:abcdef"`

	// A list that is left out means every LUN, later ones too; an empty one in the operator's file, none.

	LUNs []uint16 `yaml:"luns,omitzero" json:"luns,omitzero" otherwise:"all" example:"[0]"` // what it sees
}

// ExportConfig is one directory served by NFS.
type ExportConfig struct {
	Path    string         `yaml:"path" json:"path" form:"path" otherwise:"exports/NAME in state_dir" example:"/srv/data"` // default: exports/NAME in state_dir; without clients, every user of this machine may write there
	Name    string         `yaml:"name" json:"name" required:"true" example:"/data"`                                       // what clients mount
	Clients []ClientConfig `yaml:"clients" json:"clients,omitempty" otherwise:"this machine"`                              // the first rule that matches counts; no rule: this machine only
	AnonUID uint32         `yaml:"anon_uid" json:"anon_uid,omitempty" otherwise:"65534" example:"65534"`                   // who squashed callers are; 0 means 65534
	AnonGID uint32         `yaml:"anon_gid" json:"anon_gid,omitempty" otherwise:"65534" example:"65534"`
	Async   bool           `yaml:"async" json:"async,omitempty"`                 // true: changes of names and attributes do not wait for the disk
	Subtree bool           `yaml:"subtree_check" json:"subtree_check,omitempty"` // refuse handles of files that were moved out of path; after a restart files are looked for by name
}

// ClientConfig is one rule of an export; the first that matches counts.
type ClientConfig struct {
	Match    string `yaml:"match" json:"match" required:"true" example:"192.0.2.0/24"` // CIDR, address, host name, *.example.org or *
	ReadOnly bool   `yaml:"read_only" json:"read_only,omitempty"`
	Squash   string `yaml:"squash" json:"squash,omitempty" otherwise:"root" oneof:"root,all,none" example:"root"` // root, all, none
	AnyPort  bool   `yaml:"any_port" json:"any_port,omitempty"`                                                   // accept source ports of 1024 and above
}

// FilesConfig sets the addresses of the file service, NFS, MOUNT and the rest alike.
type FilesConfig struct {
	TCP     string   `yaml:"tcp" json:"tcp" default:"0.0.0.0:2049" form:"address or none"`       // NFS, MOUNT and the lock manager; none: no TCP
	RDMA    string   `yaml:"rdma" json:"rdma" default:"0.0.0.0:20049" form:"address or none"`    // none: no RDMA
	Rpcbind string   `yaml:"rpcbind" json:"rpcbind" default:"none" oneof:"none,embedded,system"` // for clients that ask port 111: embedded answers there, system registers with the rpcbind that does
	Grace   Duration `yaml:"grace" json:"grace,omitempty" otherwise:"90s" example:"90s"`         // after a restart only those who held locks get locks, so long
}
