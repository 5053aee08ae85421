package scsi

import (
	"encoding/binary"
)

// logPage is one log page; build appends its parameters.
type logPage struct {
	code, sub byte
	offered   func(*LogicalUnit) bool
	build     func(lu *LogicalUnit, b []byte) []byte
}

var logPages []logPage

func init() {
	logPages = []logPage{
		{code: 0x00, build: func(lu *LogicalUnit, b []byte) []byte { return lu.listLogPages(b, false) }},
		{code: 0x00, sub: 0xFF, build: func(lu *LogicalUnit, b []byte) []byte { return lu.listLogPages(b, true) }},
		{code: 0x02, build: errorCounters(func(s *luTotals) (int64, int64) { return s.writtenBytes, s.writeErrors })},
		{code: 0x03, build: errorCounters(func(s *luTotals) (int64, int64) { return s.readBytes, s.readErrors })},
		{code: 0x05, build: errorCounters(func(s *luTotals) (int64, int64) { return 0, 0 })},
		{code: 0x06, build: func(_ *LogicalUnit, b []byte) []byte { return logCounter(b, 0, 0, 8) }}, // non-medium errors
		{code: 0x0C, offered: (*LogicalUnit).thin, build: logProvisioning},
		{code: 0x0D, build: logTemperature},
		{code: 0x0E, build: logStartStop},
		{code: 0x10, build: logSelfTest},
		{code: 0x15, build: logBackground},
		{code: 0x19, build: logPerformance},
		{code: 0x19, sub: 0x20, build: logCache},
		{code: 0x2F, build: func(lu *LogicalUnit, b []byte) []byte {
			// Informational exceptions general parameter: nothing to report, no temperature known.
			return logParam(b, 0, 0x03, []byte{0, 0, 0xFF, 0})
		}},
	}
}

// luTotals are a unit's counters over its nexuses, those that have gone included.
type luTotals struct {
	reads, writes, others   int64
	readBytes, writtenBytes int64
	readErrors, writeErrors int64
	conflicts               int64
}

func (lu *LogicalUnit) listLogPages(b []byte, subs bool) []byte {
	for _, p := range logPages {
		if p.offered != nil && !p.offered(lu) || p.sub != 0 && !subs {
			continue
		}
		b = append(b, p.code)
		if subs {
			b = append(b, p.sub)
		}
	}
	return b
}

// logParam appends one log parameter (SPC-4 section 7.3.2.2). control 03h: binary format list, 02h bounded counter.
func logParam(b []byte, code uint16, control byte, v []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, code)
	b = append(b, control, byte(len(v)))
	return append(b, v...)
}

func logCounter(b []byte, code uint16, v uint64, size int) []byte {
	var raw [8]byte
	binary.BigEndian.PutUint64(raw[:], v)
	return logParam(b, code, 0x02, raw[8-size:])
}

// errorCounters is one of the error counter pages (SPC-4 section 7.3.6): nothing is corrected here, so only what was
// processed and what could not be done counts.
func errorCounters(of func(*luTotals) (processed, failed int64)) func(*LogicalUnit, []byte) []byte {
	return func(lu *LogicalUnit, b []byte) []byte {
		s := lu.totals()
		done, failed := of(&s)
		for code := range uint16(5) {
			b = logCounter(b, code, 0, 4)
		}
		b = logCounter(b, 5, uint64(done), 8)
		return logCounter(b, 6, uint64(failed), 4)
	}
}

func logTemperature(_ *LogicalUnit, b []byte) []byte {
	b = logParam(b, 0, 0x03, []byte{0, 0xFF}) // FFh: no sensor
	return logParam(b, 1, 0x03, []byte{0, 0xFF})
}

func logStartStop(_ *LogicalUnit, b []byte) []byte {
	b = logParam(b, 3, 0x03, []byte{0xFF, 0xFF, 0xFF, 0xFF})
	return logParam(b, 4, 0x03, []byte{0, 0, 0, 0})
}

func logSelfTest(_ *LogicalUnit, b []byte) []byte {
	for code := uint16(1); code <= 20; code++ {
		b = logParam(b, code, 0x03, make([]byte, 16)) // SPC-4 section 7.3.19: no self-test was recorded
	}
	return b
}

func logBackground(_ *LogicalUnit, b []byte) []byte {
	return logParam(b, 0, 0x03, make([]byte, 12)) // no background scan active
}

// logPerformance is general statistics and performance (SPC-4 section 7.3.10).
func logPerformance(lu *LogicalUnit, b []byte) []byte {
	s := lu.totals()
	var v []byte
	for _, n := range [...]int64{s.reads, s.writes, s.readBytes >> lu.shift, s.writtenBytes >> lu.shift, 0, 0, s.others, 0} {
		v = binary.BigEndian.AppendUint64(v, uint64(n))
	}
	return logParam(b, 1, 0x03, v)
}

// logCache is cache memory statistics (SBC-3 section 6.4.4): the cache is the host's, so all reads count as they come.
func logCache(lu *LogicalUnit, b []byte) []byte {
	s := lu.totals()
	for code, n := range [...]int64{0, s.reads, 0, s.writes} {
		b = logCounter(b, uint16(code+1), uint64(n), 8)
	}
	return b
}

// beginLogSense is LOG SENSE (SPC-4 section 6.7). All values are cumulative; none can be saved.
func beginLogSense(c *Command) stepResult {
	lu := c.x.lu
	code, sub := c.CDB[2]&0x3F, c.CDB[3]
	ptr, alloc := be16(c.CDB[5:]), int(be16(c.CDB[7:]))
	if c.CDB[1]&1 != 0 {
		return c.end(badCDBBit(1, 0)) // SP: nowhere to save to
	}
	if sub == 0xFF && code != 0 {
		return c.end(badCDB(3))
	}
	for i := range logPages {
		p := &logPages[i]
		if p.code != code || p.sub != sub || p.offered != nil && !p.offered(lu) {
			continue
		}
		first := code
		if sub != 0 {
			first |= 0x40
		}
		b := append(c.scratch(), first, sub, 0, 0)
		b = p.build(lu, b)
		if code != 0 && ptr != 0 {
			var ok bool
			if b, ok = fromParameter(b, ptr); !ok {
				return c.end(badCDB(5))
			}
		}
		binary.BigEndian.PutUint16(b[2:], uint16(len(b)-4))
		return c.send(b, alloc)
	}
	return c.end(badCDB(2))
}

// fromParameter drops the parameters before the one that PARAMETER POINTER names.
func fromParameter(b []byte, ptr uint16) ([]byte, bool) {
	for off := 4; off+4 <= len(b); off += 4 + int(b[off+3]) {
		if be16(b[off:]) >= ptr {
			return append(b[:4], b[off:]...), true
		}
	}
	return b, false
}

// beginLogSelect resets counters (SPC-4 section 6.6); there are no other parameters to change.
func beginLogSelect(c *Command) stepResult {
	if c.CDB[1]&1 != 0 {
		return c.end(badCDBBit(1, 0))
	}
	if be16(c.CDB[7:]) != 0 {
		return c.end(check(IllegalRequest, ASCParameterListLength))
	}
	if c.CDB[1]&2 != 0 { // PCR
		c.x.lu.resetTotals()
		c.x.lu.attention(ASCLogParametersChanged, c.x.itl)
	}
	return stepDone
}
