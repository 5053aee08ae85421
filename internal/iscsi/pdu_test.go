package iscsi

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

func kinds() []PDU {
	return []PDU{&SCSICommand{}, &TaskRequest{}, &DataOut{}, &TextRequest{}, &LoginRequest{}, &LogoutRequest{}, &SNACK{}, &NopOut{},
		&SCSIResponse{}, &TaskResponse{}, &DataIn{}, &R2T{}, &Async{}, &TextResponse{}, &LoginResponse{}, &LogoutResponse{}, &Reject{}, &NopIn{}}
}

// What Put writes, Parse reads, and Put writes the same again: from any 48 bytes a peer may send.
func TestEveryPDURoundTripsFromAnyBytes(t *testing.T) {
	for _, k := range kinds() {
		t.Run(reflect.TypeOf(k).Elem().Name(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				raw := rapid.SliceOfN(rapid.Byte(), BHSLen, BHSLen).Draw(t, "raw")
				p := reflect.New(reflect.TypeOf(k).Elem()).Interface().(PDU)
				p.Parse(raw)
				one := Append(nil, p)
				q := reflect.New(reflect.TypeOf(k).Elem()).Interface().(PDU)
				q.Parse(one)
				if !reflect.DeepEqual(p, q) {
					t.Fatalf("%+v became %+v", p, q)
				}
				if two := Append(nil, q); !bytes.Equal(one, two) {
					t.Fatalf("% x\n% x", one, two)
				}
			})
		})
	}
}

// A login header as Linux's open-iscsi sends it, field by field.
func TestLoginRequestOfLinuxIsRead(t *testing.T) {
	raw, err := hex.DecodeString("4387000000000111" + "00023d000000" + "0000" + "00000000" + "00000000" + "00000001" + "00000000" +
		"00000000000000000000000000000000")
	if err != nil {
		t.Fatal(err)
	}
	var p LoginRequest
	p.Parse(raw)
	want := LoginRequest{Transit: true, CSG: StageOperational, NSG: StageFullFeature, DataLen: 273, ISID: ISID{0, 2, 0x3d, 0, 0, 0}, CmdSN: 1}
	if p != want {
		t.Fatalf("got %+v\nwant %+v", p, want)
	}
	if got := Append(nil, &p); !bytes.Equal(got, raw) {
		t.Fatalf("% x\n% x", got, raw)
	}
}

func TestAHSRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cdb := rapid.SliceOfN(rapid.Byte(), 17, MaxCDBLen).Draw(t, "cdb")
		n := rapid.Uint32().Draw(t, "bidi")
		b := AppendBidiRead(AppendExtendedCDB(nil, cdb), n)
		if len(b)%4 != 0 {
			t.Fatalf("%d bytes of headers", len(b))
		}
		var a AHS
		if err := a.Parse(b); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a.ExtCDB, cdb[16:]) || !a.HasBidi || a.BidiRead != n {
			t.Fatalf("%+v", a)
		}
	})
}

func TestAHSThatLiesIsRefused(t *testing.T) {
	for _, b := range [][]byte{{0, 5}, {0, 0, 1, 0}, {0xff, 0xff, 1, 0}, {0, 1, 1, 0}, {0, 1, 9, 0}, {0, 3, 2, 0, 1, 2, 0, 0}} {
		var a AHS
		var pe *ProtocolError
		if err := a.Parse(b); !errors.As(err, &pe) {
			t.Errorf("% x: %v", b, err)
		}
	}
}

func TestISERHeaderOfACapturedRead(t *testing.T) {
	h := ISERHeader{ReadValid: true, ReadSTag: 0x1234, ReadBase: 0xffff888012345000}
	b := h.Append(nil)
	if b[0] != 0x14 || len(b) != ISERHeaderLen {
		t.Fatalf("% x", b)
	}
	var g ISERHeader
	if k, err := g.Parse(b); err != nil || k != ISERControl || g != h {
		t.Fatalf("%v %v %+v", k, err, g)
	}
	if k, err := g.Parse(append([]byte{0x20}, make([]byte, 27)...)); err != nil || k != ISERHello {
		t.Fatalf("%v %v", k, err)
	}
	if _, err := g.Parse(b[:27]); err == nil {
		t.Fatal("27 bytes passed for a header")
	}
}

func TestDigestOfTheRFC(t *testing.T) {
	// RFC 3720 appendix B.4: 32 bytes of zeroes have the digest aa 36 91 8a on the wire.
	var b [4]byte
	PutDigest(b[:], Digest(make([]byte, 32)))
	if hex.EncodeToString(b[:]) != "aa36918a" {
		t.Fatalf("% x", b)
	}
	if ReadDigest(b[:]) != DigestUpdate(DigestUpdate(0, make([]byte, 16)), make([]byte, 16)) {
		t.Fatal("a digest in two parts differs")
	}
}

func TestSerialNumbersWrap(t *testing.T) {
	if !SNLess(0xffffffff, 0) || SNLess(0, 0xffffffff) || !SNLessEq(5, 5) {
		t.Fatal("order across the wrap")
	}
	if !InWindow(1, 0xfffffff0, 8) || InWindow(9, 0xfffffff0, 8) || InWindow(7, 7, 6) {
		t.Fatal("window across the wrap")
	}
}

func TestNames(t *testing.T) {
	for _, s := range []string{"iqn.2001-04.com.example:storage:diskarrays-sn-a8675309", "iqn.2024-12.org.x", "eui.02004567A425678D",
		"naa.52004567BA64678D", "naa.62004567BA64678D0123456789ABCDEF"} {
		if err := CheckName(s); err != nil {
			t.Error(err)
		}
	}
	for _, s := range []string{"", "iqn.", "iqn.2001-13.com.x", "iqn.2001-04.", "iqn.2001-04.com.Example", "iqn.2001-04.com.x/y", "eui.123",
		"naa.52004567BA64678", "disk1", "iqn.2001-04.com.x y", "iqn.2001-04.c\x00m", "iqn.2001-04.\xff" + string(make([]byte, 300))} {
		var e *NameError
		if err := CheckName(s); !errors.As(err, &e) {
			t.Errorf("%q passes: %v", s, err)
		}
	}
}

func FuzzAHS(f *testing.F) {
	f.Add(AppendBidiRead(AppendExtendedCDB(nil, make([]byte, 32)), 4096))
	f.Add([]byte{0, 5, 2, 0, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		var a AHS
		if a.Parse(b) == nil && len(a.ExtCDB) > MaxCDBLen-16 {
			t.Fatal("too long a CDB")
		}
	})
}

func FuzzPDU(f *testing.F) {
	for _, k := range kinds() {
		f.Add(Append(nil, k))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < BHSLen {
			return
		}
		_ = BHS(b).Opcode().String()
		for _, k := range kinds() {
			k.Parse(b)
			if got := Append(nil, k); len(got) != BHSLen {
				t.Fatal(len(got))
			}
		}
		var h ISERHeader
		if _, err := h.Parse(b); err == nil {
			_ = h.Append(nil)
		}
	})
}
