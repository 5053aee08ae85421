package iwarp

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// exercise moves data both ways between the ends: Send, Write with Send with Invalidate, Read.
func exercise(t *testing.T, a, b *end, size int) {
	am, bm := slab(t, 2*size+8192), slab(t, 2*size+8192)
	src, dst := bm.Cut(0, size), am.Cut(0, size)
	fill(src.Bytes(), byte(size))

	// a sends first: the responder may not.
	b.recv(1, bm.Cut(2*size, 4096))
	copy(am.Cut(2*size, 5).Bytes(), "hello")
	w := a.window()
	a.post(transport.WR{Op: transport.OpBind, Window: w, Local: []mem.Span{dst}, Access: transport.RemoteWrite},
		transport.WR{Op: transport.OpSend, Token: 2, Flags: transport.Signaled, Local: []mem.Span{am.Cut(2*size, 5)}})
	a.ok(transport.OpSend, 2)
	if wc := b.ok(transport.OpRecv, 1); wc.Len != 5 || string(bm.Cut(2*size, 5).Bytes()) != "hello" {
		t.Fatalf("received %+v", wc)
	}
	// b answers with a Write and a Send that invalidates.
	a.recv(3, am.Cut(2*size+4096, 4096))
	b.post(transport.WR{Op: transport.OpWrite, Local: []mem.Span{src}, Remote: w.Remote()},
		transport.WR{Op: transport.OpSendInv, Inv: w.Remote().STag, Local: []mem.Span{bm.Cut(2*size, 3)}, Flags: transport.Solicited | transport.Signaled, Token: 4})
	if wc := a.ok(transport.OpRecv, 3); wc.Inv != w.Remote().STag || wc.Len != 3 || w.Valid() {
		t.Fatalf("received %+v, window valid %t", wc, w.Valid())
	}
	if !bytes.Equal(src.Bytes(), dst.Bytes()) {
		t.Fatal("what the Write placed differs")
	}
	b.ok(transport.OpSend+1, 4)
	// b reads from a.
	dst, src = bm.Cut(size, size), am.Cut(size, size)
	fill(src.Bytes(), byte(size)+1)
	a.post(transport.WR{Op: transport.OpBind, Window: w, Local: []mem.Span{src.Cut(0, size/2), src.Cut(size/2, size-size/2)}, Access: transport.RemoteRead, Flags: transport.Signaled, Token: 5})
	a.ok(transport.OpBind, 5)
	b.post(transport.WR{Op: transport.OpRead, Token: 6, Flags: transport.Signaled, Local: []mem.Span{dst}, Remote: w.Remote()})
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.ok(transport.OpRead, 6)
		b.post(transport.WR{Op: transport.OpSend, Local: []mem.Span{bm.Cut(2*size, 1)}})
	}()
	a.recv(7, am.Cut(2*size, 4096))
	a.ok(transport.OpRecv, 7)
	<-done
	if !bytes.Equal(src.Bytes(), dst.Bytes()) {
		t.Fatal("what the Read placed differs")
	}
	a.post(transport.WR{Op: transport.OpInvalidate, Window: w, Flags: transport.Signaled, Token: 8})
	a.ok(transport.OpInvalidate, 8)
}

func TestExchange(t *testing.T) {
	cases := map[string]pairOptions{
		"default":      {},
		"crc":          {a: Options{CRC: CRCOn}},
		"crcResponder": {b: Options{CRC: CRCOn}},
		"segments":     {a: Options{FPDU: FPDUSegment}, b: Options{FPDU: FPDUSegment}},
		"segmentsCRC":  {a: Options{FPDU: FPDUSegment, CRC: CRCOn}, b: Options{FPDU: FPDUSegment}},
		"revision1":    {a: Options{Revision: 1}},
		"p2p":          {a: Options{PeerToPeer: true}},
		"p2pRead":      {a: Options{PeerToPeer: true, rtr: rtrRead}},
		"p2pSend":      {a: Options{PeerToPeer: true, rtr: rtrSend}},
		"noBatch":      {a: Options{NoBatch: true}, b: Options{NoBatch: true}},
		"noZeroCopy":   {a: Options{NoZeroCopy: true}, b: Options{NoZeroCopy: true}},
		"noInline":     {a: Options{NoInline: true}, b: Options{NoInline: true}},
	}
	for name, o := range cases {
		for _, size := range []int{1, 4096, 70000, 1 << 20} {
			t.Run(fmt.Sprintf("%s/%d", name, size), func(t *testing.T) {
				a, b := pair(t, o)
				exercise(t, a, b, size)
			})
		}
	}
}

// A fenced Invalidate leaves its STag valid until the Reads before it are complete, and then completes.
func TestFencedInvalidate(t *testing.T) {
	a, b := pair(t, pairOptions{})
	am, bm := slab(t, 4096), slab(t, 4096)
	b.recv(1, bm.Cut(0, 64))
	w, v := a.window(), b.window()
	a.post(transport.WR{Op: transport.OpBind, Window: w, Local: []mem.Span{am.Cut(0, 64)}, Access: transport.RemoteRead},
		transport.WR{Op: transport.OpSend, Local: []mem.Span{am.Cut(0, 1)}})
	b.ok(transport.OpRecv, 1)
	b.post(transport.WR{Op: transport.OpBind, Window: v, Local: []mem.Span{bm.Cut(64, 64)}, Access: transport.RemoteRead})
	a.post(transport.WR{Op: transport.OpRead, Token: 2, Local: []mem.Span{am.Cut(64, 64)}, Remote: v.Remote(), Flags: transport.Signaled},
		transport.WR{Op: transport.OpInvalidate, Token: 3, Window: w, Flags: transport.Signaled | transport.Fence})
	if !w.Valid() {
		t.Fatal("dead before the Read is complete, which nobody has answered")
	}
	done := make(chan error, 1)
	go func() { done <- b.drain() }()
	a.ok(transport.OpRead, 2)
	a.ok(transport.OpInvalidate, 3)
	if w.Valid() {
		t.Fatal("still valid")
	}
	_ = a.qp.Close(transport.Reason{})
	<-done
}
