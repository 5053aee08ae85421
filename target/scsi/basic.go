package scsi

import (
	"encoding/binary"
	"math/bits"
	"slices"
)

func beginTUR(*Command) stepResult { return stepDone }

// beginRequestSense returns what a unit attention or the state of the unit would have said (SPC-4 section 6.39).
func beginRequestSense(c *Command) stepResult {
	s := check(NoSense, ASCNone)
	descriptor, shown := c.CDB[1]&1 != 0, min(int64(c.CDB[4]), c.ExpectIn)
	lu := c.x.lu
	switch {
	case lu == nil:
		s = check(IllegalRequest, ASCLUNotSupported)
	default:
		if asc, ok := c.x.itl.takeAttention(); ok {
			s = check(UnitAttention, asc)
			if c.x.reports = asc; asc.ofPower() && shown < codeWithin(descriptor) {
				c.x.reports = 0
				c.x.itl.restore(asc) // it is owed to the initiator, and this much does not tell
			} else if c.x.itl.owed.Load() != 0 {
				c.x.itl.hears(c)
			}
		} else if f := lu.flags.Load(); f&flagsNotReady != 0 {
			s = lu.notReady(f)
		}
	}
	return c.send(s.append(c.scratch(), descriptor), int(c.CDB[4]))
}

// codeWithin is how much of sense data has the additional sense code in it (SPC-4 sections 4.5.2 and 4.5.3).
func codeWithin(descriptor bool) int64 {
	if descriptor {
		return 4
	}
	return 14
}

// beginReportLuns lists the LUNs that the initiator may see (SPC-4 section 6.33).
func beginReportLuns(c *Command) stepResult {
	alloc := be32(c.CDB[6:])
	n := c.Nexus
	var list []uint64
	m := *n.luns.Load()
	ordinary := func() {
		nums := make([]uint16, 0, len(m))
		for lun := range m {
			nums = append(nums, lun)
		}
		slices.Sort(nums)
		for _, lun := range nums {
			list = append(list, EncodeLUN(lun))
		}
	}
	switch c.CDB[2] {
	case 0x00:
		ordinary()
	case 0x01:
		list = append(list, wellKnownReportLUNs)
	case 0x02:
		ordinary()
		list = append(list, wellKnownReportLUNs)
	case 0x10, 0x11, 0x12:
		// Administrative and subsidiary logical units: there are none (SPC-5 table 218).
	default:
		return c.end(badCDB(2))
	}
	for _, i := range m {
		i.clearAttention(ASCLUNsChanged)
	}
	b := binary.BigEndian.AppendUint32(c.scratch(), uint32(8*len(list)))
	b = append(b, 0, 0, 0, 0)
	for _, l := range list {
		b = binary.BigEndian.AppendUint64(b, l)
	}
	return c.send(b, int(alloc))
}

func beginReadCapacity10(c *Command) stepResult {
	if be32(c.CDB[2:]) != 0 {
		return c.end(badCDB(2)) // SBC-3 section 5.15: without PMI the LBA is zero
	}
	last := min(c.x.lu.blocks()-1, 0xFFFFFFFF)
	b := binary.BigEndian.AppendUint32(c.scratch(), uint32(last))
	return c.send(binary.BigEndian.AppendUint32(b, c.x.lu.bs), 8)
}

func beginReadCapacity16(c *Command) stepResult {
	lu := c.x.lu
	if be64(c.CDB[2:]) != 0 {
		return c.end(badCDB(2))
	}
	g := lu.geo.Load()
	b := binary.BigEndian.AppendUint64(c.scratch(), lu.blocks()-1)
	b = binary.BigEndian.AppendUint32(b, lu.bs)
	b = append(b, 0, byte(bits.Len(uint(max(g.Physical/g.Logical, 1)))-1), 0, 0)
	if lu.canUnmap() {
		b[14] = 0x80 // LBPME
		if lu.zeroReads() {
			b[14] |= 0x40 // LBPRZ: what was unmapped reads as zeroes
		}
	}
	b = append(b, make([]byte, 16)...)
	return c.send(b, int(be32(c.CDB[10:])))
}
