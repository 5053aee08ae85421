package iwarp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

func TestResponderAnswersEachRequest(t *testing.T) {
	all := rtrSend | rtrWrite | rtrRead
	p2p := func(f mpaFrame, r rtr) mpaFrame { f.P2P, f.RTR = true, r; return f }
	crc := func(f mpaFrame) mpaFrame { f.CRC = true; return f }
	for _, c := range []struct {
		name  string
		o     Options
		req   mpaFrame
		p     transport.ConnParams
		rep   mpaFrame
		depth transport.Depth
		crc   bool
	}{
		{"ib_iser of Linux", Options{}, enhanced(128, 1), transport.ConnParams{ReadsIn: 1, ReadsOut: 64, Private: []byte{0x80, 0, 0, 0}},
			mpaFrame{Enhanced: true, Revision: 2, IRD: 1, ORD: 64, Private: []byte{0x80, 0, 0, 0}}, transport.Depth{In: 1, Out: 64}, false},
		{"NFS client of Linux", Options{}, enhanced(128, 0), transport.ConnParams{ReadsIn: 4, ReadsOut: 200},
			mpaFrame{Enhanced: true, Revision: 2, IRD: 0, ORD: 128}, transport.Depth{In: 0, Out: 128}, false},
		{"siw with CRC and peer-to-peer", Options{}, crc(p2p(enhanced(1, 1), rtrWrite|rtrRead)), transport.ConnParams{ReadsIn: 8, ReadsOut: 8},
			mpaFrame{CRC: true, Enhanced: true, Revision: 2, P2P: true, RTR: rtrWrite, IRD: 1, ORD: 1}, transport.Depth{In: 1, Out: 1}, true},
		{"cxgb4: Read only", Options{}, p2p(enhanced(8, 0), rtrRead), transport.ConnParams{ReadsOut: 8},
			mpaFrame{Enhanced: true, Revision: 2, P2P: true, RTR: rtrRead, IRD: 1, ORD: 8}, transport.Depth{In: 1, Out: 8}, false},
		{"Send only", Options{}, p2p(enhanced(8, 8), rtrSend), transport.ConnParams{},
			mpaFrame{Enhanced: true, Revision: 2, P2P: true, RTR: rtrSend}, transport.Depth{}, false},
		{"all three", Options{}, p2p(enhanced(8, 8), all), transport.ConnParams{},
			mpaFrame{Enhanced: true, Revision: 2, P2P: true, RTR: rtrWrite}, transport.Depth{}, false},
		{"none in common", Options{rtr: rtrSend}, p2p(enhanced(8, 8), rtrRead), transport.ConnParams{},
			mpaFrame{Enhanced: true, Revision: 2, P2P: true, RTR: rtrSend}, transport.Depth{}, false},
		{"depths left to the upper protocol", Options{}, enhanced(maxReads14, maxReads14), transport.ConnParams{ReadsIn: 3, ReadsOut: 5},
			mpaFrame{Enhanced: true, Revision: 2, IRD: maxReads14, ORD: maxReads14}, transport.Depth{In: 3, Out: 5}, false},
		{"revision 1", Options{}, mpaFrame{Revision: 1, Private: []byte{1}}, transport.ConnParams{ReadsIn: 3, ReadsOut: 5, Private: []byte{2}},
			mpaFrame{Revision: 1, Private: []byte{2}}, transport.Depth{In: 3, Out: 5}, false},
		{"revision 2, not enhanced", Options{}, mpaFrame{Revision: 2}, transport.ConnParams{ReadsIn: 3, ReadsOut: 5},
			mpaFrame{Revision: 2}, transport.Depth{In: 3, Out: 5}, false},
		{"CRC of ours", Options{CRC: CRCOn}, enhanced(1, 1), transport.ConnParams{},
			mpaFrame{CRC: true, Enhanced: true, Revision: 2}, transport.Depth{}, true},
		{"CRC of the peer's", Options{CRC: CRCPeer}, crc(enhanced(1, 1)), transport.ConnParams{},
			mpaFrame{CRC: true, Enhanced: true, Revision: 2}, transport.Depth{}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, e := rawTo(t, c.o, c.req, c.p, nil)
			c.rep.Reply, c.rep.GSO = true, true
			if got, want := p.rep.append(nil), c.rep.append(nil); !bytes.Equal(got, want) {
				t.Fatalf("reply\n%q, want\n%q", got, want)
			}
			if e.qp.Depth() != c.depth || e.qp.CRC() != c.crc {
				t.Fatalf("depth %+v, CRC %t", e.qp.Depth(), e.qp.CRC())
			}
		})
	}
}

func TestResponderSendsNothingBeforeTheInitiator(t *testing.T) {
	m := slab(t, 4096)
	for _, c := range []struct {
		name  string
		rtr   rtr
		first func(*rawPeer)
	}{
		{"Send", 0, func(p *rawPeer) { p.fpdu(untagged(3, ctrlLast|opSend, 0, 0, 1, 0), []byte("abc")) }},
		{"Write to be ready", rtrWrite, func(p *rawPeer) { p.fpdu(tagged(0, ctrlLast|opWrite, 1, 0), nil) }},
		{"Read to be ready", rtrRead, func(p *rawPeer) { p.fpdu(readReqHdr(readReq{1, 0, 0, 1, 0}, 1), nil) }},
		{"Send to be ready", rtrSend, func(p *rawPeer) { p.fpdu(untagged(0, ctrlLast|opSend, 0, 0, 1, 0), nil) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			req := enhanced(1, 1)
			req.P2P, req.RTR = c.rtr != 0, c.rtr
			p, e := rawTo(t, Options{}, req, transport.ConnParams{}, func(e *end) { e.recv(1, m.Cut(0, 64)) })
			e.post(transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: 2, Local: []mem.Span{m.Cut(64, 5)}})
			if n, err := e.qp.Poll(e.wc[:]); n != 0 || err != nil {
				t.Fatalf("before the first FPDU: %d completions, %v", n, err)
			}
			if out := e.qp.Stats().BytesOut; out != 0 {
				t.Fatalf("%d bytes sent before the initiator's first FPDU", out)
			}
			c.first(p)
			got := map[transport.Op]transport.WC{}
			want := 1
			if c.rtr == 0 {
				want = 2
			}
			for len(got) < want {
				wc := e.next()
				got[wc.Op] = wc
			}
			if got[transport.OpSend].Token != 2 || c.rtr == 0 && got[transport.OpRecv].Len != 3 {
				t.Fatalf("completions %+v", got)
			}
			for {
				h, u, err := p.frame()
				if err != nil {
					t.Fatal(err)
				}
				if h.op == opReadResp && c.rtr == rtrRead {
					if h.stag != 1 || h.to != 0 || len(u) != taggedLen-2 || !h.last {
						t.Fatalf("response to the Read to be ready: %+v", h)
					}
					continue
				}
				if h.op != opSend || h.msn != 1 {
					t.Fatalf("frame %+v", h)
				}
				break
			}
			// A Send to be ready was no message of the upper protocol's: its receive is still there for the next one.
			if c.rtr == rtrSend {
				p.fpdu(untagged(0, ctrlLast|opSend, 0, 0, 2, 0), nil)
				if wc := e.ok(transport.OpRecv, 1); wc.Len != 0 {
					t.Fatalf("received %+v", wc)
				}
			}
		})
	}
}

func accept(f mpaFrame) []byte {
	f.Reply, f.IRD, f.ORD, f.Private = true, f.ORD, f.IRD, nil
	return f.append(nil)
}

func TestInitiatorSendsTheReadyFrameItAgreedOn(t *testing.T) {
	for _, c := range []struct {
		offer, take rtr
		want        string
	}{
		{0, rtrWrite, "000e c140 00000001 0000000000000000 00000000"},
		{0, rtrRead, "002e 4141 00000000 00000001 00000001 00000000 00000001 0000000000000000 00000000 00000001 0000000000000000 00000000"},
		{0, rtrSend, "0012 4143 00000000 00000000 00000001 00000000 00000000"},
		{0, rtrSend | rtrRead | rtrWrite, "000e c140 00000001 0000000000000000 00000000"},
		{rtrSend, rtrSend | rtrRead | rtrWrite, "0012 4143 00000000 00000000 00000001 00000000 00000000"},
	} {
		p, e, err := rawFrom(t, Options{PeerToPeer: true, rtr: c.offer}, transport.ConnParams{ReadsOut: 1}, func(f mpaFrame) []byte {
			f.RTR = c.take
			return accept(f)
		})
		if err != nil {
			t.Fatal(err)
		}
		want := unhex(t, c.want)
		got := make([]byte, len(want))
		if _, err := io.ReadFull(p.c, got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("types %b: first frame\n%x, want\n%x (%v)", c.take, got, want, err)
		}
		if e.qp.Depth().Out != 1 {
			t.Fatalf("depth %+v", e.qp.Depth())
		}
	}
}

func TestInitiatorRefusesBadReplies(t *testing.T) {
	errAny := errors.New("any")
	for _, c := range []struct {
		name  string
		o     Options
		reply func(mpaFrame) []byte
		want  error
		told  bool // by a Terminate
	}{
		{"reject", Options{}, func(f mpaFrame) []byte { f.Reply, f.Reject, f.Private = true, true, []byte("no"); return f.append(nil) }, nil, false},
		{"a request as reply", Options{}, func(f mpaFrame) []byte { return f.append(nil) }, errAny, false},
		{"an HTTP server", Options{}, func(mpaFrame) []byte { return []byte("HTTP/1.1 400 Bad Request\r\n\r\n") }, errAny, false},
		{"not enhanced", Options{}, func(f mpaFrame) []byte { f.Enhanced, f.Revision = false, 1; return accept(f) }, errAny, false},
		{"a later revision", Options{Revision: 1}, func(f mpaFrame) []byte { f.Revision = 2; return accept(f) }, errAny, false},
		{"CRC where it is off", Options{CRC: CRCOff}, func(f mpaFrame) []byte { f.CRC = true; return accept(f) }, errAny, false},
		{"more Reads than we serve", Options{}, func(f mpaFrame) []byte {
			f.Reply, f.ORD = true, maxReads+1
			return f.append(nil)
		}, &transport.TerminateError{Layer: transport.LayerLLP, Code: llpIRD}, true},
		{"no peer-to-peer", Options{PeerToPeer: true}, func(f mpaFrame) []byte { f.P2P = false; return accept(f) },
			&transport.TerminateError{Layer: transport.LayerLLP, Code: llpRTR}, true},
		{"no type in common", Options{PeerToPeer: true, rtr: rtrRead}, func(f mpaFrame) []byte { f.RTR = rtrWrite; return accept(f) },
			&transport.TerminateError{Layer: transport.LayerLLP, Code: llpRTR}, true},
		{"nothing", Options{ReplyTimeout: 50 * time.Millisecond}, func(mpaFrame) []byte { return nil }, errAny, false},
		{"half a reply", Options{ReplyTimeout: 50 * time.Millisecond}, func(f mpaFrame) []byte { return accept(f)[:19] }, errAny, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, e, err := rawFrom(t, c.o, transport.ConnParams{}, c.reply)
			var rej *transport.RejectedError
			switch {
			case err == nil:
				t.Fatal("taken")
			case c.want == nil:
				if !errors.As(err, &rej) || string(rej.Private) != "no" {
					t.Fatal(err)
				}
			case !errors.Is(c.want, errAny) && !errors.Is(err, c.want):
				t.Fatal(err)
			}
			if te, _ := p.terminated(); (te != nil) != c.told || te != nil && !errors.Is(te, c.want) {
				t.Fatalf("told %v", te)
			}
			if _, err := e.qp.Post(nil); err != nil {
				t.Fatal(err)
			}
			if err := e.drain(); !errors.Is(err, transport.ErrClosed) {
				t.Fatalf("the queue pair ended with %v", err)
			}
		})
	}
}

// A peer that asks for markers gets them; a stream of theirs we never ask for.
func TestMarkersForAPeerThatAsks(t *testing.T) {
	m := slab(t, 16<<10)
	fill(m.Bytes(), 5)
	req := enhanced(1, 1)
	req.Markers, req.CRC = true, true
	p, e := rawTo(t, Options{}, req, transport.ConnParams{}, nil)
	if p.rep.Markers {
		t.Fatal("we ask for markers")
	}
	p.fpdu(tagged(0, ctrlLast|opWrite, 1, 0), nil)
	e.post(transport.WR{Op: transport.OpWrite, Flags: transport.Signaled, Token: 3, Local: []mem.Span{m}, Remote: transport.Remote{STag: 9, Off: 10}})
	e.ok(transport.OpWrite, 3)
	n := taggedLen + m.Len + crcLen // no pad
	raw := make([]byte, n+4*((n+507)/508))
	if _, err := io.ReadFull(p.c, raw); err != nil {
		t.Fatal(err)
	}
	var f []byte
	for i := 0; i < len(raw); i += 4 {
		if i%512 != 0 {
			f = append(f, raw[i:i+4]...)
		}
	}
	if !bytes.Equal(f[taggedLen:taggedLen+m.Len], m.Bytes()) {
		t.Fatal("the payload between the markers differs")
	}
	// The Terminate too keeps to them.
	if err := e.qp.Close(transport.Reason{Err: errors.New("enough")}); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(p.c)
	if err != nil {
		t.Fatal(err)
	}
	for i := (512 - len(raw)%512) % 512; i < len(rest); i += 512 {
		rest = append(rest[:i], rest[i+4:]...)
	}
	if len(rest) != untaggedLen+4+crcLen || rest[3]&ctrlOpMask != opTerminate || rest[untaggedLen] != 0x02 || rest[untaggedLen+1] != rdmapUnspecified {
		t.Fatalf("the end of the stream is %x", rest)
	}
}

// A server whose one port carries RDMA and another protocol accepts, looks at the first bytes, and hands over what begins with an MPA
// Request. A connection to a listener of the device that begins otherwise is closed.
func TestOnePortServesBoth(t *testing.T) {
	ctx := testCtx(t)
	d := New(Options{})
	defer func() { _ = d.Close() }()
	ln, err := d.Listen(ctx, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	for _, first := range []string{"\x43\x87login", "MPA ID Reply, or what?"} {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte(first)); err != nil {
			t.Fatal(err)
		}
		if err := c.SetReadDeadline(time.Now().Add(testTimeout)); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("%q is answered with %d bytes, %v", first, n, err)
		}
		_ = c.Close()
	}
	// And one connection accepted elsewhere.
	l2, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l2.Close() }()
	for i, addr := range []string{ln.Addr().String(), l2.Addr().String()} {
		q, err := d.NewQP(transport.QPOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s, err := d.NewQP(transport.QPOptions{})
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() {
			served <- func() error {
				var r transport.Request
				var err error
				if i == 0 {
					r, err = ln.Accept(ctx)
				} else {
					var c net.Conn
					if c, err = l2.Accept(); err == nil {
						peek := make([]byte, 7)
						if _, err = io.ReadFull(c, peek); err == nil {
							r, err = d.Request(ctx, c.(*net.TCPConn), peek)
						}
					}
				}
				if err != nil {
					return err
				}
				if string(r.Peer().Private) != "hi" {
					return errors.New("private data " + string(r.Peer().Private))
				}
				return r.Accept(ctx, s, transport.ConnParams{})
			}()
		}()
		if _, err := d.Dial(ctx, addr, q, transport.ConnParams{Private: []byte("hi")}); err != nil {
			t.Fatal(err)
		}
		if err := <-served; err != nil {
			t.Fatal(err)
		}
	}
}

// A flood of connections that say nothing does not keep out one that does.
func TestFloodOfSilentConnections(t *testing.T) {
	ctx := testCtx(t)
	d := New(Options{RequestTimeout: testTimeout})
	defer func() { _ = d.Close() }()
	ln, err := d.Listen(ctx, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	for range maxHandshakes + 20 {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	_ = conns[0].SetDeadline(time.Now().Add(testTimeout))
	if _, err := conns[0].Read(make([]byte, 1)); err == nil {
		t.Fatal("the oldest was answered")
	}
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conns = append(conns, c)
	req := enhanced(1, 1)
	if _, err := c.Write(req.append(nil)); err != nil {
		t.Fatal(err)
	}
	r, err := ln.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Reject(nil); err != nil {
		t.Fatal(err)
	}
	if err := r.Reject(nil); err == nil {
		t.Fatal("answered twice")
	}
}

func TestBytesBehindTheRequestAreRefused(t *testing.T) {
	d := New(Options{})
	defer func() { _ = d.Close() }()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	req := enhanced(1, 1)
	if _, err := d.Request(context.Background(), s.(*net.TCPConn), append(req.append(nil), 0)); err == nil {
		t.Fatal("taken")
	}
}
