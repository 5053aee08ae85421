package scsi

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"
)

// SPC-4 section 7.8 and SBC-3 section 6.6: every page that the list names is there, ends where its length says, and holds
// what initiators look for.
func TestVitalProductDataPages(t *testing.T) {
	r := newRig(t)
	r.nexus(2, func(o *NexusOptions) { o.TargetPortGroup = 2 })
	list := r.vpd(0x00)
	if !bytes.Equal(list, []byte{0x00, 0x80, 0x83, 0x86, 0x87, 0x88, 0x8F, 0xB0, 0xB1, 0xB2, 0xB3}) {
		t.Errorf("pages % X", list)
	}
	for _, p := range list {
		// Cut to its header by the allocation length, a page still names all of its length (SPC-4 section 4.2.5.6).
		b := r.good(nil, 1024, "12 01 00 00 04 00", func(b []byte) { b[2] = p })
		if int(be16(b[2:])) != len(r.vpd(p)) {
			t.Errorf("page %02X has %d bytes, or %d", p, be16(b[2:]), len(r.vpd(p)))
		}
	}
	if b := r.vpd(0x80); string(b) != "S0001" {
		t.Errorf("serial %q", b)
	}
	// 86h: HEAD OF QUEUE, ORDERED, SIMPLE; a volatile cache; referrals; sense data length. Offsets count from the header.
	if b := r.vpd(0x86); len(b) != 0x3C || b[1]&0x07 != 0x07 || b[2]&0x01 == 0 {
		t.Errorf("extended INQUIRY data % X", b)
	}
	if b := r.vpd(0x87); !bytes.Equal(b, []byte{0x3F, 0xFF, 0x81, 0}) {
		t.Errorf("mode page policy % X", b)
	}
	ports := r.vpd(0x88)
	if n := bytes.Count(ports, []byte("iqn.2026-01.example:t,t,0x000")); n != 2 || be16(ports[2:]) != 1 {
		t.Errorf("%d ports in % X", n, ports)
	}
	if b := r.vpd(0xB1); len(b) != 0x3C || be16(b) != 1 || b[4]&0x02 == 0 {
		t.Errorf("characteristics % X", b[:8])
	}
	if b := r.vpd(0xB3); len(b) != 12 {
		t.Errorf("referrals % X", b)
	}
	r.sense(IllegalRequest, ASCInvalidFieldInCDB, nil, 64, "12 01 85 00 40 00")
	r.sense(IllegalRequest, ASCInvalidFieldInCDB, nil, 64, "12 00 80 00 40 00")
	// READ CAPACITY(16): eight logical blocks of 512 in a physical one.
	if b := r.good(nil, 32, "9e 10 0000000000000000 00000020 00 00"); b[13]&0x0F != 3 || be16(b[14:])&0x3FFF != 0 {
		t.Errorf("physical block exponent % X", b[:16])
	}
}

// SPC-4 section 7.8.17: the third-party copy page is a list of descriptors that end with it, in multiples of four.
func TestThirdPartyCopyPage(t *testing.T) {
	r := newRig(t)
	b := r.vpd(0x8F)
	seen := map[uint16][]byte{}
	for off := 0; off < len(b); {
		n := int(be16(b[off+2:]))
		if n%4 != 0 || off+4+n > len(b) {
			t.Fatalf("a descriptor of %d bytes at %d of %d", n, off, len(b))
		}
		seen[be16(b[off:])] = b[off+4 : off+4+n]
		off += 4 + n
	}
	cmds := seen[0x0001]
	if len(cmds) < 9 || cmds[0] != 9 || cmds[1] != 0x83 || cmds[4] != 0x84 {
		t.Errorf("commands % X", cmds)
	}
	for _, d := range []uint16{0x0004, 0x0008, 0x8001} {
		if seen[d] == nil {
			t.Errorf("no descriptor %04X", d)
		}
	}
}

func TestTaskManagementFunctionsAreReported(t *testing.T) {
	r := newRig(t)
	b := r.good(nil, 16, "a3 0d 80 00 0000 00000010 00 00")
	if b[0] != 0xDE || b[1] != 0x07 || b[3] != 12 || b[4] != 1 || be32(b[8:]) == 0 || be32(b[12:]) == 0 {
		t.Errorf("% X", b)
	}
	if b := r.good(nil, 16, "a3 0d 00 00 0000 00000010 00 00"); b[3] != 0 {
		t.Errorf("% X", b)
	}
}

// SPC-4 section 5.18: the clock is the host's until somebody sets it, of which the others learn.
func TestTimestamp(t *testing.T) {
	r := newRig(t)
	other := r.nexus(2)
	read := func() (origin byte, at time.Time) {
		b := r.good(nil, 12, "a3 0f 00 00 0000 0000000c 00 00")
		return b[2], time.UnixMilli(int64(be16(b[4:]))<<32 | int64(be32(b[6:])))
	}
	if origin, at := read(); origin != 3 || time.Since(at).Abs() > time.Hour {
		t.Errorf("origin %d, %v", origin, at)
	}
	set := time.Date(2031, 5, 6, 7, 8, 9, 0, time.UTC)
	list := make([]byte, 12)
	binary.BigEndian.PutUint16(list[4:], uint16(set.UnixMilli()>>32))
	binary.BigEndian.PutUint32(list[6:], uint32(set.UnixMilli()))
	r.good(list, 0, "a4 0f 00 00 0000 0000000c 00 00")
	if origin, at := read(); origin != 2 || at.Sub(set).Abs() > time.Hour {
		t.Errorf("origin %d, %v", origin, at)
	}
	if res := r.run(other, nil, 0, "00 00 00 00 00 00"); res.asc() != ASCTimestampChanged {
		t.Errorf("%v %04X", res.Status, res.asc())
	}
}

// SBC-3 sections 5.18 and 5.19: an empty list, in the format that was asked for.
func TestReadDefectData(t *testing.T) {
	r := newRig(t)
	if b := r.good(nil, 8, "37 00 1d 00 00 00 00 00 08 00"); b[1] != 0x1D || be16(b[2:]) != 0 {
		t.Errorf("(10): % X", b)
	}
	if b := r.good(nil, 8, "b7 1d 00 00 00 00 00 00 00 08 00 00"); b[1] != 0x1D || be32(b[4:]) != 0 {
		t.Errorf("(12): % X", b)
	}
}

func TestDiagnostics(t *testing.T) {
	r := newRig(t)
	if b := r.good(nil, 8, "1c 01 00 00 08 00"); b[0] != 0 || be16(b[2:]) != 1 || b[4] != 0 {
		t.Errorf("supported pages % X", b)
	}
	r.sense(IllegalRequest, ASCInvalidFieldInCDB, nil, 8, "1c 01 3f 00 08 00")
	reads := len(r.disk.log)
	r.good(nil, 0, "1d 04 00 00 00 00") // the default self-test looks at the medium
	if len(r.disk.log) == reads {
		t.Error("a self-test that reads nothing")
	}
	r.sense(IllegalRequest, ASCInvalidFieldInCDB, nil, 0, "1d 64 00 00 00 00")
}

// What Windows and ESXi count on when a buffer and a command disagree: what was moved and what it would have been
// (RFC 7143 section 11.4.5), beside TestResiduals.
func TestWindowsAndESXiResiduals(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		cdb      string
		in       int
		transfer int64
	}{
		{"12 00 00 00 ff 00", 255, 96},                    // INQUIRY with room to spare: underflow
		{"28 00 00000000 00 0002 00", 512, 1024},          // two blocks into room for one: overflow
		{"28 00 00000000 00 0001 00", 4096, 512},          // one block into room for eight
		{"25 00 00000000 00 0000 00", 8, 8},               // exactly
		{"a0 00 00 000000 00000010 00 00", 16, 16},        // REPORT LUNS
		{"9e 10 0000000000000000 0000000c 00 00", 12, 12}, // cut by the allocation length, which is no residual
	} {
		res := r.run(r.n, nil, c.in, c.cdb)
		if res.Status != StatusGood || res.TransferIn != c.transfer {
			t.Errorf("%s: %v, %d bytes wanted, not %d", c.cdb, res.Status, res.TransferIn, c.transfer)
		}
	}
}
