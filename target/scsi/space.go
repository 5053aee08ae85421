package scsi

import (
	"encoding/binary"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/blockdev"
)

// thresholdShift makes threshold sets of 1 MiB (VPD B2h; THRESHOLD EXPONENT counts in blocks).
const thresholdShift = 20

// space is the room behind a thin unit; false where the device does not know.
func (lu *LogicalUnit) space() (blockdev.Space, bool) {
	s, err := blockdev.SpaceOf(lu.dev)
	return s, err == nil
}

// sets is a number of bytes in threshold sets, as far as 32 bits count.
func sets(n int64) uint32 { return uint32(min(max(n, 0)>>thresholdShift, 0xFFFFFFFF)) }

// logProvisioning is the logical block provisioning log page (SBC-3 section 6.4.5). The space that is left is shared
// with all that write to the medium (scope 10b). The space that is used is this unit's own (01b).
func logProvisioning(lu *LogicalUnit, b []byte) []byte {
	used := lu.geo.Load().Size
	count := func(code uint16, n int64, scope byte) {
		b = logParam(b, code, 0x03, append(binary.BigEndian.AppendUint32(nil, sets(n)), scope, 0, 0, 0))
	}
	if s, ok := lu.space(); ok {
		count(0x0001, s.Available, 2)
		used = s.Used
	}
	count(0x0002, used, 1)
	return b
}

// CheckSpace compares the space left with LUOptions.ThinThreshold and warns the initiators, once for each time it falls
// below: LOGICAL BLOCK PROVISIONING SOFT THRESHOLD REACHED (SBC-3 section 4.7.3.7.2). A unit whose unwritten rest still
// has room is not low. The daemon calls it from time to time; it blocks as statfs does.
func (lu *LogicalUnit) CheckSpace() {
	if lu.opt.ThinThreshold <= 0 || !lu.thin() {
		return
	}
	s, ok := lu.space()
	if !ok {
		return
	}
	low := s.Available < lu.opt.ThinThreshold && s.Available < lu.geo.Load().Size-s.Used
	if lu.low.Swap(low) == low {
		return
	}
	if !low {
		lu.log.Info("a volume has room again", zap.String("volume", lu.opt.Name), zap.Int64("available", s.Available))
		return
	}
	lu.log.Warn("a thin volume runs out of room: make some, or writes to it will fail", zap.String("volume", lu.opt.Name),
		zap.Int64("available", s.Available), zap.Int64("threshold", lu.opt.ThinThreshold), zap.Int64("unwritten", lu.geo.Load().Size-s.Used))
	lu.mu.Lock()
	report := lu.modes.current[pageErrorRecovery][5]&lbpere != 0
	one := lu.modes.current[pageProvisioning][0]&situa != 0
	lu.mu.Unlock()
	if !report {
		return
	}
	told := false
	lu.each(func(i *itl) {
		if !one || !told {
			i.attention(ASCThinThreshold)
		}
		told = true
	})
}

// Pages and bits that decide which initiators are told.
var (
	pageErrorRecovery = [2]byte{0x01}
	pageProvisioning  = [2]byte{0x1C, 0x02}
)

const (
	lbpere = 0x80 // logical block provisioning errors are reported (SBC-3 section 6.5.8)
	situa  = 0x01 // to a single initiator (SBC-3 section 6.5.9)
)

// errorRecoveryPage: AWRE, ARRE; LBPERE where there is a threshold to report.
func errorRecoveryPage(lu *LogicalUnit) []byte {
	b := []byte{0xC0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	if lu.opt.ThinThreshold > 0 {
		b[5] = lbpere
	}
	return b
}

// provisioningPage has one threshold descriptor: what is available, in threshold sets, armed for falling below.
func provisioningPage(lu *LogicalUnit) []byte {
	b := make([]byte, 20)
	if lu.opt.ThinThreshold > 0 {
		b[12] = 0x80 // ENABLED; THRESHOLD TYPE 000b, soft; THRESHOLD ARMING 000b, decreasing
		b[13] = 0x01 // THRESHOLD RESOURCE: available LBA mapping resource
		binary.BigEndian.PutUint32(b[16:], sets(lu.opt.ThinThreshold))
	}
	return b
}
