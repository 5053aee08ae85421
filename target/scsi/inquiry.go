package scsi

import (
	"encoding/binary"
	"encoding/hex"

	"github.com/sluice-storage/sluice/blockdev"
)

// INQUIRY peripheral qualifier and device type of a LUN that has no unit (SPC-4 section 6.6.2).
const noDevice = 0x7F

func beginInquiry(c *Command) stepResult {
	cdb := c.CDB
	alloc := int(be16(cdb[3:]))
	lu := c.x.lu
	if cdb[1]&1 == 0 {
		if cdb[2] != 0 {
			return c.end(badCDB(2)) // SPC-4 section 6.6.1: a page code without EVPD
		}
		return c.send(c.standardInquiry(), alloc)
	}
	if lu == nil {
		return c.end(badCDB(2))
	}
	page := findVPD(lu, cdb[2])
	if page == nil {
		return c.end(badCDB(2))
	}
	b := append(c.scratch(), 0, cdb[2], 0, 0)
	b = page.build(c, b)
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)-4))
	c.x.asks = lu.named(page.code, len(b), int(min(int64(alloc), c.ExpectIn))) && c.asks()
	return c.send(b, alloc)
}

// named reports whether the first n bytes of a VPD page of the given total length tell which unit it is: by the serial
// number, or by the designator that comes first in page 83h.
func (lu *LogicalUnit) named(page byte, all, n int) bool {
	switch page {
	case 0x80:
		return n >= all
	case 0x83:
		return n >= 4+4+len(lu.naa)
	}
	return false
}

func padded(dst []byte, s string, n int) []byte {
	for i := range n {
		ch := byte(' ')
		if i < len(s) && s[i] >= 0x20 && s[i] < 0x7F {
			ch = s[i]
		}
		dst = append(dst, ch)
	}
	return dst
}

func (c *Command) standardInquiry() []byte {
	lu := c.x.lu
	b := c.scratch()
	if lu == nil {
		b = append(b, noDevice, 0, 6, 0x12, 91, 0, 0, 2)
		b = padded(b, "SLUICE", 8)
		b = padded(b, "", 16)
		b = padded(b, "0001", 4)
		return append(b, make([]byte, 96-len(b))...)
	}
	rmb := byte(0)
	if lu.opt.Removable {
		rmb = 0x80
	}
	// SPC-4, HISUP, response format 2; TPGS, 3PC; MULTIP; CMDQUE.
	b = append(b, 0, rmb, 6, 0x12, 91, 0x08|c.Nexus.target.opt.ALUA.tpgs(), 0x10, 0x02)
	b = padded(b, lu.opt.Vendor, 8)
	b = padded(b, lu.opt.Product, 16)
	b = padded(b, lu.opt.Revision, 4)
	b = append(b, make([]byte, 58-len(b))...)
	// Version descriptors: SAM-5, SPC-4, SBC-3, iSCSI, no version claimed of each (SPC-4 annex D.7).
	for _, v := range [...]uint16{0x00A0, 0x0460, 0x04C0, 0x0960} {
		b = binary.BigEndian.AppendUint16(b, v)
	}
	return append(b, make([]byte, 96-len(b))...)
}

// vpd is one vital product data page.
type vpd struct {
	code    byte
	offered func(*LogicalUnit) bool
	build   func(c *Command, b []byte) []byte // appends after the header
}

var vpdPages []vpd

func init() {
	vpdPages = []vpd{
		{0x00, nil, vpdList},
		{0x80, nil, func(c *Command, b []byte) []byte { return append(b, c.x.lu.serial...) }},
		{0x83, nil, vpdIdentification},
		{0x86, nil, vpdExtendedInquiry},
		{0x87, nil, func(_ *Command, b []byte) []byte {
			// Policy page code 3Fh, subpage FFh, MLUS: every mode page is shared by all nexuses.
			return append(b, 0x3F, 0xFF, 0x80|0x01, 0)
		}},
		{0x88, nil, vpdPorts},
		{0x8F, nil, vpdThirdPartyCopy},
		{0xB0, nil, vpdBlockLimits},
		{0xB1, nil, vpdCharacteristics},
		{0xB2, nil, vpdProvisioning},
		{0xB3, nil, func(_ *Command, b []byte) []byte {
			// Referrals: user data segments have no fixed size; REPORT REFERRALS names the one there is.
			return append(b, make([]byte, 12)...)
		}},
	}
}

func findVPD(lu *LogicalUnit, code byte) *vpd {
	for i := range vpdPages {
		if p := &vpdPages[i]; p.code == code && (p.offered == nil || p.offered(lu)) {
			return p
		}
	}
	return nil
}

func vpdList(c *Command, b []byte) []byte {
	for _, p := range vpdPages {
		if p.offered == nil || p.offered(c.x.lu) {
			b = append(b, p.code)
		}
	}
	return b
}

// designator appends one designation descriptor (SPC-4 section 7.8.6.1).
func designator(b []byte, proto, codeSet, assoc, kind byte, id []byte) []byte {
	piv := byte(0)
	if assoc != 0 {
		piv = 0x80
	}
	b = append(b, proto<<4|codeSet, piv|assoc<<4|kind, 0, byte(len(id)))
	return append(b, id...)
}

// nameString is a SCSI name string: UTF-8, ended by a null and padded to four bytes.
func nameString(s string) []byte {
	b := append([]byte(s), 0)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func vpdIdentification(c *Command, b []byte) []byte {
	lu, n := c.x.lu, c.x.itl.nexus
	b = designator(b, 0, 1, 0, 3, lu.naa)
	b = designator(b, 0, 1, 0, 2, lu.eui)
	b = designator(b, 0, 2, 0, 1, append(padded(nil, lu.opt.Vendor, 8), lu.serial...))
	b = designator(b, 0, 3, 0, 8, nameString("naa."+hex.EncodeToString(lu.naa)))
	port, proto := n.opt.TargetPortGroup, n.protocol()
	b = designator(b, proto, 1, 1, 4, []byte{0, 0, byte(port >> 8), byte(port)})
	g := n.target.groupOf(port)
	b = designator(b, proto, 1, 1, 5, []byte{0, 0, byte(g >> 8), byte(g)})
	n.target.mu.Lock()
	b = n.target.portDesignatorLocked(b, port)
	n.target.mu.Unlock()
	return designator(b, protoISCSI, 3, 2, 8, nameString(n.target.opt.Name))
}

// portName is the iSCSI target port name (RFC 7143 section 4.4.1: name, "t", portal group tag).
func (t *Target) portName(port uint16) string {
	return t.opt.Name + ",t,0x" + hex.EncodeToString([]byte{byte(port >> 8), byte(port)})
}

// portDesignatorLocked appends what names a target port; t.mu is held.
func (t *Target) portDesignatorLocked(b []byte, port uint16) []byte {
	if id, is := t.srp[port]; is {
		return designator(b, protoSRP, 1, 1, 2, id[:]) // EUI-64 based, of 16 bytes (SPC-4 section 7.8.6.5.4)
	}
	return designator(b, protoISCSI, 3, 1, 8, nameString(t.portName(port)))
}

func vpdExtendedInquiry(c *Command, b []byte) []byte {
	b = append(b, make([]byte, 60)...)
	b[5] = 0x20 | 0x07 // UASK_SUP; HEADSUP, ORDSUP, SIMPSUP
	b[6] = 0x01        // V_SUP: there is a volatile cache
	b[8] = 0x10        // R_SUP: REPORT REFERRALS
	b[7] = 0x01        // LUICLR: only the I_T nexus that is affected is told
	b[13] = senseLen   // MAXIMUM SUPPORTED SENSE DATA LENGTH
	return b
}

func vpdPorts(c *Command, b []byte) []byte {
	t := c.x.itl.nexus.target
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.ports {
		b = append(b, 0, 0, byte(p>>8), byte(p), 0, 0, 0, 0)
		d := t.portDesignatorLocked(nil, p)
		b = append(b, 0, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(len(d)))
		b = append(b, d...)
	}
	return b
}

// vpdBlockLimits is page B0h in its full length of 3Ch: Windows and ESXi read UNMAP support from a page of that length only.
func vpdBlockLimits(c *Command, b []byte) []byte {
	lu := c.x.lu
	g := lu.geo.Load()
	p := make([]byte, 64)
	p[4] = 1 // WSNZ
	if lu.can(blockdev.CompareWrite) {
		p[5] = byte(min(maxCompare>>lu.shift, 255))
	}
	binary.BigEndian.PutUint16(p[6:], uint16(max(g.Physical, g.Logical)>>lu.shift))
	binary.BigEndian.PutUint32(p[8:], uint32(maxTransfer>>lu.shift))
	opt := g.OptimalIO
	if opt == 0 {
		opt = pieceSize
	}
	binary.BigEndian.PutUint32(p[12:], uint32(opt>>lu.shift))
	if lu.canUnmap() {
		binary.BigEndian.PutUint32(p[20:], uint32(lu.maxUnmapBlocks()))
		binary.BigEndian.PutUint32(p[24:], maxUnmapDescriptors)
		binary.BigEndian.PutUint32(p[28:], uint32(max(g.DiscardUnit>>lu.shift, 1)))
		binary.BigEndian.PutUint32(p[32:], 1<<31) // UGAVALID, alignment 0
	}
	binary.BigEndian.PutUint64(p[36:], uint64(maxWriteSame>>lu.shift))
	if unit, most := lu.atomicLimits(); most > 0 {
		binary.BigEndian.PutUint32(p[44:], uint32(most>>lu.shift))
		binary.BigEndian.PutUint32(p[48:], uint32(unit>>lu.shift))
		binary.BigEndian.PutUint32(p[52:], uint32(unit>>lu.shift))
	}
	return append(b, p[4:]...)
}

func (lu *LogicalUnit) maxUnmapBlocks() uint64 { return uint64(maxUnmapBytes) >> lu.shift }

func vpdCharacteristics(c *Command, b []byte) []byte {
	b = append(b, make([]byte, 60)...)
	if !c.x.lu.geo.Load().Rotational {
		b[5] = 1 // medium rotation rate: 0001h, non-rotating
	}
	if c.x.lu.opt.AllowSanitize {
		b[7] = 0x40 | 0x10 // WABEREQ and WACEREQ 01b: after an erasure reads succeed
	}
	b[8] |= 0x02 // FUAB
	return b
}

func vpdProvisioning(c *Command, b []byte) []byte {
	lu := c.x.lu
	flags, kind := byte(0), byte(0)
	if lu.canUnmap() {
		flags = 0x80 | 0x40 | 0x20 // LBPU, LBPWS, LBPWS10
		if lu.zeroReads() {
			flags |= 0x04 // LBPRZ
		}
	}
	switch {
	case lu.thin():
		kind = 2
	case lu.canUnmap():
		kind = 1
	}
	exp := byte(0)
	if lu.thin() {
		exp = byte(thresholdShift - lu.shift)
	}
	return append(b, exp, flags, kind, 0)
}
