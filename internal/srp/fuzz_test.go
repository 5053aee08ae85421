package srp

import (
	"bytes"
	"reflect"
	"testing"
)

// Each target reads what a peer may send, and what was read must come out the same when it is written and read again. Nothing may be read beyond the unit:
// the input has no capacity behind it.

func exact(b []byte) []byte { return b[:len(b):len(b)] }

// round writes and reads what was read, in place of reserved bytes.
func round[T any](t *testing.T, v T, put func([]byte) int, parse func([]byte) (T, error)) {
	t.Helper()
	b := make([]byte, 1<<20)
	again, err := parse(exact(b[:put(b)]))
	if err != nil || !reflect.DeepEqual(again, v) {
		t.Fatalf("read %+v, then %+v, %v", v, again, err)
	}
}

func FuzzCmd(f *testing.F) {
	b := make([]byte, 1024)
	for _, c := range []Cmd{
		{CDB: make([]byte, 16)},
		{Tag: 1, LUN: 1 << 48, CDB: make([]byte, 32), In: Buffer{Format: Direct, Len: 512, List: list(Memory{1, 2, 512})}},
		{Tag: 2, CDB: make([]byte, 16), Out: Buffer{Format: Indirect, Len: 8, List: list(Memory{1, 2, 4}, Memory{3, 4, 4})}, In: Buffer{Format: Indirect, Len: 8, List: list(Memory{5, 6, 4}), Table: Memory{7, 8, 32}}},
		{Tag: 3, CDB: make([]byte, 16), Out: Buffer{Format: Immediate, Len: 4, Data: []byte("data")}},
	} {
		f.Add(bytes.Clone(b[:c.Put(b, 68)]), uint16(68))
	}
	f.Add([]byte{2}, uint16(0))
	f.Fuzz(func(t *testing.T, b []byte, immediate uint16) {
		c, err := ParseCmd(exact(b), int(immediate))
		if err != nil {
			return
		}
		for _, l := range [...]Buffer{c.Out, c.In} {
			if l.Format == Immediate && len(l.Data) != int(l.Len) || l.Format != Immediate && l.Data != nil || len(l.List)%MemoryLen != 0 {
				t.Fatalf("%+v", l)
			}
			if l.Table.Len == 0 && l.Format != Immediate && !Covers(l.List, l.Len) {
				t.Fatalf("%d bytes that no descriptor names: %x", l.Len, l.List)
			}
			if g := (Segments{List: l.List}); l.Table.Len == 0 && len(l.List) > 0 {
				walk(t, &g, int64(l.Len))
			}
		}
		round(t, c, func(b []byte) int { return c.Put(b, int(immediate)) }, func(b []byte) (Cmd, error) { return ParseCmd(b, int(immediate)) })
	})
}

// walk goes through a buffer, piece by piece, and back to its beginning.
func walk(t *testing.T, g *Segments, n int64) {
	t.Helper()
	pieces := 0
	for off := int64(0); off < n; pieces++ {
		m := g.Find(off)
		if m.Len == 0 || pieces > len(g.List)/MemoryLen {
			t.Fatalf("byte %d of %d: %+v", off, n, m)
		}
		off += int64(m.Len)
	}
	if n > 0 && g.Find(0) != (&Segments{List: g.List}).Find(0) {
		t.Fatal("the first byte has moved")
	}
}

func FuzzTskMgmt(f *testing.F) {
	b := make([]byte, TskMgmtLen)
	(&TskMgmt{Tag: 1, LUN: 2, Function: AbortTask, Task: 3}).Put(b)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		if v, err := ParseTskMgmt(exact(b)); err == nil {
			round(t, v, v.Put, ParseTskMgmt)
		}
	})
}

func FuzzRsp(f *testing.F) {
	b := make([]byte, 256)
	f.Add(bytes.Clone(b[:(&Rsp{Tag: 1, Credits: 1, Status: 2, Flags: InUnder, InResidual: 3, Sense: []byte{0x70}, ResponseData: []byte{0, 0, 0, 1}}).Put(b)]))
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := ParseRsp(exact(b))
		if err != nil || len(v.Sense)+len(v.ResponseData) > 1<<19 {
			return
		}
		if len(v.Sense) == 0 { // the flag for none is no different from none
			v.Sense = b[:0]
		}
		again := make([]byte, 1<<20)
		got, err := ParseRsp(again[:v.Put(again)])
		if err != nil || !bytes.Equal(got.Sense, v.Sense) || !bytes.Equal(got.ResponseData, v.ResponseData) || got.Tag != v.Tag || got.Flags != v.Flags || got.Credits != v.Credits {
			t.Fatalf("read %+v, then %+v, %v", v, got, err)
		}
	})
}

func FuzzAERReq(f *testing.F) {
	b := make([]byte, 256)
	f.Add(bytes.Clone(b[:(&AERReq{Tag: 1, Credits: 2, LUN: 3, Sense: []byte{0x70, 0, 6}}).Put(b)]))
	f.Fuzz(func(t *testing.T, b []byte) {
		if v, err := ParseAERReq(exact(b)); err == nil && len(v.Sense) > 0 && len(v.Sense) < 1<<19 {
			round(t, v, v.Put, ParseAERReq)
		}
	})
}

func FuzzLoginReq(f *testing.F) {
	b := make([]byte, LoginReqLen)
	(&LoginReq{Tag: 1, Formats: 6, Flags: ImmedRequest | MultiMulti, MaxITUnit: 8260, Initiator: PortID{1}, Target: PortID{2}, ImmOffset: 68}).Put(b)
	f.Add(b)
	f.Add(make([]byte, 92))
	f.Fuzz(func(t *testing.T, b []byte) {
		if v, err := ParseLoginReq(exact(b)); err == nil {
			round(t, v, v.Put, ParseLoginReq)
		}
	})
}

func FuzzLoginRsp(f *testing.F) {
	b := make([]byte, LoginRspLen)
	(&LoginRsp{Tag: 1, Credits: 64, MaxITUnit: 8260, MaxTIUnit: 256, Formats: 6, Flags: ImmedSupport}).Put(b)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		if v, err := ParseLoginRsp(exact(b)); err == nil {
			round(t, v, v.Put, ParseLoginRsp)
		}
	})
}

func FuzzLoginRej(f *testing.F) {
	b := make([]byte, LoginRejLen)
	(&LoginRej{Tag: 1, Reason: RejNoNexus, Formats: 6}).Put(b)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		if v, err := ParseLoginRej(exact(b)); err == nil {
			round(t, v, v.Put, ParseLoginRej)
			_ = v.Reason.String()
		}
	})
}

// FuzzShort reads the units that have an opcode, a tag and at most a number: logouts, credits and what answers a target.
func FuzzShort(f *testing.F) {
	b := make([]byte, ShortLen)
	for _, put := range []func(){func() { PutTLogout(b, LogoutInactive, 1) }, func() { PutILogout(b, 2) }, func() { PutCredReq(b, 3, 4) }, func() { PutCredRsp(b, 5) }, func() { PutAERRsp(b, 6) }} {
		put()
		f.Add(bytes.Clone(b))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		op, err := Unit(exact(b))
		if err != nil {
			return
		}
		_ = op.String()
		var n uint32
		var tag uint64
		w := make([]byte, ShortLen)
		tlogout, ttag, err1 := ParseTLogout(exact(b))
		itag, err2 := ParseILogout(exact(b))
		grant, ctag, err3 := ParseCredReq(exact(b))
		rtag, err4 := ParseCredRsp(exact(b))
		atag, err5 := ParseAERRsp(exact(b))
		read := 0
		for i, err := range []error{err1, err2, err3, err4, err5} {
			if err != nil {
				continue
			}
			read++
			switch i {
			case 0:
				n, tag = uint32(tlogout), ttag
				PutTLogout(w, tlogout, ttag)
			case 1:
				tag = itag
				PutILogout(w, itag)
			case 2:
				n, tag = uint32(grant), ctag
				PutCredReq(w, grant, ctag)
			case 3:
				tag = rtag
				PutCredRsp(w, rtag)
			case 4:
				tag = atag
				PutAERRsp(w, atag)
			}
		}
		if read == 0 {
			return
		}
		if again, atag, err := parseShort(w, op); read > 1 || err != nil || again != n || atag != tag {
			t.Fatalf("%d units read of %x; again: %d, %d, %v", read, b, again, atag, err)
		}
	})
}
