package scsi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
)

// What stock initiators are known to ask for, by their name.

func (r *rig) vpd(page byte) []byte {
	r.t.Helper()
	b := r.good(nil, 1024, "12 01 00 04 00 00", func(b []byte) { b[2] = page })
	if b[1] != page {
		r.t.Fatalf("page %02X answers as %02X", page, b[1])
	}
	return b[4 : 4+be16(b[2:])]
}

// Windows reads UNMAP support only from a Block Limits page of full length, with B2h beside it.
func TestWindowsWantsFullBlockLimits(t *testing.T) {
	r := newRig(t)
	b := r.vpd(0xB0)
	if len(b) != 0x3C {
		t.Fatalf("page length %02Xh", len(b))
	}
	if be32(b[16:]) == 0 || be32(b[20:]) == 0 || be32(b[24:]) == 0 || b[28]&0x80 == 0 {
		t.Errorf("UNMAP limits % X", b[16:32])
	}
	if b[0]&1 == 0 || be64(b[32:]) == 0 || b[1] == 0 {
		t.Errorf("WSNZ, WRITE SAME and COMPARE AND WRITE limits % X", b[:40])
	}
	p := r.vpd(0xB2)
	if p[1]&0xE0 != 0xE0 || p[1]&0x04 == 0 || p[2]&7 != 2 {
		t.Errorf("provisioning page % X", p)
	}
	if c := r.good(nil, 32, "9e 10 0000000000000000 00000020 00 00"); c[14]&0xC0 != 0xC0 {
		t.Errorf("LBPME and LBPRZ: % X", c[:16])
	}
	r.vpd(0x00)
	r.vpd(0x80)
	r.vpd(0x83)
}

// ESXi's VAAI: COMPARE AND WRITE for locks, WRITE SAME for zeroes, EXTENDED COPY for clones, UNMAP for space.
func TestESXiAtomicTestAndSet(t *testing.T) {
	r := newRig(t)
	old, now := pattern(1024, 1), pattern(1024, 2)
	r.good(old, 0, "2a 00 00000010 00 0002 00")
	r.good(append(bytes.Clone(old), now...), 0, "89 00 0000000000000010 000000 02 00 00")
	sameBytes(t, "medium", r.disk.data[0x10*512:0x12*512], now)
	wrong := bytes.Clone(now)
	wrong[700]++
	res := r.sense(Miscompare, ASCMiscompare, append(wrong, old...), 0, "89 00 0000000000000010 000000 02 00 00")
	if off := be32(res.Sense[3:]); off != 700 || res.Sense[0]&0x80 == 0 {
		t.Errorf("miscompare at %d", off)
	}
	sameBytes(t, "medium after a miscompare", r.disk.data[0x10*512:0x12*512], now)
	r.sense(IllegalRequest, ASCInvalidFieldInCDB, make([]byte, 2*129*512), 0, "89 00 0000000000000010 000000 81 00 00")
	r.sense(IllegalRequest, ASCInvalidFieldInCDB, make([]byte, 512), 0, "89 00 0000000000000010 000000 01 00 00")
}

func TestESXiWriteSameAndUnmap(t *testing.T) {
	r := newRig(t)
	r.good(pattern(64<<10, 3), 0, "2a 00 00000000 00 0080 00")
	r.good(make([]byte, 512), 0, "93 08 0000000000000008 00000010 00 00")
	if r.disk.mapped[8] || !r.disk.mapped[24] || !bytes.Equal(r.disk.data[8*512:24*512], make([]byte, 16*512)) {
		t.Error("WRITE SAME with UNMAP")
	}
	block := pattern(512, 9)
	r.good(block, 0, "41 00 00000008 00 0400 00")
	for b := 8; b < 8+0x400; b++ {
		sameBytes(t, "WRITE SAME", r.disk.data[b*512:(b+1)*512], block)
	}
	r.good(nil, 0, "93 01 0000000000000008 00000002 00 00") // NDOB
	if !bytes.Equal(r.disk.data[8*512:10*512], make([]byte, 1024)) {
		t.Error("WRITE SAME with NDOB")
	}
	r.good(block, 0, "7f 00 00 00 00 00 00 18 00 0d 00 00 0000000000000064 00000000 0000 0000 00000001")
	sameBytes(t, "WRITE SAME(32)", r.disk.data[0x64*512:0x65*512], block)
	r.sense(IllegalRequest, ASCInvalidFieldInCDB, block, 0, "93 00 0000000000000008 00000000 00 00")

	list := make([]byte, 8+32)
	binary.BigEndian.PutUint16(list, 38)
	binary.BigEndian.PutUint16(list[2:], 32)
	binary.BigEndian.PutUint64(list[8:], 100)
	binary.BigEndian.PutUint32(list[16:], 50)
	binary.BigEndian.PutUint64(list[24:], 200)
	binary.BigEndian.PutUint32(list[32:], 1)
	r.good(list, 0, "42 00 00 00 00 00 00 0028 00")
	if r.disk.mapped[100] || r.disk.mapped[149] || !r.disk.mapped[150] || r.disk.mapped[200] {
		t.Error("UNMAP")
	}
	b := r.good(nil, 8+16*4, "9e 12 0000000000000064 00000048 00 00")
	if n := be32(b); n != 4+16*4 || be64(b[8:]) != 100 || be32(b[16:]) != 50 || b[20] != 1 || be64(b[24:]) != 150 || b[36] != 0 {
		t.Errorf("GET LBA STATUS: % X", b)
	}
	r.sense(IllegalRequest, ASCLBAOutOfRange, nil, 24, "9e 12 0000000000004000 00000018 00 00")
	binary.BigEndian.PutUint64(list[24:], 1<<40)
	r.sense(IllegalRequest, ASCLBAOutOfRange, list, 0, "42 00 00 00 00 00 00 0028 00")
	r.sense(IllegalRequest, ASCParameterListLength, list[:4], 0, "42 00 00 00 00 00 00 0004 00")
}

func (r *rig) xcopy(src, dst uint64, blocks uint16, id []byte) result {
	return r.xcopyTo(1, 3, src, dst, blocks, id)
}

// xcopyTo names the unit by a designator of any kind.
func (r *rig) xcopyTo(codeSet, kind byte, src, dst uint64, blocks uint16, id []byte) result {
	list := make([]byte, 16+32+28)
	binary.BigEndian.PutUint16(list[2:], 32)
	binary.BigEndian.PutUint32(list[8:], 28)
	d := list[16:]
	d[0], d[4], d[5], d[7] = 0xE4, codeSet, kind, byte(len(id))
	copy(d[8:], id)
	s := list[48:]
	s[0], s[3] = 2, 0x18
	binary.BigEndian.PutUint16(s[10:], blocks)
	binary.BigEndian.PutUint64(s[12:], src)
	binary.BigEndian.PutUint64(s[20:], dst)
	return r.run(r.n, list, 0, "83 00 0000000000000000 0000004c 00 00")
}

func TestESXiExtendedCopy(t *testing.T) {
	r := newRig(t)
	want := pattern(3<<20, 7)
	r.good(want, 0, "8a 00 0000000000000000 00001800 00 00")
	if res := r.xcopy(0, 0x2000, 0x1800, r.lu.naa[:]); res.Status != StatusGood {
		t.Fatalf("%v %X/%04X", res.Status, res.key(), res.asc())
	}
	sameBytes(t, "copy", r.disk.data[0x2000*512:0x2000*512+len(want)], want)
	// Overlapping, upwards.
	if res := r.xcopy(0, 1, 0x1800, r.lu.naa[:]); res.Status != StatusGood {
		t.Fatal(res.Status)
	}
	sameBytes(t, "overlapping copy", r.disk.data[512:512+len(want)], want)
	if b := r.good(nil, 64, "84 00 00 00 00 00 00 00 00 00 00000040 00 00"); b[4] != 1 || be16(b[5:]) != 1 {
		t.Errorf("copy status % X", b[:12])
	}
	if res := r.xcopy(0, 1, 1, []byte{1, 2, 3, 4, 5, 6, 7, 8}); res.key() != CopyAborted || res.asc() != ASCCopyTargetUnreachable {
		t.Errorf("unknown unit: %X/%04X", res.key(), res.asc())
	}
	if res := r.xcopy(0, 1<<32, 1, r.lu.naa[:]); res.key() != CopyAborted || res.asc() != ASCNone {
		t.Errorf("beyond the end: %X/%04X", res.key(), res.asc())
	}
	if b := r.good(nil, 64, "84 03 00 00 00 00 00 00 00 00 00000040 00 00"); be16(b[8:]) == 0 || b[43] != 2 {
		t.Errorf("operating parameters % X", b)
	}
}

// Linux sd reads these, and multipath wants an identity that is the same on every path.
func TestLinuxIdentity(t *testing.T) {
	r := newRig(t)
	second := r.target.NewNexus(NexusOptions{InitiatorName: "iqn.x", TargetPortGroup: 2, Memory: r.pool.Quota(1 << 20)})
	a := r.vpd(0x83)
	b := r.run(second, nil, 1024, "12 01 83 04 00 00").in[4:]
	ids := func(p []byte) (naa, port []byte) {
		for len(p) >= 4 && p[3] > 0 {
			switch p[1] & 0x3F {
			case 0x03:
				naa = p[4 : 4+p[3]]
			case 0x14:
				port = p[4 : 4+p[3]]
			}
			p = p[4+p[3]:]
		}
		return
	}
	n1, p1 := ids(a)
	n2, p2 := ids(b)
	if len(n1) != 8 || n1[0]>>4 != 3 || !bytes.Equal(n1, n2) || bytes.Equal(p1, p2) {
		t.Errorf("naa % X and % X, ports % X and % X", n1, n2, p1, p2)
	}
	again := newRig(t)
	if !bytes.Equal(again.lu.naa[:], n1) {
		t.Error("identity changes with a restart")
	}
	if c := r.vpd(0xB1); be16(c) != 1 {
		t.Error("not shown as non-rotating")
	}
}

// Linux sd takes FUA from DPOFUA, the cache from WCE, and sends SYNCHRONIZE CACHE.
func TestLinuxCacheAndFUA(t *testing.T) {
	r := newRig(t)
	b := r.good(nil, 255, "1a 08 08 00 ff 00")
	if b[2]&0x10 == 0 || b[4]&0x3F != 8 || b[6]&4 == 0 {
		t.Errorf("% X", b[:8])
	}
	var fua []bool
	r.disk.fail = func(q *blockdev.Request) error {
		if q.Op == blockdev.Write {
			fua = append(fua, q.FUA)
		}
		return nil
	}
	r.good(make([]byte, 512), 0, "2a 00 00000000 00 0001 00")
	r.good(make([]byte, 512), 0, "2a 08 00000000 00 0001 00")
	// WCE off: every write is durable before its status.
	sel := append([]byte{0, 0, 0, 0, 0x08, 18, 0}, make([]byte, 17)...)
	r.good(sel, 0, "15 10 00 00 18 00")
	r.good(make([]byte, 512), 0, "2a 00 00000000 00 0001 00")
	if len(fua) != 3 || fua[0] || !fua[1] || !fua[2] {
		t.Errorf("FUA %v", fua)
	}
	n := len(r.disk.log)
	r.good(nil, 0, "35 00 00000000 00 0000 00")
	if r.disk.log[n] != blockdev.Flush {
		t.Error("SYNCHRONIZE CACHE does not flush")
	}
}

func TestVerifyComparesInEveryMode(t *testing.T) {
	r := newRig(t)
	data := pattern(300<<10, 1)
	r.good(data, 0, "8a 00 0000000000000000 00000258 00 00")
	r.good(data, 0, "8f 02 0000000000000000 00000258 00 00")
	r.good(nil, 0, "8f 00 0000000000000000 00000258 00 00")
	bad := bytes.Clone(data)
	bad[299<<10]++
	if res := r.sense(Miscompare, ASCMiscompare, bad, 0, "8f 02 0000000000000000 00000258 00 00"); be32(res.Sense[3:]) != 299<<10 {
		t.Errorf("at %d", be32(res.Sense[3:]))
	}
	block := pattern(512, 5)
	r.good(block, 0, "41 00 00000000 00 0100 00")
	r.good(block, 0, "2f 06 00000000 00 0100 00")
	r.disk.data[255*512+3]++
	r.sense(Miscompare, ASCMiscompare, block, 0, "2f 06 00000000 00 0100 00")
	r.sense(IllegalRequest, ASCInvalidFieldInCDB, block, 0, "2f 04 00000000 00 0001 00")
	r.good(data[:1024], 0, "2e 02 00000000 00 0002 00")
	sameBytes(t, "WRITE AND VERIFY", r.disk.data[:1024], data[:1024])
}

func TestOrWriteLosesNothing(t *testing.T) {
	r := newRig(t)
	r.disk.async = true
	const n = 8
	var hosts []*host
	for i := range n {
		b := bytes.Repeat([]byte{1 << i}, 1024)
		_, h := r.start(r.n, cdb("8b 00 0000000000000000 00000002 00 00"), b, 0)
		hosts = append(hosts, h)
	}
	for _, h := range hosts {
		h.wait(t)
	}
	sameBytes(t, "medium", r.disk.data[:1024], bytes.Repeat([]byte{0xFF}, 1024))
}

func TestModeSelectRulesAndSavedPages(t *testing.T) {
	dir := t.TempDir()
	state := func(o *LUOptions) { o.StateDir = dir }
	r := newRig(t, state)
	other := r.nexus(2)
	// D_SENSE, saved.
	sel := []byte{0, 0, 0, 0, 0x0A, 10, 0x20 | 4, 0x10, 0, 0, 0, 0, 0xFF, 0xFF, 0, 0}
	r.good(sel, 0, "15 11 00 00 10 00")
	if res := r.run(other, nil, 0, "00 00 00 00 00 00"); res.asc() != ASCModeParametersChanged || res.Sense[0] != 0x72 {
		t.Errorf("%04X in format %02X", res.asc(), res.Sense[0])
	}
	res := r.sense(IllegalRequest, ASCLBAOutOfRange, nil, 512, "28 00 00004000 00 0001 00")
	if res.Sense[0] != 0x72 || res.Sense[8] != 0 || be64(res.Sense[12:]) != 0x4000 {
		t.Errorf("descriptor sense % X", res.Sense)
	}
	bad := bytes.Clone(sel)
	bad[7] = 0x20 // queue algorithm modifier cannot change
	r.sense(IllegalRequest, ASCInvalidFieldInParameters, bad, 0, "15 10 00 00 10 00")
	r.sense(IllegalRequest, ASCParameterListLength, sel[:9], 0, "15 10 00 00 09 00")
	r = rigOn(t, r.disk, state)
	if !r.lu.descriptorSense() {
		t.Error("the saved page is gone after a restart")
	}
	if b := r.good(nil, 255, "1a 08 ca 00 ff 00"); b[6]&4 == 0 {
		t.Error("saved values")
	}
	plain := newRig(t)
	plain.sense(IllegalRequest, ASCSavingNotSupported, nil, 255, "1a 00 ca 00 ff 00")
	for _, ten := range []string{"1a 00 3f 00 ff 00", "5a 00 3f ff 00 00 00 04 00 00", "5a 10 3f ff 00 00 00 04 00 00"} {
		plain.good(nil, 1024, ten)
	}
}

func TestPortGroupsExplicitAndImplicit(t *testing.T) {
	dir := t.TempDir()
	groups := []PortGroup{{ID: 1, Ports: []uint16{1}, Preferred: true}, {ID: 2, State: ActiveNonOptimized, Ports: []uint16{2}}}
	mk := func() (*Target, *mem.Pool) {
		pool := mem.NewPool(64 << 20)
		tg, err := NewTarget(TargetOptions{Name: "iqn.a", Memory: pool, StateDir: dir, PortGroups: groups})
		if err != nil {
			t.Fatal(err)
		}
		lu, err := NewLogicalUnit(LUOptions{Device: newDisk(1<<20, 512), Name: "v"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(lu.background.Wait)
		if err := tg.AddLUN(0, lu); err != nil {
			t.Fatal(err)
		}
		return tg, pool
	}
	tg, pool := mk()
	r := &rig{t: t, target: tg, pool: pool}
	n1 := r.nexus(1)
	if b := r.run(n1, nil, 256, "9e 13 0000000000000000 00000100 00 00").in; be16(b[2:]) != 28 || b[7] != 2 || be64(b[16:]) != 2047 {
		t.Errorf("REPORT REFERRALS % X", b[:32])
	}
	n2 := r.nexus(2, func(o *NexusOptions) { o.TargetPortGroup = 2 })
	b := r.run(n1, nil, 256, "a3 0a 00 00 00 00 00000100 00 00").in
	if be32(b) != 24 || b[4] != 0x80 || be16(b[6:]) != 1 || b[16] != 1 || be16(b[18:]) != 2 {
		t.Fatalf("REPORT TARGET PORT GROUPS % X", b[:32])
	}
	// Explicit: group 2 to standby, group 1 stays.
	if res := r.run(n1, []byte{0, 0, 0, 0, 2, 0, 0, 2}, 0, "a4 0a 00 00 00 00 00000008 00 00"); res.Status != StatusGood {
		t.Fatalf("%v %04X", res.Status, res.asc())
	}
	// Not ready comes before the attention would, except for a command that standby allows.
	if res := r.run(n2, nil, 64, "5e 00 00 00 00 00 00 00 40 00"); res.asc() != ASCAsymmetricAccessChanged {
		t.Errorf("%v %04X", res.Status, res.asc())
	}
	if res := r.run(n2, nil, 512, "28 00 00000000 00 0001 00"); res.key() != NotReady || res.asc() != ASCALUAStandby {
		t.Errorf("read in standby: %v %04X", res.Status, res.asc())
	}
	if res := r.run(n2, nil, 64, "5e 00 00 00 00 00 00 00 40 00"); res.Status != StatusGood {
		t.Errorf("PERSISTENT RESERVE IN in standby: %v", res.Status)
	}
	if res := r.run(n1, nil, 512, "28 00 00000000 00 0001 00"); res.Status != StatusGood {
		t.Errorf("read on the other path: %v %04X", res.Status, res.asc())
	}
	// Implicit.
	if err := tg.SetPortGroup(2, Unavailable); err != nil {
		t.Fatal(err)
	}
	if res := r.run(n1, nil, 0, "00 00 00 00 00 00"); res.asc() != ASCAsymmetricAccessChanged {
		t.Errorf("%v %04X", res.Status, res.asc())
	}
	if res := r.run(n1, []byte{0, 0, 0, 0, 0xE, 0, 0, 2}, 0, "a4 0a 00 00 00 00 00000008 00 00"); res.asc() != ASCInvalidFieldInParameters {
		t.Errorf("offline by an initiator: %v %04X", res.Status, res.asc())
	}
	if err := tg.SetPortGroup(9, Standby); err == nil {
		t.Error("an unknown group was taken")
	}
	// An operator may let a transition be seen: it is told, reported as supported and implicit, and over with the next change.
	if err := tg.SetPortGroup(2, Transitioning); err != nil {
		t.Fatal(err)
	}
	if res := r.run(n2, nil, 512, "28 00 00000000 00 0001 00"); res.asc() != ASCAsymmetricAccessChanged {
		t.Errorf("%v %04X", res.Status, res.asc())
	}
	if res := r.run(n2, nil, 512, "28 00 00000000 00 0001 00"); res.key() != NotReady || res.asc() != ASCALUATransition {
		t.Errorf("read in a transition: %v %04X", res.Status, res.asc())
	}
	if res := r.run(n1, nil, 0, "00 00 00 00 00 00"); res.asc() != ASCAsymmetricAccessChanged {
		t.Errorf("%v %04X", res.Status, res.asc())
	}
	if b := r.run(n1, nil, 256, "a3 0a 00 00 00 00 00000100 00 00").in; b[16] != 0x0F || b[17]&0x80 == 0 || b[21] != byte(GroupImplicit) {
		t.Errorf("REPORT TARGET PORT GROUPS in a transition % X", b[:32])
	}
	if err := tg.SetPortGroup(2, Unavailable); err != nil {
		t.Fatal(err)
	}
	again, _ := mk()
	if g := again.PortGroups(); g[1].State != Unavailable || g[1].Status != GroupImplicit || g[0].State != ActiveOptimized {
		t.Errorf("after a restart %+v", g)
	}
	// A state that is configured again outweighs what was set before.
	groups[1].State = Standby
	if again, _ = mk(); again.PortGroups()[1].State != Standby {
		t.Errorf("after a change of the configuration %+v", again.PortGroups())
	}
	if err := again.Configure(2, ActiveNonOptimized); err != nil {
		t.Fatal(err)
	}
	groups[1].State = ActiveNonOptimized
	if again, _ = mk(); again.PortGroups()[1].State != ActiveNonOptimized {
		t.Errorf("after a change while it ran %+v", again.PortGroups())
	}
}

func TestEraseCommandsAreGuarded(t *testing.T) {
	r := newRig(t)
	r.sense(IllegalRequest, ASCInvalidOpcode, nil, 0, "04 00 00 00 00 00")
	r.sense(IllegalRequest, ASCInvalidOpcode, nil, 0, "48 02 00 00 00 00 00 00 00 00")
	r = newRig(t, func(o *LUOptions) { o.AllowFormat, o.AllowSanitize = true, true })
	r.good(pattern(4096, 1), 0, "2a 00 00000000 00 0008 00")
	r.good([]byte{0x82, 0, 0, 2, 0xAA, 0x55}, 0, "48 01 00 00 00 00 00 00 06 00")
	if r.disk.data[0] != 0x55 || r.disk.data[1] != 0xAA {
		t.Errorf("overwrite with inversion left % X", r.disk.data[:4])
	}
	r.good(nil, 0, "48 02 00 00 00 00 00 00 00 00")
	if !bytes.Equal(r.disk.data, make([]byte, len(r.disk.data))) {
		t.Error("block erase left data")
	}
	var first []byte
	r.disk.fail = func(q *blockdev.Request) error {
		if q.Op == blockdev.Write && first == nil {
			first = bytes.Clone(q.Data[0].Bytes()[:512])
		}
		return nil
	}
	r.good(nil, 0, "48 03 00 00 00 00 00 00 00 00")
	if first == nil || bytes.Equal(first, make([]byte, 512)) || r.disk.mapped[0] {
		t.Error("cryptographic erase left something")
	}
	r.good(nil, 0, "04 00 00 00 00 00")
	// In the background: others are told how far it is.
	hold(r.disk)
	r.good(nil, 0, "48 82 00 00 00 00 00 00 00 00")
	<-r.disk.arrived
	r.sense(NotReady, ASCSanitizeInProgress, nil, 512, "28 00 00000000 00 0001 00")
	r.sense(NotReady, ASCSanitizeInProgress, nil, 0, "1b 00 00 00 01 00")
	if b := r.good(nil, 96, "03 00 00 00 60 00"); b[2] != byte(NotReady) || b[15] != 0x80 {
		t.Errorf("REQUEST SENSE % X", b[:18])
	}
	r.disk.letGo()
	r.lu.Close()
	r.disk.fail = func(*blockdev.Request) error { return errors.New("broken") }
	bad := newRig(t, func(o *LUOptions) { o.AllowSanitize = true })
	bad.disk.fail = r.disk.fail
	bad.sense(MediumError, ASCWriteError, nil, 0, "48 22 00 00 00 00 00 00 00 00")
	bad.sense(MediumError, ASCSanitizeFailed, nil, 512, "28 00 00000000 00 0001 00")
	bad.good(nil, 0, "48 1f 00 00 00 00 00 00 00 00")
	bad.disk.fail = nil
	bad.good(nil, 512, "28 00 00000000 00 0001 00")
}

func TestRemovableMedium(t *testing.T) {
	r := newRig(t, func(o *LUOptions) { o.Removable = true })
	other := r.nexus(2)
	r.good(nil, 0, "1e 00 00 00 01 00")
	if res := r.run(other, nil, 0, "1b 00 00 00 02 00"); res.asc() != ASCRemovalPrevented {
		t.Errorf("%v %04X", res.Status, res.asc())
	}
	r.good(nil, 0, "1e 00 00 00 00 00")
	r.good(nil, 0, "1b 00 00 00 02 00")
	r.sense(NotReady, ASCMediumNotPresent, nil, 0, "00 00 00 00 00 00")
	r.good(nil, 0, "1b 00 00 00 03 00")
	if res := r.run(other, nil, 0, "00 00 00 00 00 00"); res.asc() != ASCMediumMayHaveChanged {
		t.Errorf("%v %04X", res.Status, res.asc())
	}
	fixed := newRig(t)
	fixed.sense(IllegalRequest, ASCInvalidOpcode, nil, 0, "1e 00 00 00 01 00")
	fixed.sense(IllegalRequest, ASCInvalidFieldInCDB, nil, 0, "1b 00 00 00 02 00")
}

func TestReadOnlyAndGrowth(t *testing.T) {
	r := newRig(t, func(o *LUOptions) { o.ReadOnly = true })
	r.sense(DataProtect, ASCWriteProtected, make([]byte, 512), 0, "2a 00 00000000 00 0001 00")
	if b := r.good(nil, 255, "1a 00 08 00 ff 00"); b[2]&0x80 == 0 {
		t.Error("WP is not shown")
	}
	r = newRig(t)
	r.disk.mu.Lock()
	r.disk.data = append(r.disk.data, make([]byte, 1<<20)...)
	r.disk.geo.Size += 1 << 20
	r.disk.mu.Unlock()
	if err := r.lu.Refresh(); err != nil {
		t.Fatal(err)
	}
	r.sense(UnitAttention, ASCCapacityChanged, nil, 0, "00 00 00 00 00 00")
	if b := r.good(nil, 8, "25 00 00000000 00 0000 00"); be32(b) != 9<<20/512-1 {
		t.Errorf("last block %d", be32(b))
	}
}

func TestLogPages(t *testing.T) {
	r := newRig(t)
	r.good(nil, 4096, "28 00 00000000 00 0008 00")
	list := r.good(nil, 256, "4d 00 40 00 00 00 00 01 00 00")
	for _, code := range list[4 : 4+be16(list[2:])] {
		b := r.good(nil, 1024, "4d 00 40 00 00 00 00 04 00 00", func(b []byte) { b[2] |= code })
		if b[0]&0x3F != code {
			t.Errorf("page %02X answers as %02X", code, b[0])
		}
		for off := 4; off < 4+int(be16(b[2:])) && code != 0; off += 4 + int(b[off+3]) {
			if off+4+int(b[off+3]) > 4+int(be16(b[2:])) {
				t.Errorf("page %02X: a parameter leaves it", code)
			}
		}
	}
	b := r.good(nil, 1024, "4d 00 59 00 00 00 00 04 00 00")
	if be64(b[8:]) != 1 {
		t.Errorf("%d reads counted", be64(b[8:]))
	}
	r.good(nil, 0, "4c 02 40 00 00 00 00 00 00 00")
	if b = r.good(nil, 1024, "4d 00 59 00 00 00 00 04 00 00"); be64(b[8:]) != 0 {
		t.Errorf("%d reads after a reset", be64(b[8:]))
	}
	r.sense(IllegalRequest, ASCInvalidFieldInCDB, nil, 64, "4d 00 7e 00 00 00 00 00 40 00")
}
