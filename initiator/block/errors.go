package block

import (
	"errors"
	"fmt"
)

// Errors of requests. Those of the SCSI device are *SenseError or *StatusError, and errors.Is finds these below them.
var (
	ErrRange          = errors.New("block: request beyond the end of the volume or not in whole blocks")
	ErrReadOnly       = errors.New("block: the volume is write-protected")
	ErrUnsupported    = errors.New("block: the target cannot do this")
	ErrMiscompare     = errors.New("block: the volume differs from what was expected")
	ErrReserved       = errors.New("block: the volume is reserved by another initiator")
	ErrMedium         = errors.New("block: the medium failed")
	ErrNoSpace        = errors.New("block: the target has no space left for the write")
	ErrTimeout        = errors.New("block: the target did not answer the command in time")
	ErrOtherUnit      = errors.New("block: another logical unit has taken the volume's place")
	ErrPowerLost      = errors.New("block: writes that were acknowledged and not flushed were lost with the target's power")
	ErrClosed         = errors.New("block: the volume is closed")
	ErrCancelled      = errors.New("block: the request was cancelled")
	ErrOutcomeUnknown = errors.New("block: the connection was lost and it is unknown whether the command took effect; it will not take effect any more")
	ErrNoPath         = errors.New("block: the target cannot be reached")
	ErrBadRequest     = errors.New("block: the request makes no sense")
)

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

// Is maps a reservation conflict to ErrReserved.
func (e *StatusError) Is(target error) bool {
	return target == ErrReserved && e.Status == statusReservationConflict
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
