package iwarp

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Frames of peers: computed from RFC 5044 and RFC 6581, or captured from Linux 6.1 where a name is given.
var mpaVectors = []struct {
	name, key, hex string
	f              mpaFrame
}{
	{"revision 2 without peer-to-peer", mpaKeyReq, "10 02 0004 0020 0020",
		mpaFrame{Enhanced: true, Revision: 2, IRD: 32, ORD: 32}},
	{"CRC, peer-to-peer by Write or Read, iSER private data", mpaKeyReq, "50 02 0008 8020 c020 80000000",
		mpaFrame{CRC: true, Enhanced: true, Revision: 2, P2P: true, RTR: rtrWrite | rtrRead, IRD: 32, ORD: 32, Private: []byte{0x80, 0, 0, 0}}},
	{"rping of Linux", mpaKeyReq, "1002 0004 0001 0001", mpaFrame{Enhanced: true, Revision: 2, IRD: 1, ORD: 1}},
	{"ib_iser of Linux", mpaKeyReq, "1002 0008 0080 0001 80000000",
		mpaFrame{Enhanced: true, Revision: 2, IRD: 128, ORD: 1, Private: []byte{0x80, 0, 0, 0}}},
	{"isert of Linux", mpaKeyRep, "1002 0008 0001 0080 80000000",
		mpaFrame{Reply: true, Enhanced: true, Revision: 2, IRD: 1, ORD: 128, Private: []byte{0x80, 0, 0, 0}}},
	{"NFS client of Linux", mpaKeyReq, "1002 000c 0080 0000 f6ab0e18 01010303",
		mpaFrame{Enhanced: true, Revision: 2, IRD: 128, Private: []byte{0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 3}}},
	{"knfsd of Linux", mpaKeyRep, "1002 000c 0000 0080 f6ab0e18 01000303",
		mpaFrame{Reply: true, Enhanced: true, Revision: 2, ORD: 128, Private: []byte{0xf6, 0xab, 0x0e, 0x18, 1, 0, 3, 3}}},
	{"siw with CRC and peer-to-peer", mpaKeyReq, "5002 0004 8001 c001",
		mpaFrame{CRC: true, Enhanced: true, Revision: 2, P2P: true, RTR: rtrWrite | rtrRead, IRD: 1, ORD: 1}},
	{"siw at revision 1", mpaKeyReq, "0001 0000", mpaFrame{Revision: 1}},
	{"a reject", mpaKeyRep, "2001 0002 abcd", mpaFrame{Reply: true, Reject: true, Revision: 1, Private: []byte{0xab, 0xcd}}},
	{"markers", mpaKeyRep, "c001 0000", mpaFrame{Reply: true, Markers: true, CRC: true, Revision: 1}},
	{"siw's GSO hint", mpaKeyReq, "1802 0004 0001 0001", mpaFrame{GSO: true, Enhanced: true, Revision: 2, IRD: 1, ORD: 1}},
}

func decodeMPA(b []byte, reply bool) (mpaFrame, error) {
	var f mpaFrame
	n, err := parseMPAHeader(b, reply, &f)
	if err != nil {
		return f, err
	}
	if len(b) < mpaHdrLen+n {
		return f, bytes.ErrTooLarge
	}
	f.parsePrivate(b[mpaHdrLen : mpaHdrLen+n])
	return f, nil
}

func TestMPAVectors(t *testing.T) {
	for _, v := range mpaVectors {
		t.Run(v.name, func(t *testing.T) {
			wire := append([]byte(v.key), unhex(t, v.hex)...)
			if got := v.f.append(nil); !bytes.Equal(got, wire) {
				t.Fatalf("encoded\n%x, want\n%x", got, wire)
			}
			f, err := decodeMPA(wire, v.f.Reply)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(f.append(nil), wire) {
				t.Fatalf("decoded %+v", f)
			}
		})
	}
}

func TestMPARefusesWhatIsNoFrame(t *testing.T) {
	req := func(s string) []byte { return append([]byte(mpaKeyReq), unhex(t, s)...) }
	for name, b := range map[string][]byte{
		"short":                     req("1002")[:17],
		"a reply for a request":     append([]byte(mpaKeyRep), unhex(t, "1002 0004 0001 0001")...),
		"an iSCSI login":            append([]byte{0x43, 0x87}, make([]byte, 46)...),
		"revision 0":                req("0000 0000"),
		"revision 3":                req("1003 0004 0001 0001"),
		"too much private data":     req("0001 0201"),
		"enhanced without its four": req("1002 0003 000100"),
	} {
		if f, err := decodeMPA(b, false); err == nil {
			t.Errorf("%s: taken as %+v", name, f)
		}
	}
	// RFC 6581 section 8: at revision 1 the bit says nothing.
	if f, err := decodeMPA(req("1001 0000"), false); err != nil || f.Enhanced {
		t.Errorf("revision 1 with the S bit: %+v, %v", f, err)
	}
	// RFC 6581 section 9.2: B, C and D mean nothing without A.
	if f, err := decodeMPA(req("1002 0004 4001 c001"), false); err != nil || f.RTR != 0 || f.IRD != 1 || f.ORD != 1 {
		t.Errorf("ready-to-receive flags without the peer-to-peer flag: %+v, %v", f, err)
	}
}

func TestIsMPARequest(t *testing.T) {
	for _, v := range []struct {
		in      string
		yes, ok bool
	}{{"", true, false}, {"M", true, false}, {"MPA ID Req Fram", true, false}, {mpaKeyReq, true, true},
		{mpaKeyReq + "more", true, true}, {"\x43", false, true}, {"MPB", false, true}, {mpaKeyRep, false, true}} {
		yes, ok := IsMPARequest([]byte(v.in))
		if ok != v.ok || ok && yes != v.yes {
			t.Errorf("%q: %t, %t", v.in, yes, ok)
		}
	}
}

// batchOnce makes single FPDUs with the transmitter's own builder.
type batchOnce struct {
	batch
	q QP
}

func (o *batchOnce) fpdu(crc bool, hdr, payload []byte) []byte {
	if o.arena == nil {
		o.init(false)
		o.take()
	}
	o.reset()
	var m sgl
	m.one(payload)
	pad := fpduPad(len(hdr) + len(payload) - 2)
	o.add(hdr, &m, len(payload), pad, crc, &o.q)
	o.seal()
	var out []byte
	for _, v := range o.iov {
		out = append(out, bytesOf(v)...)
	}
	return out
}

func fpdu(crc bool, hdr, payload []byte) []byte { return new(batchOnce).fpdu(crc, hdr, payload) }

func tagged(payload int, ctrl uint16, stag uint32, to uint64) []byte {
	b := make([]byte, taggedLen)
	putTagged(b, payload, ctrl|ctrlTagged|ctrlV1, stag, to)
	return b
}

func untagged(payload int, ctrl uint16, inv, qn, msn, mo uint32) []byte {
	b := make([]byte, untaggedLen)
	putUntagged(b, payload, ctrl|ctrlV1, inv, qn, msn, mo)
	return b
}

func readReqHdr(r readReq, msn uint32) []byte {
	b := append(untagged(readReqLen, ctrlLast|opReadReq, 0, qnRead, msn, 0), make([]byte, readReqLen)...)
	r.put(b[untaggedLen:])
	return b
}

func TestFPDUVectors(t *testing.T) {
	for _, v := range []struct {
		name    string
		hdr     []byte
		payload string
		hex     string
	}{
		{"Send", untagged(5, ctrlLast|opSend, 0, 0, 1, 0), "hello", "0017 4143 00000000 00000000 00000001 00000000 68656c6c6f 000000 b990b10c"},
		{"SendSE", untagged(5, ctrlLast|opSendSE, 0, 0, 1, 0), "hello", "0017 4145 00000000 00000000 00000001 00000000 68656c6c6f 000000 f7290be8"},
		{"SendInv", untagged(0, ctrlLast|opSendInv, 0x12345678, 0, 1, 0), "", "0012 4144 12345678 00000000 00000001 00000000 acf1b4f7"},
		{"Write", tagged(3, ctrlLast|opWrite, 0x11223344, 0x1000), "abc", "0011 c140 11223344 0000000000001000 616263 00 ad80d0e4"},
		{"ReadResp", tagged(3, ctrlLast|opReadResp, 0x11223344, 0x1000), "abc", "0011 c142 11223344 0000000000001000 616263 00 1338195b"},
		{"ReadReq", readReqHdr(readReq{0x11223344, 0x1000, 4096, 0x55667788, 0x2000}, 1), "",
			"002e 4141 00000000 00000001 00000001 00000000 11223344 0000000000001000 00001000 55667788 0000000000002000 b686e2f8"},
		{"RTR Write", tagged(0, ctrlLast|opWrite, 1, 0), "", "000e c140 00000001 0000000000000000 ebd34c5f"},
		{"RTR Read", readReqHdr(readReq{1, 0, 0, 1, 0}, 1), "",
			"002e 4141 00000000 00000001 00000001 00000000 00000001 0000000000000000 00000000 00000001 0000000000000000 27dbd7e7"},
	} {
		t.Run(v.name, func(t *testing.T) {
			want := unhex(t, v.hex)
			if got := fpdu(true, v.hdr, []byte(v.payload)); !bytes.Equal(got, want) {
				t.Fatalf("with CRC\n%x, want\n%x", got, want)
			}
			clear(want[len(want)-4:])
			if got := fpdu(false, v.hdr, []byte(v.payload)); !bytes.Equal(got, want) {
				t.Fatalf("without CRC\n%x, want\n%x", got, want)
			}
			var h ddpHeader
			h.parse(want)
			if h.ulpdu != int(want[0])<<8|int(want[1]) || h.len() != headerLen(want) {
				t.Fatalf("parsed %+v", h)
			}
		})
	}
	e := violation(transport.LayerLLP, 0, llpCRC, "", "")
	if got, want := terminateFPDU(e, nil, true), unhex(t, "0016 4147 00000000 00000002 00000001 00000000 20 02 00 00 7fe42585"); !bytes.Equal(got, want) {
		t.Fatalf("Terminate\n%x, want\n%x", got, want)
	}
}

func TestTerminateCarriesTheHeader(t *testing.T) {
	wr := tagged(3, ctrlLast|opWrite, 0x11223344, 0x1000)
	rd := readReqHdr(readReq{0x11223344, 0x1000, 4096, 0x55667788, 0x2000}, 1)
	for _, v := range []struct {
		name string
		e    *transport.TerminateError
		hdr  []byte
		want []byte
	}{
		{"DDP error", violation(transport.LayerDDP, ddpTagged, ddpTagSTag, "", ""), wr, append([]byte{0x11, 0, 0xc0, 0}, wr...)},
		{"RDMAP protection error of a Read Request", violation(transport.LayerRDMAP, rdmapProtection, rdmapBounds, "", ""), rd,
			append([]byte{0x01, 1, 0xe0, 0}, rd...)},
		{"DDP error of a Read Request", violation(transport.LayerDDP, ddpUntagged, ddpMSN, "", ""), rd,
			append([]byte{0x12, 3, 0xc0, 0}, rd[:untaggedLen]...)},
		{"RDMAP operation error", violation(transport.LayerRDMAP, rdmapOperation, rdmapOpcode, "", ""), wr, append([]byte{0x02, 6, 0xc0, 0}, wr...)},
		{"LLP error", violation(transport.LayerLLP, 0, llpCRC, "", ""), wr, []byte{0x20, 2, 0, 0}},
	} {
		if got := appendTerminate(nil, v.e, v.hdr); !bytes.Equal(got, v.want) {
			t.Errorf("%s:\n%x, want\n%x", v.name, got, v.want)
		}
	}
}

func TestTerminateIsReadInBothNibbleOrders(t *testing.T) {
	for _, v := range []struct {
		hex string
		e   transport.TerminateError
	}{
		{"11 00 c0 00", transport.TerminateError{Layer: transport.LayerDDP, Type: 1}},
		{"12 02 c0 00", transport.TerminateError{Layer: transport.LayerDDP, Type: 2, Code: 2}},
		{"21 02 03 00", transport.TerminateError{Layer: transport.LayerDDP, Type: 2, Code: 2}}, // siw, flags at the low end
		{"20 02 00 00", transport.TerminateError{Layer: transport.LayerLLP, Code: 2}},
		{"02 02 00 00", transport.TerminateError{Layer: transport.LayerLLP, Code: 2}}, // siw, told by what is defined
		{"01 01 e0 00", transport.TerminateError{Layer: transport.LayerRDMAP, Type: 1, Code: 1}},
		{"10 01 07 00", transport.TerminateError{Layer: transport.LayerRDMAP, Type: 1, Code: 1}}, // siw
		{"02 06 00 00", transport.TerminateError{Type: 2, Code: 6}},                              // defined both ways: the RFC's is taken
		{"7f", transport.TerminateError{Type: 2, Code: 0xff}},
	} {
		e := parseTerminate(unhex(t, v.hex))
		if !e.Remote || !e.Is(&v.e) {
			t.Errorf("%s: read as %+v", v.hex, e)
		}
	}
}

func TestTerminateNamesSurviveARoundTrip(t *testing.T) {
	for k, name := range termNames {
		e := &transport.TerminateError{Layer: k.layer, Type: k.typ, Code: k.code}
		for _, hdr := range [][]byte{nil, tagged(3, ctrlLast|opWrite, 7, 8)} {
			got := parseTerminate(appendTerminate(nil, e, hdr))
			if !got.Is(e) || !strings.Contains(got.Error(), name) {
				t.Errorf("%s: %+v came back as %v", name, k, got)
			}
		}
	}
}

func TestSGLFindsItsBytes(t *testing.T) {
	s := slab(t, 64<<10)
	fill(s.Bytes(), 9)
	rapid.Check(t, func(t *rapid.T) {
		var spans []mem.Span
		var flat []byte
		for range rapid.IntRange(0, maxSGE).Draw(t, "pieces") {
			off, n := rapid.IntRange(0, 60000).Draw(t, "off"), rapid.IntRange(0, 3000).Draw(t, "len")
			spans = append(spans, s.Cut(off, n))
			flat = append(flat, s.Cut(off, n).Bytes()...)
		}
		var all, part sgl
		if err := all.set(spans); err != nil {
			t.Fatal(err)
		}
		off := rapid.IntRange(0, len(flat)).Draw(t, "from")
		n := rapid.IntRange(0, len(flat)-off).Draw(t, "bytes")
		part.window(&all, off, n)
		var got []byte
		for {
			p := part.next(rapid.IntRange(1, 4000).Draw(t, "step"))
			if p == nil {
				break
			}
			got = append(got, p...)
		}
		if !bytes.Equal(got, flat[off:off+n]) {
			t.Fatalf("%d bytes from %d: got %d others", n, off, len(got))
		}
	})
}

func FuzzMPAFrame(f *testing.F) {
	for _, v := range mpaVectors {
		f.Add(append([]byte(v.key), unhex(f, v.hex)...), v.f.Reply)
	}
	f.Fuzz(func(t *testing.T, b []byte, reply bool) {
		x, err := decodeMPA(b, reply)
		if err != nil {
			return
		}
		y, err := decodeMPA(x.append(nil), reply)
		if err != nil || !bytes.Equal(x.append(nil), y.append(nil)) {
			t.Fatalf("%+v, encoded and decoded %+v: %v", x, y, err)
		}
	})
}

func FuzzTerminate(f *testing.F) {
	f.Add(unhex(f, "20020000"))
	f.Add(unhex(f, "2102030000"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		e := parseTerminate(b)
		if !e.Remote || e.Error() == "" || len(e.Raw) > 64 {
			t.Fatalf("%+v", e)
		}
	})
}

func FuzzHeader(f *testing.F) {
	f.Add(tagged(3, ctrlLast|opWrite, 0x11223344, 0x1000))
	f.Add(readReqHdr(readReq{1, 2, 3, 4, 5}, 6))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < 4 || len(b) < headerLen(b) {
			return
		}
		var h ddpHeader
		h.parse(b)
		out := make([]byte, h.len())
		if h.tagged {
			putTagged(out, h.ulpdu-(taggedLen-2), h.ctrl, h.stag, h.to)
		} else {
			putUntagged(out, h.ulpdu-(untaggedLen-2), h.ctrl, h.stag, h.qn, h.msn, h.mo)
		}
		if !bytes.Equal(out, b[:h.len()]) {
			t.Fatalf("%x came back as %x", b[:h.len()], out)
		}
		if len(b) >= readReqLen {
			var r readReq
			r.parse(b)
			again := make([]byte, readReqLen)
			r.put(again)
			if !bytes.Equal(again, b[:readReqLen]) {
				t.Fatalf("%x came back as %x", b[:readReqLen], again)
			}
		}
	})
}
