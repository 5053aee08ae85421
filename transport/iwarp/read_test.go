package iwarp

import (
	"errors"
	"testing"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

func TestReadBeyondTheDepthIsRefused(t *testing.T) {
	m := slab(t, 8<<20)
	p, e := rawTo(t, Options{}, enhanced(2, 2), transport.ConnParams{ReadsIn: 2}, nil)
	w := e.window()
	e.post(transport.WR{Op: transport.OpBind, Window: w, Local: []mem.Span{m}, Access: transport.RemoteRead})
	r := w.Remote()
	// The peer does not read: the socket fills, the first response stays unfinished, the second waits, the third is too much.
	for i := range 3 {
		p.fpdu(readReqHdr(readReq{7, 0, 8 << 20, r.STag, r.Off}, uint32(i+1)), nil)
	}
	if err := e.drain(); !errors.Is(err, &transport.TerminateError{Layer: transport.LayerDDP, Type: ddpUntagged, Code: ddpNoBuffer}) {
		t.Fatal(err)
	}
	if n := e.qp.Stats().ReadsRefused; n != 1 {
		t.Fatalf("%d Reads counted as refused", n)
	}
}

func TestReadResponseMustMatchTheOldestRead(t *testing.T) {
	ten := make([]byte, 10)
	for _, c := range []struct {
		name string
		code uint8
		do   func(p *rawPeer, a, b readReq)
	}{
		{"another STag", ddpTagSTag, func(p *rawPeer, a, b readReq) { p.fpdu(tagged(10, opReadResp, a.SinkSTag^1, a.SinkTO), ten) }},
		{"the second Read first", ddpTagSTag, func(p *rawPeer, a, b readReq) { p.fpdu(tagged(10, opReadResp, b.SinkSTag, b.SinkTO), ten) }},
		{"another offset", ddpTagBounds, func(p *rawPeer, a, b readReq) { p.fpdu(tagged(10, opReadResp, a.SinkSTag, a.SinkTO+1), ten) }},
		{"a segment twice", ddpTagBounds, func(p *rawPeer, a, b readReq) {
			p.fpdu(tagged(10, opReadResp, a.SinkSTag, a.SinkTO), ten)
			p.fpdu(tagged(10, opReadResp, a.SinkSTag, a.SinkTO), ten)
		}},
		{"too long", ddpTagBounds, func(p *rawPeer, a, b readReq) {
			p.fpdu(tagged(101, ctrlLast|opReadResp, a.SinkSTag, a.SinkTO), make([]byte, 101))
		}},
		{"too short", ddpTagBounds, func(p *rawPeer, a, b readReq) {
			p.fpdu(tagged(10, ctrlLast|opReadResp, a.SinkSTag, a.SinkTO), ten)
		}},
		{"no last segment", ddpTagBounds, func(p *rawPeer, a, b readReq) {
			p.fpdu(tagged(100, opReadResp, a.SinkSTag, a.SinkTO), make([]byte, 100))
		}},
		{"a Write that names the sink", ddpTagSTag, func(p *rawPeer, a, b readReq) {
			p.fpdu(tagged(100, ctrlLast|opWrite, a.SinkSTag, a.SinkTO), make([]byte, 100))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := slab(t, 4096)
			p, e, err := rawFrom(t, Options{}, transport.ConnParams{ReadsOut: 2}, func(f mpaFrame) []byte {
				f.Reply, f.IRD, f.ORD = true, f.ORD, f.IRD
				return f.append(nil)
			})
			if err != nil {
				t.Fatal(err)
			}
			for i := range 2 {
				e.post(transport.WR{Op: transport.OpRead, Token: uint64(i), Flags: transport.Signaled, Local: []mem.Span{m.Cut(100*i, 100)}, Remote: transport.Remote{STag: 5, Off: 6}})
			}
			if _, err := e.qp.Post([]transport.WR{{Op: transport.OpRead, Local: []mem.Span{m.Cut(0, 10)}}}); !errors.Is(err, transport.ErrTooManyReads) {
				t.Fatalf("a third Read: %v", err)
			}
			var rr [2]readReq
			for i := range rr {
				_, u, err := p.frame()
				if err != nil {
					t.Fatal(err)
				}
				rr[i].parse(u[untaggedLen-2:])
				if rr[i].Size != 100 || rr[i].SrcSTag != 5 || rr[i].SrcTO != 6 || rr[i].SinkSTag <= 1 {
					t.Fatalf("Read Request %+v", rr[i])
				}
			}
			c.do(p, rr[0], rr[1])
			if err := e.drain(); !errors.Is(err, &transport.TerminateError{Layer: transport.LayerDDP, Type: ddpTagged, Code: c.code}) {
				t.Fatal(err)
			}
			if te, _ := p.terminated(); te == nil || te.Code != c.code {
				t.Fatalf("the peer was told %v", te)
			}
			if n := len(e.got); n != 2 {
				t.Fatalf("%d completions, want the two Reads", n)
			}
		})
	}
}
