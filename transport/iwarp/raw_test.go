package iwarp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// rawPeer speaks to an engine byte by byte.
type rawPeer struct {
	t   testing.TB
	c   net.Conn
	crc bool
	rep mpaFrame
}

func (p *rawPeer) write(bs ...[]byte) {
	p.t.Helper()
	if _, err := p.c.Write(bytes.Join(bs, nil)); err != nil {
		p.t.Fatal(err)
	}
}

// fpdu frames and sends header and payload.
func (p *rawPeer) fpdu(hdr, payload []byte) { p.t.Helper(); p.write(fpdu(p.crc, hdr, payload)) }

// frame reads one FPDU, without markers, and checks length, pad and CRC.
func (p *rawPeer) frame() (h ddpHeader, ulpdu []byte, err error) {
	var l [2]byte
	if _, err := io.ReadFull(p.c, l[:]); err != nil {
		return h, nil, err
	}
	b := make([]byte, fpduLen(int(binary.BigEndian.Uint16(l[:]))))
	copy(b, l[:])
	if _, err := io.ReadFull(p.c, b[2:]); err != nil {
		return h, nil, err
	}
	n := len(b) - crcLen
	want := uint32(0)
	if p.crc {
		want = crcAdd(0, b[:n])
	}
	if got := binary.LittleEndian.Uint32(b[n:]); got != want {
		p.t.Errorf("CRC field 0x%08x, want 0x%08x", got, want)
	}
	h.parse(b)
	return h, b[2 : 2+h.ulpdu], nil
}

// terminated reads until the Terminate, and returns it with its payload; nil means that the stream ended without.
func (p *rawPeer) terminated() (*transport.TerminateError, []byte) {
	p.t.Helper()
	for {
		h, u, err := p.frame()
		if err != nil {
			return nil, nil
		}
		if !h.tagged && h.op == opTerminate {
			if h.qn != qnTerminate || h.msn != 1 || h.mo != 0 || !h.last {
				p.t.Errorf("Terminate on queue %d, message %d, offset %d", h.qn, h.msn, h.mo)
			}
			return parseTerminate(u[untaggedLen-2:]), u[untaggedLen-2:]
		}
	}
}

// rawTo connects a raw initiator to an engine.
func rawTo(t testing.TB, o Options, req mpaFrame, p transport.ConnParams, prepare func(*end)) (*rawPeer, *end) {
	t.Helper()
	ctx := testCtx(t)
	d := New(o)
	q, err := d.NewQP(transport.QPOptions{Sends: 32, Recvs: 32})
	if err != nil {
		t.Fatal(err)
	}
	e := &end{t: t, dev: d, qp: q.(*QP)}
	ln, err := d.Listen(ctx, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close()
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := c.SetDeadline(time.Now().Add(testTimeout)); err != nil {
		t.Fatal(err)
	}
	r := &rawPeer{t: t, c: c}
	r.write(req.append(nil))
	rq, err := ln.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if prepare != nil {
		prepare(e)
	}
	if err := rq.Accept(ctx, e.qp, p); err != nil {
		t.Fatal(err)
	}
	r.rep, err = readFrame(c, true)
	if err != nil {
		t.Fatal(err)
	}
	r.crc = req.CRC || r.rep.CRC
	return r, e
}

func enhanced(ird, ord uint16) mpaFrame {
	return mpaFrame{Revision: 2, Enhanced: true, IRD: ird, ORD: ord}
}

// rawFrom lets an engine dial a raw responder, which reads the request and sends rep.
func rawFrom(t testing.TB, o Options, p transport.ConnParams, reply func(mpaFrame) []byte) (*rawPeer, *end, error) {
	t.Helper()
	ctx := testCtx(t)
	d := New(o)
	q, err := d.NewQP(transport.QPOptions{Sends: 32, Recvs: 32})
	if err != nil {
		t.Fatal(err)
	}
	e := &end{t: t, dev: d, qp: q.(*QP)}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	type result struct {
		p   *rawPeer
		err error
	}
	got := make(chan result, 1)
	go func() {
		c, err := ln.Accept()
		if err != nil {
			got <- result{nil, err}
			return
		}
		_ = c.SetDeadline(time.Now().Add(testTimeout))
		f, err := readFrame(c, false)
		if err == nil {
			_, err = c.Write(reply(f))
		}
		got <- result{&rawPeer{t: t, c: c, crc: f.CRC}, err}
	}()
	_, derr := d.Dial(ctx, ln.Addr().String(), e.qp, p)
	r := <-got
	if r.err != nil {
		t.Fatal(r.err)
	}
	t.Cleanup(func() {
		_ = ln.Close()
		_ = r.p.c.Close()
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return r.p, e, derr
}

// badPeer is what one rule-breaking peer finds: a 4096-byte window to write, one to read, one receive of 64 bytes.
type badPeer struct {
	*rawPeer
	wr, rd transport.Remote
}

func TestTerminateForEveryViolation(t *testing.T) {
	type want struct {
		layer      transport.Layer
		typ, code  uint8
		hdr, rdmap bool
	}
	ddpT := func(code uint8) want { return want{transport.LayerDDP, ddpTagged, code, true, false} }
	ddpU := func(code uint8) want { return want{transport.LayerDDP, ddpUntagged, code, true, false} }
	prot := func(code uint8, rd bool) want {
		return want{transport.LayerRDMAP, rdmapProtection, code, true, rd}
	}
	oper := func(code uint8) want { return want{transport.LayerRDMAP, rdmapOperation, code, true, false} }
	llp := func(code uint8) want { return want{transport.LayerLLP, 0, code, false, false} }
	ten := make([]byte, 10)
	cases := []struct {
		name string
		want want
		do   func(p *badPeer)
	}{
		{"Write to a guessed STag", ddpT(ddpTagSTag), func(p *badPeer) {
			p.fpdu(tagged(10, ctrlLast|opWrite, p.wr.STag^0x5555, p.wr.Off), ten)
		}},
		{"Write to STag 0", ddpT(ddpTagSTag), func(p *badPeer) { p.fpdu(tagged(10, ctrlLast|opWrite, 0, p.wr.Off), ten) }},
		{"Write that begins before the window", ddpT(ddpTagBounds), func(p *badPeer) {
			p.fpdu(tagged(10, ctrlLast|opWrite, p.wr.STag, p.wr.Off-1), ten)
		}},
		{"Write that ends behind the window", ddpT(ddpTagBounds), func(p *badPeer) {
			p.fpdu(tagged(10, ctrlLast|opWrite, p.wr.STag, p.wr.Off+4087), ten)
		}},
		{"Write that wraps", ddpT(ddpTagWrap), func(p *badPeer) {
			p.fpdu(tagged(10, ctrlLast|opWrite, p.wr.STag, 1<<64-5), ten)
		}},
		{"Write to a window that grants reads", prot(rdmapAccess, false), func(p *badPeer) {
			p.fpdu(tagged(10, ctrlLast|opWrite, p.rd.STag, p.rd.Off), ten)
		}},
		{"tagged DDP version", ddpT(ddpTagVersion), func(p *badPeer) {
			b := tagged(10, ctrlLast|opWrite, p.wr.STag, p.wr.Off)
			b[2] = b[2]&^3 | 2
			p.fpdu(b, ten)
		}},
		{"untagged DDP version", ddpU(ddpUntVersion), func(p *badPeer) {
			b := untagged(10, ctrlLast|opSend, 0, 0, 1, 0)
			b[2] &^= 3
			p.fpdu(b, ten)
		}},
		{"RDMAP version", oper(rdmapVersion), func(p *badPeer) {
			b := untagged(10, ctrlLast|opSend, 0, 0, 1, 0)
			b[3] = b[3]&^0xc0 | 0x80
			p.fpdu(b, ten)
		}},
		{"untagged opcode in a tagged message", oper(rdmapOpcode), func(p *badPeer) {
			p.fpdu(tagged(10, ctrlLast|opSend, p.wr.STag, p.wr.Off), ten)
		}},
		{"tagged opcode in an untagged message", oper(rdmapOpcode), func(p *badPeer) {
			p.fpdu(untagged(10, ctrlLast|opWrite, 0, 0, 1, 0), ten)
		}},
		{"opcode 15", oper(rdmapOpcode), func(p *badPeer) { p.fpdu(untagged(10, ctrlLast|15, 0, 0, 1, 0), ten) }},
		{"queue 3", ddpU(ddpQN), func(p *badPeer) { p.fpdu(untagged(10, ctrlLast|opSend, 0, 3, 1, 0), ten) }},
		{"Send on queue 1", oper(rdmapOpcode), func(p *badPeer) { p.fpdu(untagged(10, ctrlLast|opSend, 0, 1, 1, 0), ten) }},
		{"message number 0", ddpU(ddpMSN), func(p *badPeer) { p.fpdu(untagged(10, ctrlLast|opSend, 0, 0, 0, 0), ten) }},
		{"message number skipped", ddpU(ddpMSN), func(p *badPeer) { p.fpdu(untagged(10, ctrlLast|opSend, 0, 0, 2, 0), ten) }},
		{"message offset", ddpU(ddpMO), func(p *badPeer) { p.fpdu(untagged(10, ctrlLast|opSend, 0, 0, 1, 4), ten) }},
		{"message offset that skips", ddpU(ddpMO), func(p *badPeer) {
			p.fpdu(untagged(10, opSend, 0, 0, 1, 0), ten)
			p.fpdu(untagged(10, ctrlLast|opSend, 0, 0, 1, 12), ten)
		}},
		{"Send longer than its receive", ddpU(ddpTooLong), func(p *badPeer) {
			p.fpdu(untagged(65, ctrlLast|opSend, 0, 0, 1, 0), make([]byte, 65))
		}},
		{"Send that grows longer than its receive", ddpU(ddpTooLong), func(p *badPeer) {
			p.fpdu(untagged(64, opSend, 0, 0, 1, 0), make([]byte, 64))
			p.fpdu(untagged(1, ctrlLast|opSend, 0, 0, 1, 64), make([]byte, 1))
		}},
		{"Send without a receive", ddpU(ddpNoBuffer), func(p *badPeer) {
			p.fpdu(untagged(10, ctrlLast|opSend, 0, 0, 1, 0), ten)
			p.fpdu(untagged(10, ctrlLast|opSend, 0, 0, 2, 0), ten)
		}},
		{"Read of a guessed STag", prot(rdmapSTag, true), func(p *badPeer) {
			p.fpdu(readReqHdr(readReq{7, 0, 10, p.rd.STag ^ 0x1234, p.rd.Off}, 1), nil)
		}},
		{"Read beyond the window", prot(rdmapBounds, true), func(p *badPeer) {
			p.fpdu(readReqHdr(readReq{7, 0, 4097, p.rd.STag, p.rd.Off}, 1), nil)
		}},
		{"Read of 4 GiB", prot(rdmapBounds, true), func(p *badPeer) {
			p.fpdu(readReqHdr(readReq{7, 0, 1<<32 - 1, p.rd.STag, p.rd.Off}, 1), nil)
		}},
		{"Read that wraps", prot(rdmapWrap, true), func(p *badPeer) {
			p.fpdu(readReqHdr(readReq{7, 0, 10, p.rd.STag, 1<<64 - 5}, 1), nil)
		}},
		{"Read of a window that grants writes", prot(rdmapAccess, true), func(p *badPeer) {
			p.fpdu(readReqHdr(readReq{7, 0, 10, p.wr.STag, p.wr.Off}, 1), nil)
		}},
		{"Read Request number", ddpU(ddpMSN), func(p *badPeer) {
			p.fpdu(readReqHdr(readReq{7, 0, 10, p.rd.STag, p.rd.Off}, 2), nil)
		}},
		{"Read Request with payload", ddpU(ddpTooLong), func(p *badPeer) {
			h := readReqHdr(readReq{7, 0, 10, p.rd.STag, p.rd.Off}, 1)
			h[1] += 10
			p.fpdu(h, ten)
		}},
		{"Read Request cut short", ddpU(ddpTooLong), func(p *badPeer) {
			p.fpdu(untagged(10, ctrlLast|opReadReq, 0, qnRead, 1, 0), ten)
		}},
		{"Read Request in two segments", ddpU(ddpTooLong), func(p *badPeer) {
			h := readReqHdr(readReq{7, 0, 10, p.rd.STag, p.rd.Off}, 1)
			h[2] &^= ctrlLast >> 8
			p.fpdu(h, nil)
		}},
		{"Read Request at an offset", ddpU(ddpMO), func(p *badPeer) {
			h := readReqHdr(readReq{7, 0, 10, p.rd.STag, p.rd.Off}, 1)
			h[19] = 1
			p.fpdu(h, nil)
		}},
		{"Read Response without a Read", oper(rdmapOpcode), func(p *badPeer) {
			p.fpdu(tagged(10, ctrlLast|opReadResp, p.wr.STag, p.wr.Off), ten)
		}},
		{"invalidation of an STag that is none", prot(rdmapCannotInv, false), func(p *badPeer) {
			p.fpdu(untagged(10, ctrlLast|opSendInv, p.wr.STag^1, 0, 1, 0), ten)
		}},
		{"invalidation of STag 0", prot(rdmapCannotInv, false), func(p *badPeer) {
			p.fpdu(untagged(0, ctrlLast|opSendInv, 0, 0, 1, 0), nil)
		}},
		{"Write after the invalidation", ddpT(ddpTagSTag), func(p *badPeer) {
			p.fpdu(untagged(10, ctrlLast|opSendInv, p.wr.STag, 0, 1, 0), ten)
			p.fpdu(tagged(10, ctrlLast|opWrite, p.wr.STag, p.wr.Off), ten)
		}},
		{"ULPDU shorter than its header", llp(llpMarker), func(p *badPeer) { p.write([]byte{0, 5, 0xc1, 0x40}, make([]byte, 40)) }},
	}
	for _, crc := range []bool{false, true} {
		for _, c := range cases {
			name := c.name
			if crc {
				name += ", with CRC"
			}
			t.Run(name, func(t *testing.T) {
				m := slab(t, 3*4096)
				req := enhanced(4, 4)
				req.CRC = crc
				p, e := rawTo(t, Options{}, req, transport.ConnParams{ReadsIn: 4}, func(e *end) { e.recv(9, m.Cut(8192, 64)) })
				w, r := e.window(), e.window()
				e.post(transport.WR{Op: transport.OpBind, Window: w, Local: []mem.Span{m.Cut(0, 4096)}, Access: transport.RemoteWrite},
					transport.WR{Op: transport.OpBind, Window: r, Local: []mem.Span{m.Cut(4096, 4096)}, Access: transport.RemoteRead})
				c.do(&badPeer{rawPeer: p, wr: w.Remote(), rd: r.Remote()})
				err := e.drain()
				want := &transport.TerminateError{Layer: c.want.layer, Type: c.want.typ, Code: c.want.code}
				var te *transport.TerminateError
				if !errors.As(err, &te) || te.Remote || !te.Is(want) || te.Clause == "" || te.Detail == "" {
					t.Fatalf("the engine says %v", err)
				}
				got, raw := p.terminated()
				if got == nil || !got.Is(want) {
					t.Fatalf("the peer was told %v", got)
				}
				if hdr, rd := raw[2]&(termM|termD) == termM|termD, raw[2]&termR != 0; hdr != c.want.hdr || rd != c.want.rdmap {
					t.Fatalf("header control bits 0x%02x, want DDP header %t, RDMAP header %t", raw[2], c.want.hdr, c.want.rdmap)
				}
				for _, b := range m.Cut(0, 8192).Bytes() {
					if b != 0 {
						t.Fatal("a byte landed")
					}
				}
				if w.Valid() || r.Valid() {
					t.Fatal("an STag outlived the connection")
				}
			})
		}
	}
}

func TestCRCErrorEndsTheConnection(t *testing.T) {
	m := slab(t, 4096)
	req := enhanced(1, 1)
	req.CRC = true
	for bit := range 8 * 36 {
		if testing.Short() && bit%13 != 0 {
			continue
		}
		b := fpdu(true, untagged(12, ctrlLast|opSend, 0, 0, 1, 0), []byte("twelve bytes"))
		if len(b) != 36 {
			t.Fatal(len(b))
		}
		b[bit/8] ^= 1 << (bit % 8)
		func() {
			p, e := rawTo(t, Options{}, req, transport.ConnParams{}, func(e *end) { e.recv(9, m.Cut(0, 64)) })
			p.write(b)
			_ = p.c.(*net.TCPConn).CloseWrite() // a longer length waits for more
			err := e.drain()
			for _, wc := range e.got {
				if wc.Err == nil {
					t.Fatalf("bit %d: %+v completed", bit, wc)
				}
			}
			if want := (&transport.TerminateError{Layer: transport.LayerLLP, Code: llpCRC}); bit >= 16 && !errors.Is(err, want) {
				// A changed header is believed only once the CRC has been checked; the length comes before any check,
				// and a tagged bit changes what is read.
				t.Fatalf("bit %d: %v", bit, err)
			}
			_ = p.c.Close()
			_ = e.dev.Close()
		}()
	}
}

func TestPeersTerminateIsTheReason(t *testing.T) {
	for _, x := range []string{"11 01 c0 00", "11 01 03 00"} {
		p, e := rawTo(t, Options{}, enhanced(1, 1), transport.ConnParams{}, nil)
		body := unhex(t, x)
		p.fpdu(untagged(len(body), ctrlLast|opTerminate, 0, qnTerminate, 1, 0), body)
		err := e.drain()
		var te *transport.TerminateError
		if !errors.As(err, &te) || !te.Remote || !te.Is(&transport.TerminateError{Layer: transport.LayerDDP, Type: 1, Code: 1}) || !errors.Is(err, transport.ErrClosed) {
			t.Fatalf("%s: %v", x, err)
		}
	}
}

func TestSilentPeerIsGivenUp(t *testing.T) {
	d := New(Options{ReplyTimeout: time.Millisecond, RequestTimeout: time.Millisecond})
	defer func() { _ = d.Close() }()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	q, err := d.NewQP(transport.QPOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Dial(context.Background(), ln.Addr().String(), q, transport.ConnParams{}); err == nil {
		t.Fatal("a listener that says nothing was taken for a peer")
	}
	l, err := d.Listen(context.Background(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(testTimeout))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatalf("an initiator that says nothing: %v", err)
	}
}
