package iscsi

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/transport"
)

// Options configure a Server.
type Options struct {
	// Memory is where all bulk data lives. With a Device every slab of it is registered there.
	Memory *mem.Pool
	// Device, when set, answers MPA requests that arrive on the listeners of Serve; it must implement ConnAccepter.
	Device transport.Device
	// Log gets a line for each login, refusal and lost session, bounded per peer. Nil logs nothing.
	Log *zap.Logger
	// Audit gets the lines about logins, refusals and ends of sessions instead of Log, bounded per peer like those.
	Audit *zap.Logger
	// DiscoveryAuth guards discovery sessions; nil lets every initiator discover.
	DiscoveryAuth *Auth
	Limits        Limits
	Timeouts      Timeouts
}

// Portal says what a listener stands for.
type Portal struct {
	// Group is the target portal group tag (RFC 7143 section 4.1.1.4), 1 to 65535; it is also the relative target port
	// identifier that SCSI commands report.
	Group uint16
	// Advertise is the address that SendTargets gives, "host:port". Empty: the listener's own address, or, where that is
	// a wildcard, the address that the asking initiator reached.
	Advertise string
	// Beside, when set, is the address of a listener of another fabric at the same place, whose portal this one is part
	// of. The portal is advertised once, unless this one has a port of its own, and UpdatePortal of that address is for
	// both.
	Beside net.Addr
}

// Target is what one iSCSI target name serves.
type Target struct {
	Name  string
	Alias string
	SCSI  *scsi.Target
	// Auth is what initiators must prove; nil asks nothing.
	Auth *Auth
	// Initiators, when not nil, lists the initiators that may log in and discover the target.
	Initiators []Initiator
	// Redirect, when set, sends every login elsewhere (RFC 7143 section 11.13.5, status 0101 and 0102).
	Redirect *Redirect
}

// Initiator is one entry of an access list.
type Initiator struct {
	Name string
	LUNs []uint16 // what it sees; nil for all, those that come later too
}

// Redirect is where a target went.
type Redirect struct {
	Address   string // "host:port[,group]" as TargetAddress has it
	Permanent bool
}

// Errors of the administrative calls.
var (
	ErrClosed      = errors.New("iscsi: the server is closed")
	ErrNoTarget    = errors.New("iscsi: no target of that name")
	ErrTargetKnown = errors.New("iscsi: a target of that name is there already")
	ErrNoSession   = errors.New("iscsi: no session of that handle")
)

func (t *Target) check() error {
	if err := iscsi.CheckName(t.Name); err != nil {
		return err
	}
	if t.SCSI == nil && t.Redirect == nil {
		return fmt.Errorf("iscsi: target %s has neither logical units nor a redirection", t.Name)
	}
	for _, i := range t.Initiators {
		if err := iscsi.CheckName(i.Name); err != nil {
			return fmt.Errorf("iscsi: target %s: access list: %w", t.Name, err)
		}
	}
	if t.Redirect != nil {
		if _, _, err := net.SplitHostPort(trimGroup(t.Redirect.Address)); err != nil {
			return fmt.Errorf("iscsi: target %s: redirection: %w", t.Name, err)
		}
	}
	return nil
}

// allow looks an initiator up in the access list: whether it may log in, and to which LUNs; nil for all.
func (t *Target) allow(name string) (luns []uint16, ok bool) {
	if t.Initiators == nil {
		return nil, true
	}
	for _, i := range t.Initiators {
		if i.Name == name {
			return i.LUNs, true
		}
	}
	return nil, false
}

// shows decides whether an initiator sees a LUN. Nothing else does.
func (t *Target) shows(initiator string, lun uint16) bool {
	luns, ok := t.allow(initiator)
	return ok && (luns == nil || slices.Contains(luns, lun))
}
