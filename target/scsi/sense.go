package scsi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/sluice-storage/sluice/blockdev"
)

// SenseError is a CHECK CONDITION about to happen: what went wrong and, where it is known, where. A Mover may end a move
// with one to choose what the initiator is told.
type SenseError struct {
	Key SenseKey
	ASC ASC
	// HasInfo says that Info is valid: an LBA, or an offset for MISCOMPARE (SPC-4 section 4.5.2.2).
	HasInfo bool
	Info    uint64
	// Field points into the CDB (InCDB) or the parameter list when FieldValid is set (SPC-4 section 4.5.2.4.2).
	FieldValid, InCDB bool
	Field             uint16
	BitValid          bool
	Bit               uint8
	// Progress is a progress indication when ProgressValid is set, in 65536ths.
	ProgressValid bool
	Progress      uint16
	// Specific is command-specific information when nonzero.
	Specific uint64
	// Cause is what the medium or the fabric said.
	Cause error
}

func (e *SenseError) Error() string {
	s := fmt.Sprintf("scsi: sense key %Xh, additional sense %02X/%02Xh", uint8(e.Key), uint8(e.ASC>>8), uint8(e.ASC))
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

func (e *SenseError) Unwrap() error { return e.Cause }

// statusError ends a command with a status that carries no sense data.
type statusError Status

func (e statusError) Error() string { return "scsi: " + Status(e).String() }

// errAborted ends a command that a task management function aborted; the outcome is decided by the abort.
var errAborted = errors.New("scsi: the command was aborted")

func check(key SenseKey, asc ASC) *SenseError { return &SenseError{Key: key, ASC: asc} }

// badCDB is INVALID FIELD IN CDB at a byte of the CDB.
func badCDB(field int) *SenseError {
	return &SenseError{Key: IllegalRequest, ASC: ASCInvalidFieldInCDB, FieldValid: true, InCDB: true, Field: uint16(field)}
}

func badCDBBit(field int, bit uint8) *SenseError {
	e := badCDB(field)
	e.BitValid, e.Bit = true, bit
	return e
}

// badParam is INVALID FIELD IN PARAMETER LIST at a byte of the list.
func badParam(field int) *SenseError {
	return &SenseError{Key: IllegalRequest, ASC: ASCInvalidFieldInParameters, FieldValid: true, Field: uint16(field)}
}

// ofDevice turns what a block device said into what an initiator understands. lba is where the request began.
func ofDevice(op blockdev.Op, err error, lba uint64) error {
	e := &SenseError{Cause: err}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, blockdev.ErrMiscompare):
		e.Key, e.ASC = Miscompare, ASCMiscompare
	case errors.Is(err, blockdev.ErrRange):
		e.Key, e.ASC, e.HasInfo, e.Info = IllegalRequest, ASCLBAOutOfRange, true, lba
	case errors.Is(err, blockdev.ErrReadOnly), errors.Is(err, syscall.EROFS):
		e.Key, e.ASC = DataProtect, ASCWriteProtected
	case errors.Is(err, blockdev.ErrUnsupported):
		e.Key, e.ASC = IllegalRequest, ASCInvalidOpcode
	case errors.Is(err, blockdev.ErrNoSpace), errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		// SBC-3 section 4.7.3.6: a thin provisioned unit that has no space left.
		e.Key, e.ASC = DataProtect, ASCSpaceAllocationFailed
	case errors.Is(err, blockdev.ErrAway):
		// Linux and ESXi send a command with this sense again (SPC-4 table 56: the logical unit is in process of becoming ready).
		e.Key, e.ASC = NotReady, ASCNotReadyBecoming
	case errors.Is(err, blockdev.ErrFenced):
		// Nothing comes of another attempt here: this makes a host try its other paths (SPC-4 section 5.15.2.4.5, unavailable).
		e.Key, e.ASC = NotReady, ASCALUAUnavailable
	case errors.Is(err, blockdev.ErrClosed):
		e.Key, e.ASC = NotReady, ASCNotReady
	case op == blockdev.Read || op == blockdev.Status:
		e.Key, e.ASC, e.HasInfo, e.Info = MediumError, ASCReadError, true, lba
	case op == blockdev.Flush:
		e.Key, e.ASC = MediumError, ASCWriteError
	default:
		e.Key, e.ASC, e.HasInfo, e.Info = MediumError, ASCWriteError, true, lba
	}
	return e
}

// append encodes e after dst, in descriptor format or in fixed format (SPC-4 sections 4.5.2 and 4.5.3).
func (e *SenseError) append(dst []byte, descriptor bool) []byte {
	if !descriptor {
		b := [18]byte{0: 0x70, 2: byte(e.Key), 7: 10, 12: byte(e.ASC >> 8), 13: byte(e.ASC)}
		if e.HasInfo && e.Info>>32 == 0 {
			// VALID is only for information that fits (SPC-4 section 4.5.3).
			b[0] |= 0x80
			binary.BigEndian.PutUint32(b[3:], uint32(e.Info))
		}
		if e.Specific>>32 == 0 {
			binary.BigEndian.PutUint32(b[8:], uint32(e.Specific))
		}
		e.putKeySpecific(b[15:18])
		return append(dst, b[:]...)
	}
	mark := len(dst)
	dst = append(dst, 0x72, byte(e.Key), byte(e.ASC>>8), byte(e.ASC), 0, 0, 0, 0)
	if e.HasInfo {
		dst = append(dst, 0, 0x0A, 0x80, 0)
		dst = binary.BigEndian.AppendUint64(dst, e.Info)
	}
	if e.Specific != 0 {
		dst = append(dst, 1, 0x0A, 0, 0)
		dst = binary.BigEndian.AppendUint64(dst, e.Specific)
	}
	if e.FieldValid || e.ProgressValid {
		var ks [3]byte
		e.putKeySpecific(ks[:])
		dst = append(dst, 2, 6, 0, 0, ks[0], ks[1], ks[2], 0)
	}
	dst[mark+7] = byte(len(dst) - mark - 8)
	return dst
}

func (e *SenseError) putKeySpecific(b []byte) {
	switch {
	case e.FieldValid:
		b[0] = 0x80
		if e.InCDB {
			b[0] |= 0x40
		}
		if e.BitValid {
			b[0] |= 0x08 | e.Bit&7
		}
		binary.BigEndian.PutUint16(b[1:], e.Field)
	case e.ProgressValid:
		b[0] = 0x80
		binary.BigEndian.PutUint16(b[1:], e.Progress)
	}
}
