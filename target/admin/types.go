// Package admin is the administrative interface of the daemon: HTTP and JSON on a unix socket, whose peers' credentials are
// checked, described by an OpenAPI document that the service itself serves at /openapi.json. It knows no protocol and no
// socket of the data path: a Backend (target/daemon) does what a route asks.
package admin

import (
	"context"
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
}

// VolumeSpec asks for a new file volume.
type VolumeSpec struct {
	Name  string `json:"name"`
	Size  int64  `json:"size"`            // bytes
	Block int    `json:"block,omitempty"` // 512 or 4096; 512 if 0
	Path  string `json:"path,omitempty"`  // NAME.img in the state directory if empty
	// Clone names a volume whose content the new one starts with, sharing its blocks where the file system can.
	Clone string `json:"clone,omitempty"`
	// DryRun says what would be done and does nothing.
	DryRun bool `json:"dry_run,omitempty"`
}

// ResizeSpec asks for another size.
type ResizeSpec struct {
	Size   int64 `json:"size"`             // bytes
	Shrink bool  `json:"shrink,omitempty"` // what is cut off is lost; refused without this
	DryRun bool  `json:"dry_run,omitempty"`
}

// Target is one iSCSI target.
type Target struct {
	Name       string   `json:"name"`
	Alias      string   `json:"alias,omitempty"`
	LUNs       []LUN    `json:"luns"`
	Initiators []string `json:"initiators"` // who may log in; empty for everyone
	CHAP       bool     `json:"chap"`
	Sessions   int      `json:"sessions"`
	Managed    bool     `json:"managed"`
}

// LUN is one entry of a target's map.
type LUN struct {
	LUN    uint16 `json:"lun"`
	Volume string `json:"volume"`
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
	Target    string    `json:"target"`    // empty for a discovery session
	Initiator string    `json:"initiator"` // iSCSI name
	Transport string    `json:"transport"` // iSER or iSCSI
	Peer      string    `json:"peer"`      // address
	Since     time.Time `json:"since"`
	Commands  uint64    `json:"commands"` // SCSI commands since login
	Inflight  int       `json:"inflight"` // commands running now
	Read      uint64    `json:"read"`     // bytes to the initiator
	Written   uint64    `json:"written"`  // bytes from the initiator
}

// Export is one directory served by NFS.
type Export struct {
	Name string `json:"name"`
	Path string `json:"path"`
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
	Portals() []Portal
	Exports() []Export
	Sessions() []Session
	CloseSession(ctx context.Context, id string) (Done, error)
	ShowConfig() ([]byte, error)
	ReloadConfig(context.Context) (Done, error)
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
