package block

import (
	"encoding/binary"
	"fmt"

	"github.com/sluice-storage/sluice/blockdev"
)

// Sense keys (SPC-4 section 4.5.6).
const (
	keyNoSense        = 0x0
	keyRecovered      = 0x1
	keyNotReady       = 0x2
	keyMedium         = 0x3
	keyHardware       = 0x4
	keyIllegalRequest = 0x5
	keyUnitAttention  = 0x6
	keyDataProtect    = 0x7
	keyAborted        = 0xb
	keyMiscompare     = 0xe
)

var senseKeys = [16]string{"NO SENSE", "RECOVERED ERROR", "NOT READY", "MEDIUM ERROR", "HARDWARE ERROR", "ILLEGAL REQUEST", "UNIT ATTENTION",
	"DATA PROTECT", "BLANK CHECK", "VENDOR SPECIFIC", "COPY ABORTED", "ABORTED COMMAND", "RESERVED", "VOLUME OVERFLOW", "MISCOMPARE", "COMPLETED"}

// SenseError is a CHECK CONDITION: the device server's own account of what is wrong.
type SenseError struct {
	Key, ASC, ASCQ uint8
	Info           uint64 // INFORMATION, when HasInfo
	HasInfo        bool
	Deferred       bool   // it is about an earlier command, and the one that reports it was not performed
	Raw            []byte // as received
}

var ascTexts = map[uint16]string{
	0x0000: "no additional sense information", 0x0400: "logical unit not ready", 0x0401: "logical unit is becoming ready",
	0x040a: "asymmetric access state transition", 0x040b: "target port in standby state", 0x040c: "target port in unavailable state",
	0x0c00: "write error", 0x0c02: "write error, reallocation failed", 0x1100: "unrecovered read error", 0x1a00: "parameter list length error",
	0x1d00: "miscompare during verify", 0x2000: "invalid command operation code", 0x2100: "logical block address out of range",
	0x2400: "invalid field in CDB", 0x2500: "logical unit not supported", 0x2600: "invalid field in parameter list", 0x2700: "write protected",
	0x2707: "space allocation failed", 0x2900: "power on, reset, or bus device reset occurred", 0x2907: "I_T nexus loss occurred",
	0x2901: "power on occurred", 0x2903: "bus device reset function occurred", 0x2a01: "mode parameters changed",
	0x2a03: "reservations preempted", 0x2a04: "reservations released", 0x2a05: "registrations preempted", 0x2a06: "asymmetric access state changed",
	0x2a09: "capacity data has changed", 0x2f00: "commands cleared by another initiator", 0x3f03: "inquiry data has changed",
	0x3f0e: "reported LUNs data has changed", 0x4400: "internal target failure", 0x4e00: "overlapped commands attempted", 0x0b00: "warning",
	0x3802: "LBA out of space", 0x3807: "thin provisioning soft threshold reached",
}

func (e *SenseError) asc() uint16 { return uint16(e.ASC)<<8 | uint16(e.ASCQ) }

func (e *SenseError) Error() string {
	s := fmt.Sprintf("block: the target answers %s", senseKeys[e.Key&15])
	if t, ok := ascTexts[e.asc()]; ok {
		s += ": " + t
	}
	s += fmt.Sprintf(" (ASC 0x%02x, ASCQ 0x%02x)", e.ASC, e.ASCQ)
	if e.HasInfo {
		s += fmt.Sprintf(", information %d", e.Info)
	}
	return s
}

// Is maps sense to the package's errors.
func (e *SenseError) Is(target error) bool {
	switch target {
	case blockdev.ErrMiscompare:
		return e.Key == keyMiscompare
	case blockdev.ErrReadOnly:
		return e.Key == keyDataProtect && e.ASC == 0x27 && e.ASCQ != 0x07
	case blockdev.ErrNoSpace: // SPACE ALLOCATION FAILED WRITE PROTECT (SBC-3 section 4.7.3.6)
		return e.Key == keyDataProtect && e.asc() == 0x2707
	case blockdev.ErrRange:
		return e.Key == keyIllegalRequest && e.ASC == 0x21
	case blockdev.ErrUnsupported:
		return e.Key == keyIllegalRequest && (e.ASC == 0x20 || e.ASC == 0x24)
	case ErrNoUnit: // LOGICAL UNIT NOT SUPPORTED
		return e.Key == keyIllegalRequest && e.ASC == 0x25
	case blockdev.ErrMedium:
		return e.Key == keyMedium || e.Key == keyHardware
	}
	return false
}

// parseSense reads fixed and descriptor sense data (SPC-4 sections 4.5.2 and 4.5.3). What is missing is zero.
func parseSense(b []byte) *SenseError {
	e := &SenseError{Raw: append([]byte(nil), b...)}
	if len(b) < 4 {
		return e
	}
	e.Deferred = b[0]&0x7f == 0x71 || b[0]&0x7f == 0x73 // SPC-4 section 4.5.7
	switch b[0] & 0x7f {
	case 0x70, 0x71:
		e.Key = b[2] & 0x0f
		if len(b) >= 8 && b[0]&0x80 != 0 {
			e.HasInfo, e.Info = true, uint64(binary.BigEndian.Uint32(b[3:]))
		}
		if len(b) >= 14 {
			e.ASC, e.ASCQ = b[12], b[13]
		}
	case 0x72, 0x73:
		e.Key, e.ASC, e.ASCQ = b[1]&0x0f, b[2], b[3]
		if len(b) < 8 {
			return e
		}
		for d := b[8:min(len(b), 8+int(b[7]))]; len(d) >= 2; d = d[2+int(d[1]):] {
			if len(d) < 2+int(d[1]) {
				break
			}
			if d[0] == 0 && d[1] >= 10 && d[2]&0x80 != 0 {
				e.HasInfo, e.Info = true, binary.BigEndian.Uint64(d[4:])
			}
		}
	}
	return e
}
