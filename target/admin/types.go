// Package admin is the administrative interface of the daemon: HTTP and JSON on a unix socket, whose peers' credentials are
// checked, described by an OpenAPI document that the service itself serves at /openapi.json. It knows no protocol and no
// socket of the data path: a Backend (target/daemon) does what a route asks.
package admin

import (
	"context"
	"strconv"
	"time"
)

// Info says what runs.
type Info struct {
	Version string    `json:"version"`
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
	Config  string    `json:"config"`    // the file it was started with
	State   string    `json:"state"`     // serving, draining
	Dir     string    `json:"state_dir"` // state directory
	// Unbound are the addresses that RDMA adapters do not serve and should; what else serves there does.
	Unbound []Unbound `json:"unbound,omitempty"`
}

// Unbound is an address that RDMA adapters do not serve. The daemon tries again by itself.
type Unbound struct {
	Provider string `json:"provider"`
	Address  string `json:"address"`
	Problem  string `json:"problem"`
	// Default says that the configuration names no provider, and that the daemon takes the adapters that there are.
	Default bool `json:"default,omitempty"`
}

// Volume is one block device as it is now.
type Volume struct {
	Name     string `json:"name"`
	Engine   string `json:"engine"`
	Path     string `json:"path,omitempty"`
	Size     int64  `json:"size"`   // bytes
	Block    int    `json:"block"`  // bytes
	How      string `json:"how"`    // how the engine does its work
	Target   string `json:"target"` // where it is mapped, empty if nowhere
	LUN      *int   `json:"lun"`    // null if nowhere
	ReadOnly bool   `json:"read_only"`
	Managed  bool   `json:"managed"` // made by this interface, not by the configuration file
	// Problem is why the volume is not served and its LUNs are not ready; empty where it is served.
	Problem string `json:"problem,omitempty"`
	// Slow is why the volume does with a few threads what io_uring would do better; empty where it has that, or wants none.
	Slow string `json:"without_io_uring,omitempty"`
}

// VolumeSpec asks for a new volume.
type VolumeSpec struct {
	Name  string `json:"name"`
	Size  int64  `json:"size"`            // bytes
	Block int    `json:"block,omitempty"` // 512 or 4096; 512 if 0
	Path  string `json:"path,omitempty"`  // NAME.img in the state directory if empty
	// RBD is an image of the Ceph cluster in place of a file: "pool/image" or "pool/namespace/image". With a size it is made, without one it is there.
	RBD string `json:"rbd,omitempty"`
	// Clone names a volume whose content the new one starts with, sharing its blocks where the file system can.
	Clone    string `json:"clone,omitempty"`
	ReadOnly bool   `json:"read_only,omitempty"` // with Clone: a snapshot
	// DryRun says what would be done and does nothing.
	DryRun bool `json:"dry_run,omitempty"`
}

// ResizeSpec asks for another size.
type ResizeSpec struct {
	Size   int64 `json:"size"` // bytes; only upwards, for initiators may have what lies at the end
	DryRun bool  `json:"dry_run,omitempty"`
}

// Target is one iSCSI target.
type Target struct {
	Name       string   `json:"name"`
	Alias      string   `json:"alias,omitempty"`
	LUNs       []LUN    `json:"luns"`
	Initiators []string `json:"initiators"` // who may log in; empty for everyone
	CHAP       bool     `json:"chap"`
	Problem    string   `json:"problem,omitempty"` // why it is not served
	Sessions   int      `json:"sessions"`
	Managed    bool     `json:"managed"`
	// SRP are the ports by which initiators of the SCSI RDMA Protocol reach it; NotSRP says why there are none, or none for anyone.
	SRP    []SRPPort `json:"srp"`
	NotSRP string    `json:"not_srp,omitempty"`
}

// SRPPort is a port of a target for the SCSI RDMA Protocol.
type SRPPort struct {
	Address string `json:"address"` // that the daemon listens at
	Group   uint16 `json:"group"`
	IDExt   string `json:"id_ext"`   // identifier extension, 16 hexadecimal digits
	IOCGUID string `json:"ioc_guid"` // GUID, 16 hexadecimal digits
}

// LUN is one entry of a target's map.
type LUN struct {
	LUN    uint16 `json:"lun"`
	Volume string `json:"volume"`
}

// PortGroup is one target port group (ALUA): portals of a target that share an access state.
type PortGroup struct {
	Group     uint16   `json:"group"`
	State     string   `json:"state"` // active/optimized, active/non-optimized, standby, unavailable, transitioning
	Preferred bool     `json:"preferred"`
	Portals   []uint16 `json:"portals"` // target portal group tags
	SetBy     string   `json:"set_by"`  // configuration, initiator, operator
}

// PortGroupSpec asks for another access state. It outlives a restart, until the configuration names another.
type PortGroupSpec struct {
	State  string `json:"state"`
	DryRun bool   `json:"dry_run,omitempty"`
}

// TargetSpec asks for a new target.
type TargetSpec struct {
	Name       string   `json:"name"`
	Alias      string   `json:"alias,omitempty"`
	Initiators []string `json:"initiators,omitempty"`
	DryRun     bool     `json:"dry_run,omitempty"`
}

// Portal is one listening address.
type Portal struct {
	Address string `json:"address"`
	Group   uint16 `json:"group"`
}

// Session is one I_T nexus that is logged in.
type Session struct {
	ID        string    `json:"id"`
	Target    string    `json:"target"`             // empty for a discovery session
	Initiator string    `json:"initiator"`          // iSCSI name, or that of an initiator port of SRP
	Transport string    `json:"transport"`          // iSER, iSCSI or SRP
	Channels  int       `json:"channels,omitempty"` // RDMA channels, of SRP
	Peer      string    `json:"peer"`               // address
	Since     time.Time `json:"since"`
	Commands  uint64    `json:"commands"`       // SCSI commands since login
	Inflight  int       `json:"inflight"`       // commands running now
	Read      uint64    `json:"read"`           // bytes to the initiator
	Written   uint64    `json:"written"`        // bytes from the initiator
	Path      *Path     `json:"path,omitempty"` // of iSER and SRP
}

// Path is how an RDMA connection's packets go.
type Path struct {
	Provider string `json:"provider"`           // iwarp, verbs
	Device   string `json:"device,omitempty"`   // the adapter
	Port     int    `json:"port,omitempty"`     // of the adapter
	GID      string `json:"gid,omitempty"`      // this side's
	Exposure string `json:"exposure,omitempty"` // what the initiator may reach of the daemon's memory
}

// String is for people: "verbs mlx5_0/1".
func (p *Path) String() string {
	if p == nil {
		return ""
	}
	s := p.Provider
	if p.Device != "" {
		s += " " + p.Device
	}
	if p.Port > 0 {
		s += "/" + strconv.Itoa(p.Port)
	}
	return s
}

// Export is one directory served by NFS.
type Export struct {
	Name    string `json:"name"`
	Path    string `json:"path"`
	Problem string `json:"problem,omitempty"` // why it is not served
	Managed bool   `json:"managed"`
}

// ExportSpec asks for a new export.
type ExportSpec struct {
	Name    string         `json:"name"` // what clients mount, "/data"
	Path    string         `json:"path"` // the directory here
	Clients []ExportClient `json:"clients,omitempty"`
	AnonUID uint32         `json:"anon_uid,omitempty"` // who squashed callers are; 65534 if 0
	AnonGID uint32         `json:"anon_gid,omitempty"`
	Async   bool           `json:"async,omitempty"` // answer changes of names and attributes before they are durable
	DryRun  bool           `json:"dry_run,omitempty"`
}

// ExportClient is one rule of an export; the first that matches counts, and without any it is for this machine alone.
type ExportClient struct {
	Match    string `json:"match"` // CIDR, address, host name, *.domain or *
	ReadOnly bool   `json:"read_only,omitempty"`
	Squash   string `json:"squash,omitempty"`   // root, all, none
	AnyPort  bool   `json:"any_port,omitempty"` // ordinary users' programs may be clients too
}

// InitiatorSpec lets one initiator log in to a target; the first one keeps out all others.
type InitiatorSpec struct {
	Name   string   `json:"name"`           // iSCSI name, or that of an initiator port of SRP
	LUNs   []uint16 `json:"luns,omitempty"` // what it sees, all if empty
	DryRun bool     `json:"dry_run,omitempty"`
}

// SecretSpec sets a CHAP secret of a target; the first one makes CHAP a must.
type SecretSpec struct {
	User string `json:"user"`
	// Initiators are the only names that the user may log in under; one that has none may use those that no other user has.
	Initiators []string `json:"initiators,omitempty"`
	Secret     string   `json:"secret"`           // at least 12 characters; it is written to a file of mode 0600 and never shown
	Mutual     bool     `json:"mutual,omitempty"` // the target's own proof instead of an initiator's
	DryRun     bool     `json:"dry_run,omitempty"`
}

// Trace is what the flight recorder of a session holds.
type Trace struct {
	Session  Session        `json:"session"`
	Ended    string         `json:"ended"` // why it is over, empty while it lives
	Events   []TraceEvent   `json:"events"`
	Commands []TraceCommand `json:"commands"`  // the last that ended, oldest first
	Inflight []TraceCommand `json:"in_flight"` // those that run, oldest first
}

// TraceEvent is one thing that happened to a session.
type TraceEvent struct {
	At   time.Time `json:"at"`
	What string    `json:"what"`
}

// TraceCommand is one SCSI command.
type TraceCommand struct {
	At      time.Time `json:"at"`      // of its end, or now
	Took    int64     `json:"took_ns"` // from its arrival
	Tag     uint64    `json:"tag"`
	LUN     uint16    `json:"lun"`
	Command string    `json:"command"`
	Outcome string    `json:"outcome"` // empty while it runs
}

// Stats are the counters of everything at one moment: what "sluice top" makes rates of.
type Stats struct {
	At       time.Time     `json:"at"`
	Volumes  []VolumeStats `json:"volumes"`
	Exports  []ExportStats `json:"exports"`
	Sessions []Session     `json:"sessions"`
	Memory   MemoryStats   `json:"memory"`
}

// VolumeStats are counters of one volume since the daemon opened it.
type VolumeStats struct {
	Name         string  `json:"name"`
	Reads        int64   `json:"reads"`
	Writes       int64   `json:"writes"`
	Others       int64   `json:"others"`
	ReadBytes    int64   `json:"read_bytes"`
	WrittenBytes int64   `json:"written_bytes"`
	Errors       int64   `json:"errors"`
	InProgress   int     `json:"in_progress"`
	ReadTimes    Latency `json:"read_times"`
	WriteTimes   Latency `json:"write_times"`
}

// ExportStats are counters of one export since it was opened.
type ExportStats struct {
	Name         string  `json:"name"`
	ReadBytes    int64   `json:"read_bytes"`
	WrittenBytes int64   `json:"written_bytes"`
	ReadTimes    Latency `json:"read_times"`
	WriteTimes   Latency `json:"write_times"`
	OtherTimes   Latency `json:"other_times"`
}

// Latency is a histogram: Counts[i] took at most Bounds[i], the last longer than all.
type Latency struct {
	Bounds []int64 `json:"bounds_ns"`
	Counts []int64 `json:"counts"`
	Sum    int64   `json:"sum_ns"`
}

// MemoryStats are bytes of registered buffers.
type MemoryStats struct {
	Used   int64 `json:"used"`
	Cached int64 `json:"cached"`
	Limit  int64 `json:"limit"`
}

// Done says what a change did, or would do.
type Done struct {
	Changes []string `json:"changes"`
	DryRun  bool     `json:"dry_run,omitempty"`
}

// Backend does what the routes ask. Its methods may be called by any goroutine. An error of type *Error decides the
// status of the answer; any other is the daemon's own fault.
type Backend interface {
	Info() Info
	Volumes() []Volume
	CreateVolume(context.Context, VolumeSpec) (Done, error)
	ResizeVolume(ctx context.Context, name string, s ResizeSpec) (Done, error)
	DeleteVolume(ctx context.Context, name string, data, dryRun bool) (Done, error)
	Targets() []Target
	CreateTarget(context.Context, TargetSpec) (Done, error)
	DeleteTarget(ctx context.Context, name string, dryRun bool) (Done, error)
	MapLUN(ctx context.Context, target string, l LUN, dryRun bool) (Done, error)
	UnmapLUN(ctx context.Context, target string, lun uint16, dryRun bool) (Done, error)
	PortGroups(target string) ([]PortGroup, error)
	SetPortGroup(ctx context.Context, target string, group uint16, s PortGroupSpec) (Done, error)
	Portals() []Portal
	AddPortal(ctx context.Context, p Portal, dryRun bool) (Done, error)
	RemovePortal(ctx context.Context, address string, dryRun bool) (Done, error)
	Exports() []Export
	CreateExport(context.Context, ExportSpec) (Done, error)
	DeleteExport(ctx context.Context, name string, dryRun bool) (Done, error)
	AllowInitiator(ctx context.Context, target string, s InitiatorSpec) (Done, error)
	DenyInitiator(ctx context.Context, target, initiator string, dryRun bool) (Done, error)
	SetSecret(ctx context.Context, target string, s SecretSpec) (Done, error)
	RemoveSecret(ctx context.Context, target, user string, dryRun bool) (Done, error)
	Trace(id string) (Trace, error)
	Stats() Stats
	Sessions() []Session
	CloseSession(ctx context.Context, id string) (Done, error)
	ShowConfig() ([]byte, error)
	ReloadConfig(ctx context.Context, dryRun bool) (Done, error)
	Drain(context.Context) (Done, error)
	// Healthy fails when the daemon does not do its work: the watchdog and /healthz ask it.
	Healthy(context.Context) error
	// Ready fails while the daemon is not, or no longer, taking sessions.
	Ready() error
}

// Kind says which HTTP status an Error has.
type Kind int

// The kinds of refusal.
const (
	Invalid  Kind = 400 // the request makes no sense
	NotFound Kind = 404 // what it names is not there
	Conflict Kind = 409 // what it asks for contradicts what is there
)

// Error is a refusal with one clear sentence.
type Error struct {
	Kind Kind   `json:"-"`
	Msg  string `json:"error"`
}

func (e *Error) Error() string { return e.Msg }
