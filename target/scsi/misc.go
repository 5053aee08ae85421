package scsi

import (
	"encoding/binary"
	"time"
)

// timestamp is the device clock of SPC-4 section 5.18: milliseconds since 1970, plus what SET TIMESTAMP says.
type timestamp struct {
	offset time.Duration
	origin byte // 010b: set by SET TIMESTAMP, 011b: by other means, here the host's clock
}

func beginReportTimestamp(c *Command) stepResult {
	lu := c.x.lu
	lu.mu.Lock()
	ts := lu.clock
	lu.mu.Unlock()
	if ts.origin == 0 {
		ts.origin = 3
	}
	ms := uint64(time.Now().Add(ts.offset).UnixMilli())
	b := append(c.scratch(), 0, 10, ts.origin, 0)
	b = append(b, byte(ms>>40), byte(ms>>32), byte(ms>>24), byte(ms>>16), byte(ms>>8), byte(ms), 0, 0)
	return c.send(b, int(be32(c.CDB[6:])))
}

func beginSetTimestamp(c *Command) stepResult {
	n := int(be32(c.CDB[6:]))
	if n == 0 {
		return stepDone
	}
	if n < 12 || n > maxParameter {
		return c.end(check(IllegalRequest, ASCParameterListLength))
	}
	return c.asyncParams(n, func(c *Command, list []byte) error {
		ms := int64(be16(list[4:]))<<32 | int64(be32(list[6:]))
		lu := c.x.lu
		lu.mu.Lock()
		lu.clock = timestamp{offset: time.Until(time.UnixMilli(ms)), origin: 2}
		lu.mu.Unlock()
		lu.attention(ASCTimestampChanged, c.x.itl)
		return nil
	})
}

// beginReadDefectData returns an empty list in the format that was asked for: there are no defects to manage here.
func beginReadDefectData(c *Command) stepResult {
	b := c.scratch()
	if c.CDB[0] == byte(OpReadDefectData10) {
		b = append(b, 0, c.CDB[2]&0x1F, 0, 0)
		return c.send(b, int(be16(c.CDB[7:])))
	}
	b = append(b, 0, c.CDB[1]&0x1F, 0, 0, 0, 0, 0, 0)
	return c.send(b, int(be32(c.CDB[6:])))
}

// beginReceiveDiagnostic knows the page of supported pages, with and without PCV (SPC-4 section 7.2).
func beginReceiveDiagnostic(c *Command) stepResult {
	if c.CDB[1]&1 != 0 && c.CDB[2] != 0 {
		return c.end(badCDB(2))
	}
	return c.send(append(c.scratch(), 0, 0, 0, 1, 0), int(be16(c.CDB[3:])))
}

// beginSendDiagnostic does a self-test: whether the medium can be read (SPC-4 section 6.43).
func beginSendDiagnostic(c *Command) stepResult {
	code, selfTest := c.CDB[1]>>5, c.CDB[1]&4 != 0
	n := int(be16(c.CDB[3:]))
	if selfTest && code != 0 || (selfTest || code != 0) && n != 0 {
		return c.end(badCDBBit(1, 7))
	}
	switch code {
	case 0, 1, 2, 4, 5, 6:
	default:
		return c.end(badCDBBit(1, 7))
	}
	if n > 0 {
		return c.asyncParams(n, func(_ *Command, list []byte) error {
			if len(list) < 4 {
				return check(IllegalRequest, ASCParameterListLength)
			}
			if list[0] != 0 || be16(list[2:]) != 0 {
				return badParam(0)
			}
			return nil
		})
	}
	if code == 4 || !selfTest && code == 0 {
		return stepDone
	}
	return c.async(func(c *Command) error { return c.verify(rw{n: min(c.x.lu.blocks(), 8)}, false) })
}

func appendBE(b []byte, v uint64, n int) []byte {
	var raw [8]byte
	binary.BigEndian.PutUint64(raw[:], v)
	return append(b, raw[8-n:]...)
}
