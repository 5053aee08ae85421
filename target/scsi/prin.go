package scsi

import "encoding/binary"

// Service actions of PERSISTENT RESERVE IN and OUT (SPC-4 tables 205 and 219).
const (
	prReadKeys     = 0x00
	prReadReserve  = 0x01
	prCapabilities = 0x02
	prFullStatus   = 0x03

	prRegister        = 0x00
	prReserve         = 0x01
	prRelease         = 0x02
	prClear           = 0x03
	prPreempt         = 0x04
	prPreemptAbort    = 0x05
	prRegisterIgnore  = 0x06
	prRegisterAndMove = 0x07
)

func beginPRIn(c *Command) stepResult {
	r := c.x.lu.pr.Load()
	b := binary.BigEndian.AppendUint32(c.scratch(), r.Generation)
	b = append(b, 0, 0, 0, 0)
	switch c.CDB[1] & 0x1F {
	case prReadKeys:
		for _, g := range r.Regs {
			b = binary.BigEndian.AppendUint64(b, g.Key)
		}
	case prReadReserve:
		if r.Type != 0 {
			key := uint64(0)
			if k := r.find(r.Holder); k >= 0 && !r.Type.allRegistrants() {
				key = r.Regs[k].Key
			}
			b = binary.BigEndian.AppendUint64(b, key)
			b = append(b, 0, 0, 0, 0, 0, byte(r.Type), 0, 0)
		}
	case prCapabilities:
		b = c.x.lu.prCapabilities(b[:0], r)
		return c.send(b, int(be16(c.CDB[7:])))
	case prFullStatus:
		for _, g := range r.Regs {
			b = appendFullStatus(b, r, g)
		}
	}
	binary.BigEndian.PutUint32(b[4:], uint32(len(b)-8))
	return c.send(b, int(be16(c.CDB[7:])))
}

func (lu *LogicalUnit) prCapabilities(b []byte, r *reservations) []byte {
	// CRH, SIP_C, ATP_C; TMV and ALLOW COMMANDS 001b: TEST UNIT READY allowed, see conflictSPC2.
	flags := byte(0x10 | 0x08 | 0x04)
	if lu.durable() {
		flags |= 0x01 // PTPL_C
	}
	state := byte(0x80 | 1<<4)
	if r.APTPL {
		state |= 0x01 // PTPL_A
	}
	// Type mask: WR_EX_AR, EX_AC_RO, WR_EX_RO, EX_AC, WR_EX; EX_AC_AR.
	return append(b, 0, 8, flags, state, 0xEA, 0x01, 0, 0)
}

func appendFullStatus(b []byte, r *reservations, g registration) []byte {
	b = binary.BigEndian.AppendUint64(b, g.Key)
	flags, scopeType := byte(0), byte(0)
	if g.All {
		flags |= 2 // ALL_TG_PT
	}
	if r.holds(g.nexusID) {
		flags |= 1
		scopeType = byte(r.Type)
	}
	b = append(b, 0, 0, 0, 0, flags, scopeType, 0, 0, 0, 0)
	port := g.Port
	if g.All {
		port = 0
	}
	b = binary.BigEndian.AppendUint16(b, port)
	id := transportID(g.Initiator)
	b = binary.BigEndian.AppendUint32(b, uint32(len(id)))
	return append(b, id...)
}

// transportID is an iSCSI TransportID of format 01b: name, "i", ISID (SPC-4 section 7.6.4.6), or one of SRP.
func transportID(port string) []byte {
	if id := srpTransportID(port); id != nil {
		return id
	}
	name := nameString(port)
	for len(name) < 20 {
		name = append(name, 0)
	}
	b := []byte{0x40 | protoISCSI, 0, byte(len(name) >> 8), byte(len(name))}
	return append(b, name...)
}
