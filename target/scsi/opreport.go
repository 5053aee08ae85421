package scsi

import "encoding/binary"

// beginReportOpcodes is REPORT SUPPORTED OPERATION CODES, from the command table (SPC-4 section 6.35).
func beginReportOpcodes(c *Command) stepResult {
	lu := c.x.lu
	rctd, opt := c.CDB[2]&0x80 != 0, c.CDB[2]&7
	op, sa := c.CDB[3], int(be16(c.CDB[4:]))
	alloc := int(be32(c.CDB[6:]))
	if opt == 0 {
		return c.send(lu.allOpcodes(c.scratch(), rctd), alloc)
	}
	if opt > 3 {
		return c.end(badCDBBit(2, 2))
	}
	e := &table[op]
	var r *row
	switch {
	case opt == 1 && e.sas != nil:
		return c.end(badCDBBit(2, 2)) // it has service actions
	case opt == 2 && e.row != nil:
		return c.end(badCDBBit(2, 2)) // it has none
	case opt == 1, opt == 3 && e.row != nil:
		r = e.row
		if opt == 3 && sa != 0 {
			r = nil
		}
	default:
		r = e.find(sa)
	}
	if r != nil && r.offered != nil && !r.offered(lu) {
		r = nil
	}
	b := append(c.scratch(), 0, 1, 0, 0)
	if r != nil {
		b[1] = 3
		b = append(b, r.mask...)
		binary.BigEndian.PutUint16(b[2:], uint16(len(r.mask)))
		if rctd {
			b[1] |= 0x80
			b = r.appendTimeouts(b)
		}
	}
	return c.send(b, alloc)
}

func (r *row) appendTimeouts(b []byte) []byte {
	b = append(b, 0, 0x0A, 0, 0)
	b = binary.BigEndian.AppendUint32(b, 0) // no nominal command processing time is given
	return binary.BigEndian.AppendUint32(b, r.recommended)
}

func (lu *LogicalUnit) allOpcodes(b []byte, rctd bool) []byte {
	b = append(b, 0, 0, 0, 0)
	for i := range table {
		e := &table[i]
		if e.row != nil {
			b = lu.appendOpcode(b, e.row, rctd)
		}
		for _, r := range e.sas {
			if r.op == OpVariableLength {
				// Told when asked for by name. In the list they make libiscsi and others that keep 16 bytes of usage data
				// believe that the answer is wrong.
				continue
			}
			b = lu.appendOpcode(b, r, rctd)
		}
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

func (lu *LogicalUnit) appendOpcode(b []byte, r *row, rctd bool) []byte {
	if r.offered != nil && !r.offered(lu) {
		return b
	}
	sa, flags := 0, byte(0)
	if r.sa != noSA {
		sa, flags = r.sa, 1
	}
	if rctd {
		flags |= 2
	}
	b = append(b, byte(r.op), 0, byte(sa>>8), byte(sa), 0, flags, byte(r.length>>8), byte(r.length))
	if rctd {
		b = r.appendTimeouts(b)
	}
	return b
}

// beginReportTMFs is REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS (SPC-4 section 6.36).
func beginReportTMFs(c *Command) stepResult {
	// ATS, ATSS, CTSS, LURS, QTS, TRS, neither CACAS nor WAKES; QAES, QTSS, ITNRS.
	b := append(c.scratch(), 0x80|0x40|0x10|0x08|0x04|0x02, 0x04|0x02|0x01, 0, 0)
	if c.CDB[2]&0x80 != 0 { // REPD
		b[3] = 12
		b = append(b, make([]byte, 12)...)
		b[4] = 0x01                             // TMFTMOV
		binary.BigEndian.PutUint32(b[8:], 300)  // long timeout, in 100 ms
		binary.BigEndian.PutUint32(b[12:], 100) // short timeout
	}
	return c.send(b, int(be32(c.CDB[6:])))
}
