package rpcrdma

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-storage/sluice/internal/xdr"
)

func genSegment(t *rapid.T) Segment {
	return Segment{Handle: rapid.Uint32().Draw(t, "handle"), Len: rapid.Uint32().Draw(t, "len"), Off: rapid.Uint64().Draw(t, "off")}
}

func genHeader(t *rapid.T) *Header {
	h := &Header{}
	h.Reset()
	h.XID, h.Credits = rapid.Uint32().Draw(t, "xid"), rapid.Uint32().Draw(t, "credits")
	h.Proc = rapid.SampledFrom([]Proc{Msg, Nomsg}).Draw(t, "proc")
	for range rapid.IntRange(0, 3).Draw(t, "reads") {
		h.Reads = append(h.Reads, ReadSegment{Position: rapid.Uint32().Draw(t, "position"), Segment: genSegment(t)})
	}
	segs := rapid.SliceOfN(rapid.Custom(genSegment), 1, 4)
	for range rapid.IntRange(0, MaxWriteChunks).Draw(t, "writes") {
		h.AddWrite(rapid.SliceOfN(rapid.Custom(genSegment), 0, 4).Draw(t, "write")...)
	}
	if rapid.Bool().Draw(t, "has reply") {
		h.SetReply(segs.Draw(t, "reply"))
	}
	return h
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := genHeader(t)
		b := h.Append(nil)
		if len(b) != h.Len() {
			t.Fatalf("Len says %d of %d bytes", h.Len(), len(b))
		}
		var got Header
		r := xdr.NewReader(append(b, 1, 2, 3, 4))
		if err := got.Parse(&r); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Append(nil), b) || r.Len() != 4 {
			t.Fatalf("%x came back as %x", b, got.Append(nil))
		}
		for n := range b {
			var cut Header
			r := xdr.NewReader(b[:n])
			if cut.Parse(&r) == nil {
				t.Fatalf("a header cut to %d bytes was taken", n)
			}
		}
	})
}

func TestErrors(t *testing.T) {
	parse := func(b []byte) error {
		var h Header
		r := xdr.NewReader(b)
		return h.Parse(&r)
	}
	h := Header{XID: 1, Vers: 2, Proc: Msg}
	var ve *VersionError
	if err := parse(h.Append(nil)); !errors.As(err, &ve) {
		t.Errorf("version 2: %v", err)
	}
	var ce *ChunkError
	h = Header{XID: 1, Vers: Version, Proc: Msgp}
	if err := parse(h.Append(nil)); !errors.As(err, &ce) {
		t.Errorf("RDMA_MSGP: %v", err)
	}
	h = Header{}
	h.Reset()
	h.AddWrite()
	if err := parse(h.Append(nil)); err != nil {
		t.Errorf("an empty write chunk: %v", err)
	}
	h.Reset()
	h.SetReply(nil)
	if err := parse(h.Append(nil)); !errors.As(err, &ce) {
		t.Errorf("a reply chunk of no segments: %v", err)
	}
	h.Reset()
	h.AddWrite(make([]Segment, MaxSegments+1)...)
	if err := parse(h.Append(nil)); !errors.As(err, &ce) {
		t.Errorf("a chunk of too many segments: %v", err)
	}
	h = Header{XID: 9, Vers: Version, Proc: Error, ErrCode: ErrVers, Low: 1, High: 1}
	if b := h.Append(nil); len(b) != ErrVersLen || h.Len() != ErrVersLen {
		t.Errorf("ERR_VERS of %d bytes", len(b))
	}
	h.ErrCode = ErrChunk
	if b := h.Append(nil); len(b) != ErrChunkLen || parse(b) != nil {
		t.Errorf("ERR_CHUNK of %d bytes", len(b))
	}
}

// What stock kernels said (captured): a Linux client and knfsd.
func TestPrivateMessage(t *testing.T) {
	client, _ := hex.DecodeString("f6ab0e1801010303")
	p, ok := ParsePrivate(client)
	if want := (Private{RemoteInv: true, SendSize: 4096, RecvSize: 4096}); !ok || p != want {
		t.Fatalf("%+v", p)
	}
	if b := p.Append(nil); !bytes.Equal(b, client) {
		t.Fatalf("%x", b)
	}
	if p, ok := ParsePrivate(nil); ok || !reflect.DeepEqual(p, Private{SendSize: 1024, RecvSize: 1024}) {
		t.Fatalf("without a message: %+v", p)
	}
}

func FuzzHeader(f *testing.F) {
	h := &Header{}
	h.Reset()
	f.Add(h.Append(nil))
	h.Reads = append(h.Reads, ReadSegment{Position: 148, Segment: Segment{1, 4096, 8}})
	h.AddWrite(Segment{2, 4096, 8})
	h.SetReply([]Segment{{3, 4096, 8}})
	f.Add(h.Append(nil))
	h.AddWrite()
	f.Add(h.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var h Header
		r := xdr.NewReader(b)
		if h.Parse(&r) != nil {
			return
		}
		if h.Proc == Msg || h.Proc == Nomsg {
			if got := h.Append(nil); !bytes.Equal(got, b[:len(got)]) || len(got) != h.Len() {
				t.Fatalf("%x came back as %x", b, got)
			}
		}
	})
}

func FuzzPrivate(f *testing.F) {
	f.Add(Private{RemoteInv: true, SendSize: 4096, RecvSize: 4096}.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, _ := ParsePrivate(b); p.SendSize < 1024 || p.RecvSize > MaxInline {
			t.Fatalf("%+v", p)
		}
	})
}
