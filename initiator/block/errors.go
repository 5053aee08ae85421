package block

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-storage/sluice/internal/iscsi"
)

// Errors of requests beside those of package blockdev. What the target's device server says is a *SenseError or a
// *StatusError, in which errors.Is finds these and blockdev's.
var (
	ErrReserved       = errors.New("block: the volume is reserved by another initiator")
	ErrTimeout        = errors.New("block: the target did not answer the command in time")
	ErrOtherUnit      = errors.New("block: another logical unit has taken the volume's place")
	ErrPowerLost      = errors.New("block: writes that were acknowledged and not flushed were lost with the target's power")
	ErrCancelled      = errors.New("block: the request was cancelled")
	ErrOutcomeUnknown = errors.New("block: the connection was lost and it is unknown whether the command took effect; it will not take effect any more")
	ErrUnsettled      = errors.New("block: the connection was lost, and the command may have taken effect or may still do so: the target could not be asked to end it")
	ErrNoPath         = errors.New("block: the target cannot be reached")
	ErrBadRequest     = errors.New("block: the request makes no sense")
	ErrBusy           = errors.New("block: the target is busy")
)

// Errors of opening a volume, beside those above.
var (
	ErrAuth     = errors.New("block: the name or secret is wrong, or one is missing")
	ErrDenied   = errors.New("block: this initiator may not use the target")
	ErrNoTarget = errors.New("block: there is no target of that name")
	ErrNoUnit   = errors.New("block: no such logical unit")
)

// LoginError is a login that the target refused, for the reason that Status gives (RFC 7143 section 11.13.5). errors.Is finds
// ErrAuth, ErrDenied, ErrNoTarget and ErrBusy in it.
type LoginError struct {
	Status  uint16
	Address string // with a redirection: where to
}

func (e *LoginError) Error() string {
	s := fmt.Sprintf("iscsi: login refused: %s (status 0x%04x)", iscsi.LoginStatus(e.Status), e.Status)
	if e.Address != "" {
		s += ": " + e.Address
	}
	return s
}

// Is maps the status to the package's errors.
func (e *LoginError) Is(target error) bool {
	switch iscsi.LoginStatus(e.Status) {
	case iscsi.LoginAuthFailed:
		return target == ErrAuth
	case iscsi.LoginNotAuthorized:
		return target == ErrDenied
	case iscsi.LoginNotFound, iscsi.LoginTargetRemoved:
		return target == ErrNoTarget
	case iscsi.LoginUnavailable, iscsi.LoginOutOfResources, iscsi.LoginTooManyConnections:
		return target == ErrBusy
	}
	return false
}

// ConnectError is a portal that could not be connected to, or where a login had no answer: an ErrNoPath, and the cause below it.
type ConnectError struct {
	Addr string
	Err  error
}

func (e *ConnectError) Error() string { return fmt.Sprintf("block: connect to %s: %v", e.Addr, e.Err) }

// Unwrap is the cause.
func (e *ConnectError) Unwrap() error { return e.Err }

// Is makes it an ErrNoPath.
func (e *ConnectError) Is(target error) bool { return target == ErrNoPath }

// unanswered is the outcome of a login step to addr that brought no answer: the context's cause where that ended it.
func unanswered(ctx context.Context, addr string, err error) error {
	var broken *iscsi.ProtocolError
	switch {
	case errors.As(err, &broken):
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return &ConnectError{addr, err}
}

// unproven is a target that did not prove itself: an ErrAuth.
type unproven struct{ error }

func (e unproven) Unwrap() error        { return e.error }
func (e unproven) Is(target error) bool { return target == ErrAuth }

// SessionError says why a session ended: the cause below it names who broke what.
type SessionError struct {
	Portal string
	Err    error
}

func (e *SessionError) Error() string {
	return fmt.Sprintf("block: session with %s ended: %v", e.Portal, e.Err)
}

// Unwrap is the cause.
func (e *SessionError) Unwrap() error { return e.Err }

// StatusError is a SCSI status other than GOOD and CHECK CONDITION (SAM-5 section 5.3.1).
type StatusError struct{ Status uint8 }

func (e *StatusError) Error() string {
	return fmt.Sprintf("block: the target answers %s", statusName(e.Status))
}

// Is maps the status to the package's errors.
func (e *StatusError) Is(target error) bool {
	switch e.Status {
	case statusReservationConflict:
		return target == ErrReserved
	case statusBusy, statusTaskSetFull:
		return target == ErrBusy
	}
	return false
}

const (
	statusGood                = 0x00
	statusCheck               = 0x02
	statusConditionMet        = 0x04
	statusBusy                = 0x08
	statusReservationConflict = 0x18
	statusTaskSetFull         = 0x28
	statusACA                 = 0x30
	statusTaskAborted         = 0x40
)

func statusName(s uint8) string {
	switch s {
	case statusGood:
		return "GOOD"
	case statusCheck:
		return "CHECK CONDITION"
	case statusConditionMet:
		return "CONDITION MET"
	case statusBusy:
		return "BUSY"
	case statusReservationConflict:
		return "RESERVATION CONFLICT"
	case statusTaskSetFull:
		return "TASK SET FULL"
	case statusACA:
		return "ACA ACTIVE"
	case statusTaskAborted:
		return "TASK ABORTED"
	}
	return fmt.Sprintf("reserved status 0x%02x", s)
}
