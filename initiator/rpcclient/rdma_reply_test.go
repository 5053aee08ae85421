package rpcclient

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/internal/rpcrdma"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/transporttest"
)

// answering serves RPC-over-RDMA connections on a fabric in memory: answer makes the message that replies to the call of a
// header, on connection number conn.
func answering(t *testing.T, answer func(conn int, h *rpcrdma.Header) []byte) (client *Client, conns *int) {
	t.Helper()
	near, far := transporttest.Twin()
	slab, err := mem.NewSlab(3 * inline)
	if err != nil {
		t.Fatal(err)
	}
	if err := far.Register(slab); err != nil {
		t.Fatal(err)
	}
	l, err := far.Listen(t.Context(), "fake:20049")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	conns = new(int)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			r, err := l.Accept(ctx)
			if err != nil {
				return
			}
			qp, err := far.NewQP(transport.QPOptions{Sends: 8, Recvs: 2})
			if err != nil {
				t.Error(err)
				return
			}
			*conns++
			serveOne(ctx, r, qp, slab, func(h *rpcrdma.Header) []byte { return answer(*conns, h) })
		}
	}()
	rd, err := NewRDMA(near)
	if err != nil {
		t.Fatal(err)
	}
	client = NewClient(rd.Dialer(l.Addr().String()), Options{})
	t.Cleanup(func() {
		err := client.Close()
		cancel()
		<-done
		if err := errors.Join(err, rd.Close(), l.Close(), near.Close(), far.Close(), slab.Close()); err != nil {
			t.Error(err)
		}
	})
	return client, conns
}

// serveOne serves a connection to its end.
func serveOne(ctx context.Context, r transport.Request, qp transport.QP, slab *mem.Slab, answer func(*rpcrdma.Header) []byte) {
	recv := func() {
		_, _ = qp.PostRecv([]transport.Recv{{Buf: mem.Span{Slab: slab, Len: inline}}})
	}
	recv()
	p := rpcrdma.Private{SendSize: inline, RecvSize: inline}
	if err := r.Accept(ctx, qp, transport.ConnParams{Private: p.Append(nil), ReadsIn: 1, ReadsOut: 1}); err != nil {
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = qp.Close(transport.Reason{}) })
	defer stop()
	var wc [4]transport.WC
	for {
		n, err := qp.Poll(wc[:])
		for _, c := range wc[:n] {
			if c.Op != transport.OpRecv || c.Err != nil {
				continue
			}
			var h rpcrdma.Header
			x := xdr.NewReader(append([]byte(nil), slab.Bytes()[:c.Len]...))
			if err := h.Parse(&x); err != nil {
				return
			}
			recv()
			out := mem.Span{Slab: slab, Off: inline}
			out.Len = copy(slab.Bytes()[inline:], answer(&h))
			_, _ = qp.Post([]transport.WR{{Op: transport.OpSend, Local: []mem.Span{out}}})
		}
		if err != nil {
			return
		}
		if n == 0 {
			_ = qp.Wait(context.Background()) // Poll tells why
		}
	}
}

// A reply that breaks a rule would be the same the next time: its call fails with the reason, when its memory is out of reach, and the
// next call is answered over another connection.
func TestAReplyOverRDMAThatBreaksARuleEndsItsCall(t *testing.T) {
	for name, wrong := range map[string]func(h *rpcrdma.Header){
		"more is placed than was offered": func(h *rpcrdma.Header) { h.AddWrite(rpcrdma.Segment{Len: 1 << 20}) },
		"a long reply without room":       func(h *rpcrdma.Header) { h.Proc = rpcrdma.Nomsg; h.SetReply([]rpcrdma.Segment{{Len: 100}}) },
		"a procedure that is none":        func(h *rpcrdma.Header) { h.Proc = 9 },
		"another version":                 func(h *rpcrdma.Header) { h.Vers = 7 },
	} {
		t.Run(name, func(t *testing.T) {
			c, conns := answering(t, func(conn int, h *rpcrdma.Header) []byte {
				a := rpcrdma.Header{XID: h.XID, Vers: rpcrdma.Version, Credits: 1, Proc: rpcrdma.Msg}
				if conn == 1 {
					wrong(&a)
				}
				b := oncrpc.AppendReply(a.Append(nil), h.XID, oncrpc.Success)
				return xdr.AppendUint32(b, 42)
			})
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			err := c.Do(ctx, &Call{Prog: 1, Vers: 1, Proc: 1, Sink: make([]byte, 64<<10)})
			var pe *ProtocolError
			if !errors.As(err, &pe) || *conns != 1 {
				t.Errorf("%v after %d connections", err, *conns)
			}
			if v, err := do(ctx, c); v != 42 || err != nil {
				t.Errorf("the next call: %d, %v", v, err)
			}
		})
	}
}
