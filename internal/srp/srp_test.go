package srp

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.NewReplacer(" ", "", "\n", "", "\t", "").Replace(s))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// list makes memory descriptors.
func list(all ...Memory) []byte {
	b := make([]byte, len(all)*MemoryLen)
	for i, m := range all {
		m.Put(b[i*MemoryLen:])
	}
	return b
}

// The bytes are those of include/scsi/srp.h, written down by offset.
func TestLayouts(t *testing.T) {
	id := func(b byte) (p PortID) { copy(p[:], bytes.Repeat([]byte{b}, 16)); return p }
	for name, c := range map[string]struct {
		put  func([]byte) int
		want string
	}{
		"SRP_LOGIN_REQ": {(&LoginReq{Tag: 1, Formats: FormatDirect | FormatIndirect, Flags: ImmedRequest | MultiMulti, MaxITUnit: 8260, Initiator: id(0xAA), Target: id(0xBB), ImmOffset: 68}).Put,
			"0000000000000001 0006 81 00 00002044 " + strings.Repeat("aa", 16) + strings.Repeat("bb", 16) + "0044 000000000000"},
		"SRP_LOGIN_RSP": {(&LoginRsp{Tag: 2, Credits: 64, MaxITUnit: 8320, MaxTIUnit: 256, Formats: 6, Flags: ImmedSupport | ResultKept}).Put,
			"c0 000000 00000040 0000000000000002 00002080 00000100 0006 82" + strings.Repeat("00", 25)},
		"SRP_LOGIN_REJ": {(&LoginRej{Tag: 3, Reason: RejNoNexus, Formats: 6}).Put, "c2 000000 00010003 0000000000000003 0000000000000000 0006 000000000000"},
		"SRP_T_LOGOUT":  {func(b []byte) int { return PutTLogout(b, LogoutInvalidUnit, 4) }, "80 00 0000 00000002 0000000000000004"},
		"SRP_I_LOGOUT":  {func(b []byte) int { return PutILogout(b, 5) }, "03 00000000000000 0000000000000005"},
		"SRP_CRED_REQ":  {func(b []byte) int { return PutCredReq(b, 7, 6) }, "81 00 0000 00000007 0000000000000006"},
		"SRP_CRED_RSP":  {func(b []byte) int { return PutCredRsp(b, 7) }, "41 00000000000000 0000000000000007"},
		"SRP_AER_RSP":   {func(b []byte) int { return PutAERRsp(b, 8) }, "42 00000000000000 0000000000000008"},
		"SRP_TSK_MGMT":  {(&TskMgmt{Tag: 9, LUN: 1 << 48, Function: LUNReset, Task: 10, Notify: 6}).Put, "01 06 000000000000 0000000000000009 00000000 0001000000000000 0000 08 00 000000000000000a 0000000000000000"},
		"SRP_RSP": {(&Rsp{Tag: 11, Credits: 1, Notify: true, Status: 2, Flags: InUnder | OutOver, OutResidual: 5, InResidual: 6, Sense: []byte{0x70, 1}, ResponseData: []byte{0, 0, 0, 4}}).Put,
			"c1 01 0000 00000001 000000000000000b 0000 27 02 00000005 00000006 00000002 00000004 00000004 7001"},
		"SRP_AER_REQ": {(&AERReq{Tag: 12, Credits: 2, LUN: 2 << 48, Sense: []byte{0x70, 0, 6}}).Put, "82 00 0000 00000002 000000000000000c 00000000 0002000000000000 00000003 00000000 700006"},
		"SRP_CMD direct": {func(b []byte) int {
			return (&Cmd{Tag: 13, LUN: 3 << 48, Attr: Ordered, Notify: 2, CDB: unhex(t, "28000000000100000800000000000000"),
				In: Buffer{Format: Direct, Len: 4096, List: list(Memory{0x1122334455667788, 0x99AABBCC, 4096})}}).Put(b, 0)
		}, "02 02 000000 01 00 00 000000000000000d 00000000 0003000000000000 00 02 00 00 28000000000100000800000000000000 1122334455667788 99aabbcc 00001000"},
		"SRP_CMD indirect, both ways, a long CDB": {func(b []byte) int {
			return (&Cmd{Tag: 14, CDB: append(bytes.Repeat([]byte{0x7F}, 16), 1, 2, 3, 4),
				Out: Buffer{Format: Indirect, Len: 3, List: list(Memory{1, 2, 1}, Memory{3, 4, 2})},
				In:  Buffer{Format: Indirect, Len: 10, List: list(Memory{5, 6, 1}), Table: Memory{7, 8, 48}}}).Put(b, 0)
		}, "02 00 000000 22 02 01 000000000000000e 00000000 0000000000000000 00 00 00 04 " + strings.Repeat("7f", 16) + "01020304" +
			"0000000000000000 00000000 00000020 00000003 0000000000000001 00000002 00000001 0000000000000003 00000004 00000002" +
			"0000000000000007 00000008 00000030 0000000a 0000000000000005 00000006 00000001"},
		"SRP_CMD immediate": {func(b []byte) int {
			return (&Cmd{Tag: 15, CDB: make([]byte, 16), Out: Buffer{Format: Immediate, Len: 4, Data: []byte("data")}}).Put(b, 68)
		}, "02 00 000000 30 00 00 000000000000000f 00000000 0000000000000000 00 00 00 00 " + strings.Repeat("00", 16) + "00000004" + strings.Repeat("00", 16) + "64617461"},
	} {
		b := bytes.Repeat([]byte{0xEE}, 256)
		if got, want := b[:c.put(b)], unhex(t, c.want); !bytes.Equal(got, want) {
			t.Errorf("%s:\n got %x\nwant %x", name, got, want)
		}
	}
}

// What is read is what was written.
func TestRead(t *testing.T) {
	b := make([]byte, 512)
	cmd := Cmd{Tag: 1, LUN: 2, Attr: HeadOfQueue, CDB: make([]byte, 32), Out: Buffer{Format: Indirect, Len: 7, List: list(Memory{1, 1, 3}, Memory{2, 2, 4})}, In: Buffer{Format: Direct, Len: 9, List: list(Memory{3, 3, 9})}}
	got, err := ParseCmd(b[:cmd.Put(b, 0)], 0)
	if err != nil || !reflect.DeepEqual(got, cmd) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, cmd)
	}
	imm := Cmd{CDB: make([]byte, 16), Out: Buffer{Format: Immediate, Len: 5, Data: []byte("bytes")}}
	got, err = ParseCmd(b[:imm.Put(b, 68)], 68)
	if err != nil || !reflect.DeepEqual(got, imm) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, imm)
	}
	req := LoginReq{Tag: 1, Formats: 6, Flags: MultiMulti | ImmedRequest, MaxITUnit: 3, Initiator: PortID{1}, Target: PortID{2}, ImmOffset: 68}
	clear(b)
	req.Put(b)
	if l, err := ParseLoginReq(b[:200]); err != nil || l != req || !l.Multi() || !l.Immediate() { // with zeroes behind it, as InfiniBand delivers it
		t.Errorf("got %+v, %v", l, err)
	}
}

func TestMalformed(t *testing.T) {
	cmd := func(change func(b []byte) []byte, c Cmd) []byte {
		b := make([]byte, 512)
		if c.CDB == nil {
			c.CDB = make([]byte, 16)
		}
		return change(b[:c.Put(b, 68)])
	}
	same := func(b []byte) []byte { return b }
	set := func(i int, v byte) func([]byte) []byte {
		return func(b []byte) []byte { b[i] = v; return b }
	}
	short := func(b []byte) []byte { return b[:len(b)-1] }
	direct := Cmd{In: Buffer{Format: Direct, List: list(Memory{1, 1, 512})}}
	two := Cmd{Out: Buffer{Format: Indirect, Len: 8, List: list(Memory{1, 1, 4}, Memory{2, 2, 4})}}
	imm := Cmd{Out: Buffer{Format: Immediate, Len: 4, Data: []byte("data")}}
	for name, c := range map[string]struct {
		unit      []byte
		immediate int
		why       LogoutReason
	}{
		"no whole command":                {cmd(func(b []byte) []byte { return b[:47] }, Cmd{}), 0, LogoutInvalidUnit},
		"additional CDB that is not here": {cmd(set(31, 4), Cmd{}), 0, LogoutInvalidUnit},
		"half a descriptor":               {cmd(short, direct), 0, LogoutInvalidUnit},
		"half an indirect one":            {cmd(short, two), 0, LogoutInvalidUnit},
		"format 4 out":                    {cmd(set(5, 0x40), Cmd{}), 0, LogoutOutFormat},
		"format 15 in":                    {cmd(set(5, 0x0F), Cmd{}), 0, LogoutInFormat},
		"immediate in":                    {cmd(set(5, 0x03), Cmd{}), 68, LogoutInFormat},
		"immediate not agreed on":         {cmd(same, imm), 0, LogoutOutFormat},
		"immediate data missing":          {cmd(short, imm), 68, LogoutInvalidUnit},
		"immediate data over descriptors": {cmd(same, imm), 51, LogoutInvalidUnit},
		"more descriptors than the table": {cmd(set(48+15, 16), two), 0, LogoutOutCount},
		"a table of no whole descriptors": {cmd(set(48+15, 40), two), 0, LogoutOutCount},
		"descriptors for less":            {cmd(set(48+19, 9), two), 0, LogoutOutCount},
		"more descriptors than are here":  {cmd(set(6, 3), two), 0, LogoutInvalidUnit},
	} {
		_, err := ParseCmd(c.unit, c.immediate)
		var pe *ProtocolError
		if !errors.As(err, &pe) || pe.Reason != c.why {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ParseLoginReq(make([]byte, 55)); err == nil {
		t.Error("a login request of 55 bytes is read")
	}
	for _, action := range []byte{2, 3} {
		b := make([]byte, LoginReqLen)
		b[10] = action
		if _, err := ParseLoginReq(b); err == nil {
			t.Errorf("multichannel action %d is read", action)
		}
	}
}

func TestNames(t *testing.T) {
	p := PortID{7: 0x12, 8: 0x50, 15: 0x34}
	const name = "srp.00000000000000125000000000000034"
	if p.Name() != name || p.Ext() != "0000000000000012" || p.GUID() != "5000000000000034" {
		t.Errorf("%s %s %s", p.Name(), p.Ext(), p.GUID())
	}
	if got, err := ParseName(name); err != nil || got != p {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "srp.", name + "0", name[:len(name)-1], "iqn.2026-01.org:x", strings.ToUpper(name), "srp." + strings.Repeat("g", 32), "srp.0X" + name[6:], "srp.50000000000000AB50000000000000ab"} {
		if _, err := ParseName(bad); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
}

// Descriptors of no length are passed over, and a search may go back.
func TestSegments(t *testing.T) {
	g := Segments{List: list(Memory{100, 1, 10}, Memory{200, 2, 0}, Memory{300, 3, 5})}
	for _, c := range []struct {
		off  int64
		want Memory
	}{{0, Memory{100, 1, 10}}, {9, Memory{109, 1, 1}}, {10, Memory{300, 3, 5}}, {14, Memory{304, 3, 1}}, {3, Memory{103, 1, 7}}} {
		if got := g.Find(c.off); got != c.want {
			t.Errorf("byte %d: %+v, want %+v", c.off, got, c.want)
		}
	}
}
